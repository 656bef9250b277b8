// Package store keeps one job's parameters, optimizer state and buffers in one lane, and runs the arithmetic over them.
//
// A [Store] lists the lane's tensors and chunks. A chunk's arrays lie one behind the other in registered memory ([Memory]): f32
// parameters, each state of the update rule, and an accumulator where the job's mode needs one. [Arithmetic] runs sums and updates
// over chunks; one core's shards share one. [Commit] is the outcome of a two-phase step: the scale, clipped by the global norm.
// [Buffers] are the answers on their way that have no memory of their own.
//
// All memory is registered with every NIC at the start, so that a connection that moves to another NIC only changes keys.
//
// Workers of several racks may send their gradients straight here (shape flat). [RackSum] adds them rack by rack, as if the racks
// reduced among themselves, so the shape changes no bit.
//
// Only the lane's goroutine uses a store, or a caller that borrows the lane's tenant. Memory is safe for concurrent use.
package store
