// Package learn measures what synchronization policies and codecs do to learning. It trains a small network on scikit-learn's
// digits under the policies of package policy, on clusters whose workers differ in speed, and that network and a transformer with
// the codecs of package codec.
//
// Time is virtual, in all studies but one: a discrete-event simulation draws how long each step takes, gives the pushes to the
// policy in their order, and computes every gradient for real, on the parameters that the worker had fetched. The same seed gives
// the same run. The studies of codecs have no clock: their workers are in step. The study "real" trains through an aggregator,
// with workers that sleep.
package learn
