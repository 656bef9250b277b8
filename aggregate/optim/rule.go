package optim

import (
	"fmt"
	"slices"
	"strings"

	"github.com/agnivade/levenshtein"
)

// Rule is an update rule. Values are those of enum rwk_rule in cgo/kernel, which is generated from the table of rules.
type Rule uint8

// The rules that a job may name.
const (
	// Sum updates nothing: the result is the scaled and clipped sum. Aggregate-only mode.
	Sum Rule = iota
	// SGDMXNet is SGDKernel and SGDMomKernel of MXNet 1.9.1's src/operator/optimizer_op-inl.h: decay outside the clip,
	// learning rate inside the momentum.
	SGDMXNet
	// SGDTorch is torch.optim.SGD (torch/optim/sgd.py, _single_tensor_sgd) without Nesterov: decay in the gradient, the
	// first gradient copied into the momentum, learning rate outside it.
	SGDTorch
	// NAGMXNet is NAGMomKernel of optimizer_op-inl.h as NAG.update runs it, in place: the decay that enters the momentum is
	// that of the weight just written. Without momentum MXNet's NAG runs SGDKernel, and so does this.
	NAGMXNet
	// NesterovTorch is torch.optim.SGD with nesterov=True.
	NesterovTorch
	// AdamMXNet is AdamUpdateKernel of optimizer_op-inl.h (decay inside the clip) with the bias correction folded into the
	// learning rate as python/mxnet/optimizer/optimizer.py does.
	AdamMXNet
	// AdamTorch is torch.optim.Adam (torch/optim/adam.py, _single_tensor_adam): each moment corrected by itself.
	AdamTorch
	// AdamWMXNet is AdamWKernel of src/operator/contrib/adamw-inl.h, driven as MXNet 2's python/mxnet/optimizer/adamW.py
	// drives it: lr 1, eta the bias-corrected learning rate.
	AdamWMXNet
	// AdamWTorch is torch.optim.AdamW (torch/optim/adamw.py, _single_tensor_adamw): the weight shrinks first.
	AdamWTorch
	// AdagradMXNet is AdaGrad.update of MXNet 1.9.1's python/mxnet/optimizer/optimizer.py: epsilon under the root, decay
	// outside the history.
	AdagradMXNet
	// AdagradTorch is torch.optim.Adagrad (torch/optim/adagrad.py) without lr_decay: fold that into the learning rate.
	AdagradTorch
	// RMSPropMXNet is RMSPropUpdateKernel of optimizer_op-inl.h (not centered): epsilon under the root, decay inside the clip.
	RMSPropMXNet
	// RMSPropTorch is torch.optim.RMSprop (torch/optim/rmsprop.py), not centered, with or without momentum.
	RMSPropTorch
	// LAMB is LambUpdatePhaseOneKernel of optimizer_op-inl.h with bias correction: it advances the moments, leaves the
	// weight alone and gives the step r as the result. [SumSq] of w and r over the whole tensor is what the second pass
	// needs. NVIDIA's NVLAMB is this with the gradient's global norm clipped beforehand, through the scale.
	LAMB

	named // how many rules a job may name
)

// The rules that others become.
const (
	// LAMBApply is LAMB's second pass, LambUpdatePhaseTwoKernel without bounds: the step is computed again from the moments,
	// so none is kept. Its scalars come from [DeriveLAMBApply].
	LAMBApply = named + iota
	// The forms of rules whose momentum is 0.
	sgdMXNetPlain
	sgdTorchPlain
	rmspropTorchPlain

	rules
)

// Rules lists the rules that a job may name, in the order of their values.
func Rules() []Rule {
	all := make([]Rule, 0, named)
	for r := range named {
		all = append(all, r)
	}
	return all
}

// Valid reports whether r is a rule, one that a job may not name included.
func (r Rule) Valid() bool { return r < rules }

func (r Rule) String() string {
	if !r.Valid() {
		return fmt.Sprintf("rule(%d)", uint8(r))
	}
	return table[r].name
}

// Parse reads the name of a rule that a job may use. The error lists the names and guesses which was meant.
func Parse(name string) (Rule, error) {
	names := make([]string, 0, named)
	for _, r := range Rules() {
		if table[r].name == name {
			return r, nil
		}
		names = append(names, table[r].name)
	}
	// A name without its framework is nearer than one that shares a few letters.
	distance := func(s string) int {
		bare, _, _ := strings.Cut(s, "_")
		return min(levenshtein.ComputeDistance(strings.ToLower(name), s), levenshtein.ComputeDistance(strings.ToLower(name), bare)+1)
	}
	nearest := slices.MinFunc(names, func(a, b string) int { return distance(a) - distance(b) })
	return 0, fmt.Errorf("unknown optimizer %q: did you mean %s? The names are %s", name, nearest, strings.Join(names, ", "))
}

// MaxStates is how many f32 state arrays the kernels have room for; no rule keeps more.
const MaxStates = 3

// States returns how many f32 arrays, each as large as the weights, the rule keeps between steps. They start as zeros.
func (r Rule) States(h Hyper) int { return table[r.form(float32(h.Momentum))].states }

// form returns the rule that runs where r is asked for with a momentum, or a beta 1.
func (r Rule) form(momentum float32) Rule {
	if plain := table[r].plain; plain != 0 && momentum == 0 {
		return plain
	}
	return r
}

// Defaults returns the hyper-parameters that the rule's framework uses when told nothing.
func (r Rule) Defaults() Hyper { return table[r].defaults }

// Updates reports whether the rule writes the weights; the others give a result only.
func (r Rule) Updates() bool { return r != Sum && !r.NeedsNorms() }

// NeedsNorms reports whether the rule takes two passes with the tensor's norms between them, and so runs only where a step
// is committed for a whole tensor.
func (r Rule) NeedsNorms() bool { return r == LAMB }
