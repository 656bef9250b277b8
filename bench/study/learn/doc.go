// Package learn measures what synchronization policies do to learning. It trains a small network on scikit-learn's digits under the
// policies of package policy, on clusters whose workers differ in speed.
//
// Time is virtual, in all studies but one: a discrete-event simulation draws how long each step takes, gives the pushes to the
// policy in their order, and computes every gradient for real, on the parameters that the worker had fetched. The same seed gives
// the same run. The study "real" trains through an aggregator, with workers that sleep.
package learn
