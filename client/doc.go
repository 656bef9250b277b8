// Package client is a worker in Go: it joins a job, registers its tensors and exchanges gradients for sums or updated
// parameters. The control plane is Go (package service has the other end), the data path is the C worker of cgo/worker.
//
// Buffers are byte slices of a tensor's elements, in memory of any kind; [Bytes] views other slices as such. Memory from
// [Worker.Alloc] is registered with the transport and needs no copy. Go memory is pinned until the operation is waited for or the
// tensor's next one starts. An operation belongs to whoever waits for its [Handle]: progress is made by waiting.
//
// Every wait ends: when the operation is done, at its deadline, or within about a second of the failure of another worker,
// the aggregator or a connection. A failed Worker stays failed; its errors wrap [ErrAborted], [ErrServerLost], [ErrTimeout],
// [ErrClosed] or [ErrForked]. A wait that gives up, by deadline or by its context, fails the worker too: the step can no longer
// be finished.
package client
