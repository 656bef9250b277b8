// Package aggregate is the box's data path: one loop per lane (a core with its NIC) that takes gradient chunks off its own
// completion queue, sums them over the workers in rank order, runs the optimizer in the same pass and writes the answer back.
//
// From arrival to answer a chunk sees one core, no lock and no allocation. What is shared between lanes is control: jobs are
// added, attached and closed by functions that run on the lane's own goroutine ([Lane.Do]), and a job's lanes meet only at
// the commit of a two-phase step, through atomics.
//
// An [Engine] owns devices and lanes; a [Job] is one tenant: a protection domain per device, its workers' queue pairs, and in
// every lane a share (chunks, parameters, optimizer state, folds in progress).
//
// A fold is one chunk of which some workers' gradients have arrived. It keeps where each lies (in the worker's slot, or, by
// reference, in the worker's own memory) and sums all at once when the last is there: one pass over memory, and the same bits
// for any arrival order. A worker's unanswered messages are bounded by its window, so folds in progress are too.
//
// A connection is counted messages in each direction over whatever queue pair there is: it keeps what it sent until that is known
// to have arrived, and goes on over another NIC when a link, a queue pair or a completion queue is lost ([Job.Resume]).
package aggregate
