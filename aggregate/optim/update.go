package optim

import (
	"fmt"
	"math"
)

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

// Update runs one step of a rule over len(w) elements: it sums grads in index order, updates w and the states in place and
// writes the result to out, unless out is nil. The result is the new weight; for [Sum], whose w may be nil, the scaled
// sum, and for [LAMB] the step. A missing state or arrays of different lengths panic.
func Update(r Rule, k *Scalars, w []float32, states [MaxStates][]float32, grads [][]float32, out []float32) {
	n := len(grads[0])
	check := func(what string, a []float32, needed bool) {
		if len(a) != n && (needed || a != nil) {
			panic(fmt.Sprintf("optim: %v: %s has %d elements, the gradient %d", r, what, len(a), n))
		}
	}
	for _, g := range grads {
		check("a gradient", g, true)
	}
	check("w", w, r != Sum)
	check("out", out, false)
	kept := r.States(Hyper{Momentum: float64(k[KMomentum])})
	for i, s := range states {
		check("a state", s, i < kept)
	}
	for i := range n {
		g := grads[0][i]
		for _, more := range grads[1:] {
			g += more[i]
		}
		var e element
		if w != nil {
			e.w = w[i]
		}
		for j := range kept {
			e.s[j] = states[j][i]
		}
		result := e.step(r, k, mul(k[KScale], g))
		if r.Updates() {
			w[i] = e.w
		}
		for j := range kept {
			states[j][i] = e.s[j]
		}
		if out != nil {
			out[i] = result
		}
	}
}

// element is one weight and its states.
type element struct {
	w float32
	s [MaxStates]float32
}

// step updates e with the scaled gradient g and returns the result.
func (e *element) step(r Rule, k *Scalars, g float32) float32 {
	lr, wd, eps := k[KLR], k[KWD], k[KEps]
	switch r {
	case Sum:
		return clip(g, k[KClip])

	case SGDMXNet:
		g = clip(g, k[KClip])
		if k[KMomentum] == 0 {
			e.w = mul(k[KKeep], e.w) - mul(lr, g)
			break
		}
		e.s[0] = mul(k[KMomentum], e.s[0]) - mul(wd, e.w) - mul(lr, g)
		e.w += e.s[0]

	case NAGMXNet:
		g = clip(g, k[KClip])
		if k[KMomentum] == 0 {
			e.w = mul(k[KKeep], e.w) - mul(lr, g)
			break
		}
		m := mul(k[KMomentum], e.s[0])
		e.w = e.w - m + mul(k[KGain], m-mul(lr, g+mul(wd, e.w)))
		e.s[0] = m - mul(lr, g+mul(wd, e.w))

	case SGDTorch, NesterovTorch:
		g = clip(g, k[KClip]) + mul(wd, e.w)
		if k[KMomentum] != 0 {
			e.s[0] = mul(k[KMomentum], e.s[0]) + mul(k[KGain], g)
			if r == SGDTorch {
				g = e.s[0]
			} else {
				g += mul(k[KMomentum], e.s[0])
			}
		}
		e.w -= mul(lr, g)

	case AdamMXNet:
		g = clip(g+mul(wd, e.w), k[KClip])
		e.moments(k, g)
		e.w -= mul(lr, e.s[0]) / (sqrt(e.s[1]) + eps)

	case AdamTorch:
		g = clip(g, k[KClip]) + mul(wd, e.w)
		e.moments(k, g)
		e.w -= mul(lr, e.s[0]) / (sqrt(e.s[1])/k[KBias2] + eps)

	case AdamWMXNet:
		e.moments(k, clip(g, k[KClip]))
		e.w -= mul(lr, e.s[0]/(sqrt(e.s[1])+eps)+mul(wd, e.w))

	case AdamWTorch:
		e.moments(k, clip(g, k[KClip]))
		e.w = mul(k[KKeep], e.w) - mul(lr, e.s[0])/(sqrt(e.s[1])/k[KBias2]+eps)

	case AdagradMXNet:
		g = clip(g, k[KClip])
		e.s[0] += mul(g, g)
		e.w -= mul(lr, g/sqrt(e.s[0]+eps)+mul(wd, e.w))

	case AdagradTorch:
		g = clip(g, k[KClip]) + mul(wd, e.w)
		e.s[0] += mul(g, g)
		e.w -= mul(lr, g) / (sqrt(e.s[0]) + eps)

	case RMSPropMXNet:
		g = clip(g+mul(wd, e.w), k[KClip])
		e.s[0] = mul(k[KGain2], mul(g, g)) + mul(k[KBeta2], e.s[0])
		e.w -= mul(lr, g/sqrt(e.s[0]+eps))

	case RMSPropTorch:
		g = clip(g, k[KClip]) + mul(wd, e.w)
		e.s[0] = mul(k[KBeta2], e.s[0]) + mul(mul(k[KGain2], g), g)
		root := sqrt(e.s[0]) + eps
		if k[KMomentum] == 0 {
			e.w -= mul(lr, g) / root
			break
		}
		e.s[1] = mul(k[KMomentum], e.s[1]) + g/root
		e.w -= mul(lr, e.s[1])

	case LAMB:
		e.moments(k, clip(g, k[KClip]))
		return e.lamb(k)

	case LAMBApply:
		e.w -= mul(lr, e.lamb(k))

	default:
		panic("optim: " + r.String() + " is no update rule")
	}
	return e.w
}

// moments advances Adam's moving averages of the gradient and of its square.
func (e *element) moments(k *Scalars, g float32) {
	e.s[0] = mul(k[KMomentum], e.s[0]) + mul(k[KGain], g)
	e.s[1] = mul(k[KBeta2], e.s[1]) + mul(mul(k[KGain2], g), g)
}

// lamb is LAMB's step before it is scaled by the norms.
func (e *element) lamb(k *Scalars) float32 {
	return (e.s[0]/k[KBias1])/(sqrt(e.s[1]/k[KBias2])+k[KEps]) + mul(k[KWD], e.w)
}
