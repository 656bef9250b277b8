// Package bench is the comm-only benchmark: a model's gradients exchanged with infinitely fast compute, measured in the
// terms of nccl-tests and compared with plain Go bit for bit.
//
// [Run] starts the aggregator (unless one is given) and the workers, each a process of its own by default, and puts their
// measurements together. A worker process runs [WorkerMain]: its orders come as JSON on standard input, its report goes as
// JSON lines to standard output.
package bench
