// Package learn measures what synchronization policies and codecs do to learning. A small network learns handwritten digits under
// the policies of package policy, on clusters whose workers differ in speed. That network and a transformer learn with the codecs
// of package codec, and have no clock: their workers are in step. Time is virtual but in the study "real", which trains through an
// aggregator, with workers that sleep.
package learn
