// Package service is the aggregator's control plane: jobs with their members, tokens and quotas, the exchange of endpoints,
// registration of tensors, checkpoints, status. It opens the devices and runs an [aggregate.Engine] for every provider it
// serves. Gradients never pass here.
//
// One port speaks gRPC, Connect and plain HTTP+JSON (package api has the schema), with TLS or without.
//
// A job forms when its first worker joins and runs once all have joined. From then on it fails when it loses a worker, and all
// workers know within a second. A job that has failed or ended frees its name at once, and its memory when its workers are gone or
// a grace period is over. Each worker has a session and keeps a Watch stream open; a worker whose stream ends is lost.
//
// Locks: Service.mu is taken before job.mu, never after it. Neither is held across a wait.
package service
