// Package failure records why a job ended, and which worker caused it.
//
// Death is noticed on the data path: a shared-memory connection's socket, a TCP connection, an RDMA queue pair's retries each end
// in a completion in error at the peer, within about a second. The first failure that a [Latch] records is the job's; what follows
// is its consequence. Where a worker may have closed its connections because another aggregator told it to, the loss waits for a
// better explanation.
//
// A worker that is stopped keeps its connections. A few seconds are ridden out; after ten without heartbeats the control plane ends
// the job, and names the worker.
package failure
