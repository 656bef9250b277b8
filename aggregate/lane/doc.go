// Package lane runs one core's loop. A [Lane] owns a completion queue per NIC, the connections that complete there, and the
// processor time that its tenants share.
//
// A [Tenant] is one job's part of a lane. Join gives it a [Flow]: the completions that arrived for it, its weight, and the commands
// of other goroutines. A lane calls a tenant only on its own goroutine, except while a caller of [Flow.Borrow] uses the tenant:
// then the lane leaves it alone and serves the others. So a call that takes long holds up its own job alone.
//
// A round ([Lane.Step]) polls, lets every flow with something to do move as many bytes as its weight allows (deficit round robin:
// Shreedhar and Varghese, 1995), and then posts what the round left to post (loop.go). A lane with one tenant skips the queues of
// flows, so that being fair costs a lone job nothing.
//
// The loop is Go, although the fabric and the kernels are C: per chunk it makes a handful of cgo calls of 50 ns, against some 10 µs
// of arithmetic on four workers' 32 KiB.
//
// A panic ends the tenant that was served, not the lane (contain.go): its job fails with the stack in the log, its connections are
// closed, and its state is left alone, because it may be torn.
package lane
