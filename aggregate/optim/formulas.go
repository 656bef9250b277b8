package optim

import "math"

// element is one weight and its states. A step updates it with the scaled gradient. Its result is w, which is the new weight if the
// rule writes weights.
type element struct {
	w float32
	s [MaxStates]float32
}

func mul(a, b float32) float32 { return float32(a * b) }

func sqrt(x float32) float32 { return float32(math.Sqrt(float64(x))) }

// clip limits x to ±bound and lets a NaN through.
func clip(x, bound float32) float32 {
	if bound < x {
		x = bound
	}
	if -bound > x {
		x = -bound
	}
	return x
}

func stepSum(e *element, k *Scalars, g float32) { e.w = clip(g, k[KClip]) }

func deriveSGDMXNet(k Scalars, h Hyper, step uint32) Scalars {
	k = deriveNAGMXNet(k, h, step)
	k[KWD] = mul(k[KLR], k[KWD])
	if k[KClip] == float32(inf) {
		k[KLR], k[KScale] = mul(k[KLR], k[KScale]), 1 // as MXNet, which scales the gradient first only if it clips
	}
	return k
}

func stepSGDMXNet(e *element, k *Scalars, g float32) {
	g = clip(g, k[KClip])
	e.s[0] = mul(k[KMomentum], e.s[0]) - mul(k[KWD], e.w) - mul(k[KLR], g)
	e.w += e.s[0]
}

func stepSGDMXNetPlain(e *element, k *Scalars, g float32) {
	e.w = mul(k[KKeep], e.w) - mul(k[KLR], clip(g, k[KClip]))
}

func deriveNAGMXNet(k Scalars, _ Hyper, _ uint32) Scalars {
	k[KKeep] = 1 - mul(k[KLR], k[KWD])
	k[KGain] = k[KMomentum] + 1
	return k
}

func stepNAGMXNet(e *element, k *Scalars, g float32) {
	g = clip(g, k[KClip])
	m := mul(k[KMomentum], e.s[0])
	e.w = e.w - m + mul(k[KGain], m-mul(k[KLR], g+mul(k[KWD], e.w)))
	e.s[0] = m - mul(k[KLR], g+mul(k[KWD], e.w))
}

func deriveSGDTorch(k Scalars, h Hyper, step uint32) Scalars {
	k[KGain] = float32(1 - h.Dampening)
	if step <= 1 {
		k[KGain] = 1 // the buffer, still zeros, becomes the first gradient
	}
	return k
}

func stepSGDTorch(e *element, k *Scalars, g float32) {
	g = clip(g, k[KClip]) + mul(k[KWD], e.w)
	e.s[0] = mul(k[KMomentum], e.s[0]) + mul(k[KGain], g)
	e.w -= mul(k[KLR], e.s[0])
}

func stepNesterovTorch(e *element, k *Scalars, g float32) {
	g = clip(g, k[KClip]) + mul(k[KWD], e.w)
	e.s[0] = mul(k[KMomentum], e.s[0]) + mul(k[KGain], g)
	e.w -= mul(k[KLR], g+mul(k[KMomentum], e.s[0]))
}

func stepSGDTorchPlain(e *element, k *Scalars, g float32) {
	e.w -= mul(k[KLR], clip(g, k[KClip])+mul(k[KWD], e.w))
}

func biases(h Hyper, step uint32) (bias1, bias2 float64) {
	t := float64(max(step, 1))
	return 1 - math.Pow(h.Beta1, t), 1 - math.Pow(h.Beta2, t)
}

// moments advances Adam's moving averages of the gradient and of its square.
func (e *element) moments(k *Scalars, g float32) {
	e.s[0] = mul(k[KMomentum], e.s[0]) + mul(k[KGain], g)
	e.s[1] = mul(k[KBeta2], e.s[1]) + mul(mul(k[KGain2], g), g)
}

func deriveAdamMXNet(k Scalars, h Hyper, step uint32) Scalars {
	bias1, bias2 := biases(h, step)
	k[KLR] = float32(h.LR * (math.Sqrt(bias2) / bias1))
	k[KGain], k[KGain2] = 1-k[KMomentum], 1-k[KBeta2]
	return k
}

func stepAdamMXNet(e *element, k *Scalars, g float32) {
	e.moments(k, clip(g+mul(k[KWD], e.w), k[KClip]))
	e.w -= mul(k[KLR], e.s[0]) / (sqrt(e.s[1]) + k[KEps])
}

func stepAdamWMXNet(e *element, k *Scalars, g float32) {
	e.moments(k, clip(g, k[KClip]))
	e.w -= mul(k[KLR], e.s[0]/(sqrt(e.s[1])+k[KEps])+mul(k[KWD], e.w))
}

func deriveAdamTorch(k Scalars, h Hyper, step uint32) Scalars {
	bias1, bias2 := biases(h, step)
	k[KLR] = float32(h.LR / bias1)
	k[KBias2] = float32(math.Sqrt(bias2))
	k[KGain], k[KGain2] = float32(1-h.Beta1), float32(1-h.Beta2)
	return k
}

