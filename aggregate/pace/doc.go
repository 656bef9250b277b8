// Package pace runs the synchronization policy of a job in mode stream over all of its lanes.
//
// A [Gate] is told of the steps that workers announce and end, asks the policy (package policy), and tells the job's [Shard] in
// every lane which gradients make an update and which workers go on. A policy decides about whole steps; lanes apply chunks. A
// worker ends its step with a commit in every lane, behind its chunks. The lane that applies the last of them asks the policy, and
// the commit is answered when the worker may go on. So a held worker holds one slot of its own, and synchronous jobs pay nothing.
// The answer also says whether the step's results are new enough for the next step, or the worker must pull.
//
// Sets of gradients are open, decided, running and made, in this order, and lanes make them one after another. A set is decided
// when its workers announce their steps, because slots hold less than a gradient. When a worker is lost, the set that has a part of
// its step makes no update, because no lane can take out what it has added.
//
// [Gate.Rate] is the policy's factor of the learning rate for a stale gradient.
package pace
