// Package bench is the comm-only benchmark: a model's gradients exchanged with infinitely fast compute, measured in the
// terms of nccl-tests and compared with plain Go bit for bit.
//
// [Runner.Run] starts the aggregator (unless one is given) and the workers, each in a process of its own by default, and combines
// their measurements. A worker process runs [WorkerMain]. It reads its orders as JSON from standard input and writes its report as
// JSON lines to standard output.
package bench
