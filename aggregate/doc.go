// Package aggregate is the aggregator's data path: an [Engine] with its devices and lanes, and [Job]s. The package itself is
// control: it opens, attaches, snapshots and closes. What happens to a message is in its rooms (ARCHITECTURE.md): begin with
// lane and shard.
//
// From arrival to answer a chunk sees one core, no lock and no allocation. What lanes share is control: functions that run on a
// lane's own goroutine ([Lane.Do]), and atomics where a job's lanes meet at the commit of a two-phase step.
//
// A [Job] is one tenant: a protection domain per device, its workers' connections, and a shard in every lane. All of its memory is
// charged ([JobConfig.Need]) before it is taken. What a failed job leaves can stay in memory for the next run ([Retained]).
package aggregate
