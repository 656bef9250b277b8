// Package client is a worker in Go. [Join] makes this process a worker of a job, [Worker.Register] declares the model's
// tensors, and operations exchange gradients for their sums or for updated parameters. Calls to the aggregator's control plane
// are made in Go (package service answers them); the data goes through the C worker of cgo/worker.
//
// A buffer is a byte slice that holds all elements of a tensor, in row-major order, in the tensor's memory type. It may lie in
// any memory; [Bytes] views a slice of numbers as one. Memory from [Worker.Alloc] is registered with the transport and needs no
// copy. Go memory is pinned until the operation was waited for, or until the tensor's next operation starts. Leave a source
// unchanged, and a destination alone, while an operation uses it.
//
// Waiting makes progress: a process that starts operations waits for their handles, in another goroutine if it computes meanwhile.
//
// Every wait ends: when the operation is done, at its deadline, or within about a second of the failure of another worker, of
// the aggregator or of a connection. A Worker that has failed stays failed, and joins anew as another Worker: [Worker.Rejoin]. A
// wait that ends early, at its deadline or by its context, fails the worker, because the step cannot be finished. Errors wrap
// [ErrAborted], [ErrServerLost], [ErrTimeout], [ErrRefused], [ErrBusy] or [ErrClosed], and name the remedy.
//
// A job may be spread over several aggregators, which need not talk to each other: one that fails the job tells its workers, and
// they tell the others.
package client
