package optim

import "fmt"

//go:generate go test -run TestTheKernelsHaveThisTable -update

// table holds all properties of each rule except its formula. The formula is the row's step here, and the kernels' step of the
// rule's name.
var table = [rules]struct {
	name   string
	states int    // number of f32 arrays, as large as the weights, that it keeps
	plain  Rule   // the rule that runs in its place where the momentum is 0, if any
	takes  string // the hyper-parameters that it reads, by their names in params
	// defaults are the framework's.
	defaults Hyper
	// check, if not nil, returns an error for values that the ranges of single hyper-parameters allow.
	check func(h Hyper) error
	// derive, if not nil, changes the scalars that follow from the hyper-parameters alone, for a step counted from 1.
	derive func(k Scalars, h Hyper, step uint32) Scalars
	// step updates an element with the scaled gradient.
	step func(e *element, k *Scalars, g float32)
}{
	Sum: {
		name: "sum", takes: "scale clip", defaults: Hyper{Scale: 1}, step: stepSum,
	},
	SGDMXNet: {
		name: "sgd_mxnet", states: 1, plain: sgdMXNetPlain, takes: "lr wd scale clip momentum",
		defaults: Hyper{LR: 0.01, Scale: 1}, derive: deriveSGDMXNet, step: stepSGDMXNet,
	},
	SGDTorch: {
		name: "sgd_torch", states: 1, plain: sgdTorchPlain, takes: "lr wd scale clip momentum dampening",
		defaults: Hyper{LR: 0.01, Scale: 1}, derive: deriveSGDTorch, step: stepSGDTorch,
	},
	NAGMXNet: {
		name: "nag_mxnet", states: 1, plain: sgdMXNetPlain, takes: "lr wd scale clip momentum",
		defaults: Hyper{LR: 0.01, Scale: 1}, derive: deriveNAGMXNet, step: stepNAGMXNet,
	},
	NesterovTorch: {
		name: "nesterov_torch", states: 1, plain: sgdTorchPlain, takes: "lr wd scale clip momentum dampening",
		defaults: Hyper{LR: 0.01, Scale: 1, Momentum: 0.9}, check: checkNesterov, derive: deriveSGDTorch, step: stepNesterovTorch,
	},
	AdamMXNet: {
		name: "adam_mxnet", states: 2, takes: "lr wd scale clip beta1 beta2 eps",
		defaults: Hyper{LR: 0.001, Scale: 1, Beta1: 0.9, Beta2: 0.999, Eps: 1e-8}, derive: deriveAdamMXNet, step: stepAdamMXNet,
	},
	AdamTorch: {
		name: "adam_torch", states: 2, takes: "lr wd scale clip beta1 beta2 eps",
		defaults: Hyper{LR: 0.001, Scale: 1, Beta1: 0.9, Beta2: 0.999, Eps: 1e-8}, derive: deriveAdamTorch, step: stepAdamTorch,
	},
	AdamWMXNet: {
		name: "adamw_mxnet", states: 2, takes: "lr wd scale clip beta1 beta2 eps",
		defaults: Hyper{LR: 0.001, Scale: 1, Beta1: 0.9, Beta2: 0.999, Eps: 1e-6}, derive: deriveAdamMXNet, step: stepAdamWMXNet,
	},
	AdamWTorch: {
		name: "adamw_torch", states: 2, takes: "lr wd scale clip beta1 beta2 eps",
		defaults: Hyper{LR: 0.001, WD: 0.01, Scale: 1, Beta1: 0.9, Beta2: 0.999, Eps: 1e-8}, derive: deriveAdamTorch,
		step: stepAdamWTorch,
	},
	AdagradMXNet: {
		name: "adagrad_mxnet", states: 1, takes: "lr wd scale clip eps",
		defaults: Hyper{LR: 0.01, Scale: 1, Eps: 1e-7}, step: stepAdagradMXNet,
	},
	AdagradTorch: {
		name: "adagrad_torch", states: 1, takes: "lr wd scale clip eps",
		defaults: Hyper{LR: 0.01, Scale: 1, Eps: 1e-10}, step: stepAdagradTorch,
	},
	RMSPropMXNet: {
		name: "rmsprop_mxnet", states: 1, takes: "lr wd scale clip alpha eps",
		defaults: Hyper{LR: 0.001, Scale: 1, Alpha: 0.9, Eps: 1e-8}, derive: deriveRMSPropMXNet, step: stepRMSPropMXNet,
	},
	RMSPropTorch: {
		name: "rmsprop_torch", states: 2, plain: rmspropTorchPlain, takes: "lr wd scale clip alpha eps momentum",
		defaults: Hyper{LR: 0.01, Scale: 1, Alpha: 0.99, Eps: 1e-8}, derive: deriveRMSPropTorch, step: stepRMSPropTorch,
	},
	LAMB: {
		name: "lamb", states: 2, takes: "lr wd scale clip beta1 beta2 eps",
		defaults: Hyper{LR: 0.001, Scale: 1, Beta1: 0.9, Beta2: 0.999, Eps: 1e-6}, derive: deriveLAMB, step: stepLAMB,
	},
	SparseAdamTorch: {
		name: "sparse_adam_torch", states: 2, takes: "lr scale clip beta1 beta2 eps",
		defaults: Hyper{LR: 0.001, Scale: 1, Beta1: 0.9, Beta2: 0.999, Eps: 1e-8}, derive: deriveSparseAdamTorch,
		step: stepSparseAdamTorch,
	},
	FtrlMXNet: {
		name: "ftrl_mxnet", states: 2, takes: "lr wd scale clip lambda1 beta",
		defaults: Hyper{LR: 0.1, Scale: 1, Lambda1: 0.01, Beta: 1}, check: checkFtrl, step: stepFtrlMXNet,
	},
	LAMBApply: {
		name: "lamb_apply", states: 2, takes: "lr wd scale clip beta1 beta2 eps", derive: deriveLAMB, step: stepLAMBApply,
	},
	sgdMXNetPlain:     {name: "sgd_mxnet_plain", step: stepSGDMXNetPlain},
	sgdTorchPlain:     {name: "sgd_torch_plain", step: stepSGDTorchPlain},
	rmspropTorchPlain: {name: "rmsprop_torch_plain", states: 1, step: stepRMSPropTorchPlain},
}

// params describes the hyper-parameters, in the order of [Hyper]'s fields: each one's name in requests, its place in a control
// record, and its values, from lo to below hi. Two of them may share a place if no rule takes both.
var params = [...]struct {
	name   string
	place  place
	lo, hi float64
}{
	{"lr", placeLR, 0, inf},
	{"wd", placeWD, 0, inf},
	{"scale", placeScale, -inf, inf},
	{"clip", placeClip, -inf, inf},
	{"momentum", placeMomentum, 0, inf},
	{"dampening", placeExtra, -inf, inf},
	{"beta1", placeMomentum, 0, 1},
	{"beta2", placeBeta2, 0, 1},
	{"eps", placeEps, 0, inf},
	{"alpha", placeBeta2, 0, 1},
	{"lambda1", placeBeta2, 0, inf},
	{"beta", placeEps, 0, inf},
}

func checkNesterov(h Hyper) error {
	if h.Momentum == 0 || h.Dampening != 0 {
		return fmt.Errorf("momentum is %v and dampening %v: Nesterov's needs a momentum and no dampening", h.Momentum, h.Dampening)
	}
	return nil
}

func checkFtrl(h Hyper) error {
	if float32(h.LR) == 0 {
		return fmt.Errorf("lr is %v, and FTRL divides by it: use a number above 0", h.LR)
	}
	return nil
}
