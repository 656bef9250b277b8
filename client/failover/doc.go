// Package failover chooses the paths that a worker's lanes take to the aggregator. It is a pure machine: what happened to links,
// connections and attempts goes in as events, what a lane should do comes out ([Chooser.Next]). Times are nanoseconds of a clock
// that the caller reads.
//
// One rule decides: every lane goes the best path that is open. Its primary path is best, then come paths between NICs of the
// same number, because racks are usually wired so, then all others. Paths that failed lately come last, the one
// that failed first before the others. A path is open while both its NICs have a link; a link that returns to the worker is
// trusted when it has lasted for [Config.Settle]. The aggregator says of its own links only what has settled.
//
// The worker drives a failover, because one side must choose the pair of NICs, and the worker is the side that connects. The
// aggregator only says which of its links are down, and which of a worker's connections broke. Where there is one NIC on each side
// there is one path: messages are sent again until [Config.Timeout], and then the worker is lost. A software transport has no link,
// and there a broken connection is a lost worker.
package failover
