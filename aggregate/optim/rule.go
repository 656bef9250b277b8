package optim

// Rule is an update rule. Values are those of enum rwk_rule in cgo/kernel, which is generated from the table of rules.
type Rule uint8

// These are the rules that a job may name.
const (
	// Sum updates nothing. The result is the scaled and clipped sum. It is the rule of mode aggregate.
	Sum Rule = iota
	// SGDMXNet is SGDKernel and SGDMomKernel of MXNet 1.9.1's src/operator/optimizer_op-inl.h: decay outside the clip,
	// learning rate inside the momentum.
	SGDMXNet
	// SGDTorch is torch.optim.SGD (torch/optim/sgd.py, _single_tensor_sgd) without Nesterov: decay in the gradient, the
	// first gradient copied into the momentum, learning rate outside it.
	SGDTorch
	// NAGMXNet is NAGMomKernel of optimizer_op-inl.h as NAG.update runs it, in place: the decay that enters the momentum is that of
	// the weight just written. Without momentum MXNet's NAG runs SGDKernel, and so does this rule.
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
	// LAMB is LambUpdatePhaseOneKernel of optimizer_op-inl.h with bias correction. It advances the moments, leaves the weight alone
	// and gives the step r as the result. The second pass needs [SumSq] of w and r over the whole tensor. NVIDIA's NVLAMB is this rule
	// with the gradient's global norm clipped beforehand, through the scale.
	LAMB
	// SparseAdamTorch is torch.optim.SparseAdam (torch/optim/_functional.py, sparse_adam): the averages move by a share of their
	// distance from the gradient, epsilon is added to a root that is not corrected, and weights do not decay.
	SparseAdamTorch
	// FtrlMXNet is FtrlUpdateKernel of optimizer_op-inl.h, and FtrlDnsRspDnsKernel for rows. It computes the weight anew from its
	// states z and n, so a weight to which no gradient has come becomes 0 where a standard update runs over it.
	FtrlMXNet

	named // number of rules that a job may name
)

// These are the rules that run in place of others.
const (
	// LAMBApply is LAMB's second pass, LambUpdatePhaseTwoKernel without bounds. It computes the step again from the moments, so the
	// step is not stored. Its scalars come from [DeriveLAMBApply].
	LAMBApply = named + iota
	// These are the forms of rules whose momentum is 0.
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

// Valid reports whether r is a rule, including the rules that a job may not name.
func (r Rule) Valid() bool { return r < rules }

// MaxStates is the number of f32 state arrays for which the kernels have room. No rule keeps more.
const MaxStates = 3

// NeedsNorms reports whether the rule takes two passes with the tensor's norms between them. Such a rule runs only where a step is
// committed for a whole tensor.
func (r Rule) NeedsNorms() bool { return r == LAMB }
