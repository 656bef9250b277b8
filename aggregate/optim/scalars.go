package optim

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
	KBeta2    // or alpha
	KGain2    // the factor of the squared gradient that enters its average
	KEps
	KBias1
	KBias2

	scalars
)

var scalarNames = [scalars]string{
	"SCALE", "CLIP", "LR", "WD", "KEEP", "MOMENTUM", "GAIN", "BETA2", "GAIN2", "EPS", "BIAS1", "BIAS2",
}
