// Package membership keeps in etcd the plan of the aggregators that serve the racks of a cluster.
//
// # Protocol
//
// Under /rackweave/CLUSTER/ there are three kinds of keys. Every value is sealed with the cluster's secret.
//
//   - racks/NAME: the claim of an aggregator on a rack. It is written if it is not there, under the aggregator's lease. The
//     revision that created it is the claim's token: a later claim has a larger one.
//   - leader: the claim of an aggregator on deciding, under the same lease. Any aggregator that has a rack takes it when it is
//     free.
//   - plan: the aggregator of each rack. Only the leader writes it, in a transaction on its own token and on the plan that it
//     has seen. The revision that wrote it is its epoch. All aggregators follow it. The plan of a departed leader stays in
//     force until a new leader writes one, but no job starts under it.
//
// The data path notices failures, etcd only decides. So a job that runs goes on while etcd is away, or its data is lost, and
// while its aggregators' leases have ended; each claims its rack again when it can. What ends a run is that the plan gives one of
// its racks to another aggregator. An aggregator whose rack has become another's is fenced: its jobs end, and it gives up.
//
// A job begins by a plan, in which every rack that it waits for is served, at an aggregator whose lease is good. Each rack names
// its aggregator to the others, which compare it with the plan. A run keeps its racks to its end: another plan is for the next run,
// over other queue pairs. So a step includes a rack in all of its chunks, or in none. A rack that is lost ends the run in all
// racks, whatever part of a step has been applied, and the next run begins with parameters that are those of one step everywhere: a
// checkpoint's, a buddy's, or a broadcast's. By the cluster's on-loss that run waits for the rack, or goes on without it once the
// plan leaves it out, with fewer workers.
//
// A rack is a place in the order of sums, wherever the aggregator runs that has it by the plan: on another rack's box it adds to
// the same bits. The workers of a lost rack ask any other rack's aggregator for the one that serves theirs.
package membership
