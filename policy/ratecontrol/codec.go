package ratecontrol

// Codec is a format that a group may use.
type Codec struct {
	Name string
	// Bytes returns the length of the payload for a chunk of so many elements.
	Bytes func(elems int) int
	// Distortion is the share of the energy that is expected to be lost, ‖x-C(x)‖²/‖x‖², until it has been measured.
	Distortion float64
}
