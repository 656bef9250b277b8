package optim

// Scalars is what a kernel takes of a step's hyper-parameters, by the indexes below.
type Scalars [scalars]float32

// Indexes into [Scalars]; enum rwk_scalar of the kernels is generated from their names.
const (
	KScale = iota
	KClip  // +Inf: no clipping
	KLR
	KWD
	KKeep     // 1 - lr·wd, for a weight that shrinks by itself
	KMomentum // or beta 1; 0 selects the form of a rule that needs none
	KGain     // what multiplies the gradient that goes into the first state
	KBeta2    // or alpha
	KGain2    // what multiplies the squared gradient that goes into its average
	KEps
	KBias1
	KBias2

	scalars
)

var scalarNames = [scalars]string{
	"SCALE", "CLIP", "LR", "WD", "KEEP", "MOMENTUM", "GAIN", "BETA2", "GAIN2", "EPS", "BIAS1", "BIAS2",
}
