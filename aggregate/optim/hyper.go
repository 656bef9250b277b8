package optim

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
)

// Hyper holds the hyper-parameters of a step, live: a job may change them at any step. A rule reads those it has.
type Hyper struct {
	LR        float64 // learning rate
	WD        float64 // weight decay
	Scale     float64 // multiplies the summed gradient first: rescale_grad, 1/N for a mean, 1/loss scale
	Clip      float64 // clip by value to ±Clip; 0 or less: do not
	Momentum  float64
	Dampening float64
	Beta1     float64
	Beta2     float64
	Eps       float64
	Alpha     float64 // RMSprop's decay, MXNet's gamma1
}

var inf = math.Inf(1)

// params are the hyper-parameters by their names in requests, each with its field and its values: from lo to below hi.
var params = []struct {
	name   string
	field  func(*Hyper) *float64
	lo, hi float64
}{
	{"lr", func(h *Hyper) *float64 { return &h.LR }, 0, inf},
	{"wd", func(h *Hyper) *float64 { return &h.WD }, 0, inf},
	{"scale", func(h *Hyper) *float64 { return &h.Scale }, -inf, inf},
	{"clip", func(h *Hyper) *float64 { return &h.Clip }, -inf, inf},
	{"momentum", func(h *Hyper) *float64 { return &h.Momentum }, 0, inf},
	{"dampening", func(h *Hyper) *float64 { return &h.Dampening }, -inf, inf},
	{"beta1", func(h *Hyper) *float64 { return &h.Beta1 }, 0, 1},
	{"beta2", func(h *Hyper) *float64 { return &h.Beta2 }, 0, 1},
	{"eps", func(h *Hyper) *float64 { return &h.Eps }, 0, inf},
	{"alpha", func(h *Hyper) *float64 { return &h.Alpha }, 0, 1},
}

// Takes lists the hyper-parameters that the rule reads, by name.
func (r Rule) Takes() []string {
	if r == Sum {
		return []string{"scale", "clip"}
	}
	takes := []string{"lr", "wd", "scale", "clip"}
	switch table[r].family {
	case momentum:
		takes = append(takes, "momentum")
		if r == SGDTorch || r == NesterovTorch {
			takes = append(takes, "dampening")
		}
	case adam:
		takes = append(takes, "beta1", "beta2", "eps")
	case adagrad:
		takes = append(takes, "eps")
	case rmsprop:
		takes = append(takes, "alpha", "eps")
		if r == RMSPropTorch {
			takes = append(takes, "momentum")
		}
	}
	return takes
}

// Hyper returns the rule's defaults with the values that are named. A name that the rule does not read is an error: what was
// meant would not happen.
func (r Rule) Hyper(named map[string]float64) (Hyper, error) {
	h := r.Defaults()
	takes := r.Takes()
	for _, name := range slices.Sorted(maps.Keys(named)) {
		if !slices.Contains(takes, name) {
			return h, fmt.Errorf("%v has no hyper-parameter %q: use %s", r, name, strings.Join(takes, ", "))
		}
		*h.Field(name) = named[name]
	}
	return h, nil
}

// Field is the hyper-parameter of a name that a rule takes.
func (h *Hyper) Field(name string) *float64 {
	for _, p := range params {
		if p.name == name {
			return p.field(h)
		}
	}
	return nil
}

// Check tells whether the rule can run with h, naming the value at fault.
func (r Rule) Check(h Hyper) error {
	if !r.Valid() {
		return fmt.Errorf("%v is no update rule", r)
	}
	takes := r.Takes()
	for _, p := range params {
		if v := *p.field(&h); slices.Contains(takes, p.name) && !(v >= p.lo && v < p.hi && !math.IsInf(v, 0)) {
			return fmt.Errorf("%v: %s is %v: use a number from %v to below %v", r, p.name, v, p.lo, p.hi)
		}
	}
	if r == NesterovTorch && (h.Momentum == 0 || h.Dampening != 0) {
		return fmt.Errorf("%v: momentum is %v and dampening %v: Nesterov's needs a momentum and no dampening",
			r, h.Momentum, h.Dampening)
	}
	return nil
}

