// Package aggregate is the aggregator's data path: one loop per lane (a core with its NIC) that takes gradient chunks off its own
// completion queue, sums them over the workers in rank order, runs the optimizer in the same pass and writes the answer back.
//
// From arrival to answer a chunk sees one core, no lock and no allocation. What is shared between lanes is control: jobs are
// added, attached and closed by functions that run on the lane's own goroutine ([Lane.Do]), and a job's lanes meet only at
// the commit of a two-phase step, through atomics.
//
// An [Engine] owns devices and lanes; a [Job] is one tenant: a protection domain per device, its workers' connections, and in
// every lane a share. Of a message, a share asks the job's machine what to do (package reduce) and carries it out: sums and
// updates over its store of parameters, and answers over the worker's connection (package session).
package aggregate