func stepAdamTorch(e *element, k *Scalars, g float32) {
	e.moments(k, clip(g, k[KClip])+mul(k[KWD], e.w))
	e.w -= mul(k[KLR], e.s[0]) / (sqrt(e.s[1])/k[KBias2] + k[KEps])
}

func stepAdamWTorch(e *element, k *Scalars, g float32) {
	e.moments(k, clip(g, k[KClip]))
	e.w = mul(k[KKeep], e.w) - mul(k[KLR], e.s[0])/(sqrt(e.s[1])/k[KBias2]+k[KEps])
}

func deriveSparseAdamTorch(k Scalars, h Hyper, step uint32) Scalars {
	bias1, bias2 := biases(h, step)
	k[KLR] = float32(h.LR * math.Sqrt(bias2) / bias1)
	k[KGain], k[KGain2] = float32(1-h.Beta1), float32(1-h.Beta2)
	return k
}

func stepSparseAdamTorch(e *element, k *Scalars, g float32) {
	g = clip(g, k[KClip])
	e.s[0] += mul(g-e.s[0], k[KGain])
	e.s[1] += mul(mul(g, g)-e.s[1], k[KGain2])
	e.w -= mul(k[KLR], e.s[0]/(sqrt(e.s[1])+k[KEps]))
}

func stepAdagradMXNet(e *element, k *Scalars, g float32) {
	g = clip(g, k[KClip])
	e.s[0] += mul(g, g)
	e.w -= mul(k[KLR], g/sqrt(e.s[0]+k[KEps])+mul(k[KWD], e.w))
}

func stepAdagradTorch(e *element, k *Scalars, g float32) {
	g = clip(g, k[KClip]) + mul(k[KWD], e.w)
	e.s[0] += mul(g, g)
	e.w -= mul(k[KLR], g) / (sqrt(e.s[0]) + k[KEps])
}

func deriveRMSPropMXNet(k Scalars, _ Hyper, _ uint32) Scalars {
	k[KGain2] = 1 - k[KBeta2]
	return k
}

func stepRMSPropMXNet(e *element, k *Scalars, g float32) {
	g = clip(g+mul(k[KWD], e.w), k[KClip])
	e.s[0] = mul(k[KGain2], mul(g, g)) + mul(k[KBeta2], e.s[0])
	e.w -= mul(k[KLR], g/sqrt(e.s[0]+k[KEps]))
}

func deriveRMSPropTorch(k Scalars, h Hyper, _ uint32) Scalars {
	k[KGain2] = float32(1 - h.Alpha)
	return k
}

func stepRMSPropTorch(e *element, k *Scalars, g float32) {
	g = clip(g, k[KClip]) + mul(k[KWD], e.w)
	e.s[0] = mul(k[KBeta2], e.s[0]) + mul(mul(k[KGain2], g), g)
	e.s[1] = mul(k[KMomentum], e.s[1]) + g/(sqrt(e.s[0])+k[KEps])
	e.w -= mul(k[KLR], e.s[1])
}

func stepRMSPropTorchPlain(e *element, k *Scalars, g float32) {
	g = clip(g, k[KClip]) + mul(k[KWD], e.w)
	e.s[0] = mul(k[KBeta2], e.s[0]) + mul(mul(k[KGain2], g), g)
	e.w -= mul(k[KLR], g) / (sqrt(e.s[0]) + k[KEps])
}

// stepFtrlMXNet clips z where MXNet multiplies its sign by λ and the weight by whether |z| > λ. The values are equal, except for
// the sign of a weight of 0.
func stepFtrlMXNet(e *element, k *Scalars, g float32) {
	root := sqrt(e.s[1])
	g = clip(g, k[KClip])
	e.s[1] += mul(g, g)
	e.s[0] += g - mul(sqrt(e.s[1])-root, e.w)/k[KLR]
	e.w = (clip(e.s[0], k[KBeta2]) - e.s[0]) / ((k[KEps]+sqrt(e.s[1]))/k[KLR] + k[KWD])
}

func deriveLAMB(k Scalars, _ Hyper, step uint32) Scalars {
	t := float64(max(step, 1))
	k[KGain], k[KGain2] = 1-k[KMomentum], 1-k[KBeta2]
	k[KBias1] = 1 - float32(math.Pow(float64(k[KMomentum]), t))
	k[KBias2] = 1 - float32(math.Pow(float64(k[KBeta2]), t))
	return k
}

// lamb returns LAMB's step before it is scaled by the norms.
func (e *element) lamb(k *Scalars) float32 {
	return (e.s[0]/k[KBias1])/(sqrt(e.s[1]/k[KBias2])+k[KEps]) + mul(k[KWD], e.w)
}

func stepLAMB(e *element, k *Scalars, g float32) {
	e.moments(k, clip(g, k[KClip]))
	e.w = e.lamb(k)
}

func stepLAMBApply(e *element, k *Scalars, _ float32) {
	e.w -= mul(k[KLR], e.lamb(k))
}
