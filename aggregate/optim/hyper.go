package optim

import (
	"math"
)

// Hyper holds the hyper-parameters of a step, live: a job may change them at any step. A rule reads those that it takes.
type Hyper struct {
	LR        float64 // learning rate
	WD        float64 // weight decay
	Scale     float64 // multiplies the summed gradient first: rescale_grad, 1/N for a mean, 1/loss scale
	Clip      float64 // clips by value to ±Clip; 0 or less does not clip
	Momentum  float64
	Dampening float64
	Beta1     float64
	Beta2     float64
	Eps       float64
	Alpha     float64 // RMSprop's decay, MXNet's gamma1
}

var inf = math.Inf(1)

// place is where a hyper-parameter stands among the values of a control record.
type place int

// The places, named for what most rules keep there, in the order of [chunk.TensorRecord]'s fields.
const (
	placeLR place = iota
	placeWD
	placeScale
	placeClip
	placeMomentum
	placeBeta2
	placeEps
	placeExtra
)
