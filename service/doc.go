// Package service is the aggregator's control plane: jobs with their members, tokens and quotas, the exchange of endpoints,
// registration of tensors, checkpoints, status. It opens the devices and runs an [aggregate.Engine] for every provider it
// serves. Gradients never pass here.
//
// One port speaks gRPC, Connect and plain HTTP+JSON (package api has the schema), with TLS or without.
//
// A job forms when its first worker joins and runs once all have joined; from then on losing one fails it, for all within
// a second. A job that failed or ended gives its name free at once and its memory when its workers are gone, or after a
// grace period. Workers hold a session; the Watch stream that each keeps open is how its end is noticed.
//
// Locks: Service.mu is taken before job.mu, never the other way round; neither is held across a wait.
package service
