// Package policy decides who waits for whom: when a worker's gradient is applied, with which weight, and when the worker may
// compute its next step. A [Policy] is a pure machine: events in, acts out. It decides about whole steps of workers, never about a
// chunk.
//
// Steps count from 0. A worker's clock is the step that it computes or waits to compute. It is allowed steps up to some number, and
// held while its clock is above that. τ is the number of updates between the version on which a gradient was computed and its
// application.
//
// Stream policies (asp, ssp: stale.go; lagtuner: lagtuner.go) apply a gradient alone, as it arrives. They only gate. Step policies
// (bsp, backup, k-bsp: barrier.go; k-asp, k-batch-bsp, k-batch-asp, softsync: batch.go) apply sets of whole gradients. [Spec] names
// a policy with its parameters. A [Runner] runs one for a job. It refuses impossible events, keeps statistics, and changes from one
// policy to another at a step that all workers share.
package policy
