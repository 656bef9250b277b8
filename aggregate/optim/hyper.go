package optim

import "math"

// Hyper holds the hyper-parameters of a step. A job may change them at any step. A rule reads only the ones that it takes.
type Hyper struct {
	LR        float64 // learning rate
	WD        float64 // weight decay
	Scale     float64 // multiplies the summed gradient first: rescale_grad, 1/N for a mean, 1/loss scale
	Clip      float64 // clips by value to ±Clip; if 0 or less, nothing is clipped
	Momentum  float64
	Dampening float64
	Beta1     float64
	Beta2     float64
	Eps       float64
	Alpha     float64 // RMSprop's decay, MXNet's gamma1
	Lambda1   float64 // FTRL's L1 coefficient, MXNet's lamda1
	Beta      float64 // added to the root in FTRL's learning rate by coordinate
}

var inf = math.Inf(1)

// place is a position among the values of a control record.
type place int

// These are the places, named for most rules' use of them, in the order of [chunk.TensorRecord]'s fields.
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

// Scalars holds the values that a kernel takes from a step's hyper-parameters, by the indexes below.
type Scalars [scalars]float32

// These are the indexes into [Scalars]. The kernels' enum rwk_scalar is generated from their names.
const (
	KScale = iota
	KClip  // +Inf for no clipping
	KLR
	KWD
	KKeep     // 1 - lr·wd, for a weight that shrinks by itself
	KMomentum // or beta 1; 0 selects the form of a rule without momentum
	KGain     // the factor of the gradient that enters the first state
	KBeta2    // or alpha, or lambda 1
	KGain2    // the factor of the squared gradient that enters its average
	KEps      // or beta
	KBias1
	KBias2

	scalars
)

var scalarNames = [scalars]string{
	"SCALE", "CLIP", "LR", "WD", "KEEP", "MOMENTUM", "GAIN", "BETA2", "GAIN2", "EPS", "BIAS1", "BIAS2",
}
