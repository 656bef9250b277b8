// Package ratecontrol chooses the codecs of a job's gradients while it runs, so that a step's bytes fit what the links carry. It is
// pure: a [Controller] takes events and answers with acts. It knows a codec by its name, its lengths and its distortion alone.
package ratecontrol
