// Package optim is the arithmetic of aggregation in plain Go: the update rules by name, the scalars that each step derives from its
// hyper-parameters, and a reference for every kernel of cgo/kernel, with equal bits.
//
// A new rule is a constant (rule.go), a row of the table (table.go), and its formula: here (formulas.go), and as a step of the
// kernels (cgo/kernel/rules.h). go generate writes the kernels' copy of the table. The tests also compare with the framework's own
// results (testdata/goldens.py).
//
// MXNet and PyTorch write different formulas under the same names, so a rule is named for its framework. They differ in the order
// of weight decay and clipping, in whether the learning rate is inside the momentum, and in whether epsilon is under the root.
// Every rule multiplies the summed gradient by the scale first.
//
// Everything is f32, each product rounded before it is added (an explicit conversion forbids fusing), in the order of the source.
// [Derive] computes in f64 the values that the frameworks compute once per step in f64, and rounds once.
//
// This package and the kernels give equal bits at every width, with one exception: the sign and payload of a NaN are unspecified
// after arithmetic. The comment of [Convert] defines its treatment of NaNs.
package optim
