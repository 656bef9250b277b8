// Package policy decides who waits for whom: when a worker's gradient is applied, with which weight, and when the worker may
// compute its next step. A [Policy] is a pure machine: events in, acts out. It decides about whole steps of workers, never about a
// chunk.
//
// Steps count from 0. A worker's clock is the step that it computes or waits to compute; it is allowed steps up to some number, and
// held while its clock is above that. τ is how many updates were made between the version a gradient was computed on and its
// application.
//
// Stream policies (asp, ssp, lagtuner) apply a gradient alone, as it arrives; they only gate. Step policies (bsp, backup, k-bsp,
// k-asp, k-batch-bsp, k-batch-asp, softsync) apply sets of whole gradients. [Spec] names a policy with its parameters. A [Runner]
// runs one for a job: it refuses events that cannot be, keeps statistics, and changes from one policy to another at a step that
// all workers share.
package policy
