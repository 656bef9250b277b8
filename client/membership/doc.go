// Package membership makes a worker's calls of the control plane: it joins the aggregator, or all aggregators over which the job is
// spread, follows their streams and leaves. Package client uses it for workers in Go, launch/control for workers in C.
//
// Where a job is spread over several aggregators, each has all workers and some of the lanes. They do not talk to each other: one
// that fails the job notifies its workers, and a [Membership] notifies the others.
package membership