// Scalars is what a kernel takes of a step's hyper-parameters, by the indexes below, which are those of enum rwk_scalar in
// cgo/kernel/kernel.h.
type Scalars [12]float32

// Indexes into [Scalars].
const (
	KScale = iota
	KClip  // +Inf: no clipping
	KLR
	KWD
	KKeep     // 1 - lr·wd, for a weight that shrinks by itself
	KMomentum // or beta1; 0 selects the stateless form of a rule with an optional momentum
	KGain     // what multiplies the gradient going into the first state
	KBeta2    // or alpha
	KGain2    // what multiplies the squared gradient going into its average
	KEps
	KBias1
	KBias2
)

// Derive computes the scalars of a tensor's step-th update, counted from 1. PyTorch's rules are derived in f64 and
// rounded once, as Python does; in MXNet's, what its kernels compute of their f32 parameters is computed in f32.
func Derive(r Rule, h Hyper, step uint32) Scalars {
	var k Scalars
	t := float64(max(step, 1))
	k[KScale] = float32(h.Scale)
	k[KClip] = float32(math.Inf(1))
	if h.Clip > 0 {
		k[KClip] = float32(h.Clip)
	}
	k[KLR] = float32(h.LR)
	k[KWD] = float32(h.WD)
	k[KKeep] = float32(1 - float64(h.LR*h.WD))
	k[KEps] = float32(h.Eps)
	k[KMomentum] = float32(h.Momentum)
	switch table[r].family {
	case adam:
		k[KMomentum], k[KBeta2] = float32(h.Beta1), float32(h.Beta2)
	case rmsprop:
		k[KBeta2] = float32(h.Alpha)
	}
	bias1, bias2 := 1-math.Pow(h.Beta1, t), 1-math.Pow(h.Beta2, t)

	switch r {
	case SGDMXNet, NAGMXNet:
		k[KWD] = float32(h.WD)
		lrwd := float32(k[KLR] * k[KWD])
		k[KKeep] = 1 - lrwd
		if r == SGDMXNet {
			k[KWD] = lrwd
		}
		k[KGain] = k[KMomentum] + 1
	case SGDTorch, NesterovTorch:
		k[KGain] = float32(1 - h.Dampening)
		if step <= 1 {
			k[KGain] = 1 // the buffer, still zeros, becomes the first gradient
		}
	case AdamMXNet, AdamWMXNet:
		k[KLR] = float32(h.LR * math.Sqrt(bias2) / bias1)
		k[KGain], k[KGain2] = 1-k[KMomentum], 1-k[KBeta2]
	case AdamTorch, AdamWTorch:
		k[KLR] = float32(h.LR / bias1)
		k[KBias2] = float32(math.Sqrt(bias2))
		k[KGain], k[KGain2] = float32(1-h.Beta1), float32(1-h.Beta2)
	case RMSPropMXNet:
		k[KGain2] = 1 - k[KBeta2]
	case RMSPropTorch:
		k[KGain2] = float32(1 - h.Alpha)
	case LAMB, LAMBApply:
		k[KGain], k[KGain2] = 1-k[KMomentum], 1-k[KBeta2]
		k[KBias1] = 1 - float32(math.Pow(float64(k[KMomentum]), t))
		k[KBias2] = 1 - float32(math.Pow(float64(k[KBeta2]), t))
	}
	return k
}

// DeriveLAMBApply computes the scalars of LAMB's second pass from the sums of squares of the tensor's weights and of the
// step r that the first pass gave: lr·‖w‖/‖r‖, or lr where either is zero.
func DeriveLAMBApply(h Hyper, step uint32, weightSq, stepSq float64) Scalars {
	k := Derive(LAMBApply, h, step)
	weight, r := float32(math.Sqrt(weightSq)), float32(math.Sqrt(stepSq))
	if weight != 0 && r != 0 {
		k[KLR] = float32(k[KLR]*weight) / r
	}
	return k
}
