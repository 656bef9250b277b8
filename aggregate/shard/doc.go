// Package shard is one job's part of one lane. It implements lane.Tenant.
//
// For each message a [Shard] calls the pure machine of package reduce, and carries out the actions that it returns: arithmetic over
// its store of parameters, answers over the workers' connections. The spine is receive.go (a message arrives) and actions.go (a
// chunk is complete, and its answers are posted). Workers attach, break off and resume in workers.go.
//
// # One pass, to everybody
//
// Where the transport maps the workers' memory, the last store of the sum is the answer: one pass reads every gradient and writes
// every worker's result, without a copy or a fence per worker. A worker's control record says whether its results are larger than
// its cache; those go past it.
//
// # Values above and beside
//
// Over several racks a complete chunk goes to an [Uplink], and its result comes back as another action. A job of one rack has an
// uplink that does nothing. In mode stream a worker's step goes to the job's gate (package pace), which calls back in every lane.
//
// Only the lane's goroutine uses a shard, or a caller that borrows it ([lane.Flow.Borrow]).
package shard
