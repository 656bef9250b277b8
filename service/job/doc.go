// Package job is the jobs of an aggregator with their members. A job forms when its first worker joins and runs once all have
// joined. From then on it fails when it loses a worker, and all workers know within a second. A job that has failed or ended frees
// its name at once, and its memory when its workers are gone or a grace period is over. Each worker has a session and keeps a Watch
// stream open; a worker whose stream ends is lost.
//
// A [Table] has the jobs. What lies beside a job is behind interfaces: [Racks], where the job has parts in other racks, [Placer],
// which places workers in a cluster, and [Retainer], which keeps the state of a job that failed.
package job
