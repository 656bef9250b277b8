// Package optim is the arithmetic of aggregation in plain Go: the update rules by name, the scalars that each step derives from
// its hyper-parameters, and a reference for every kernel of cgo/kernel, which gives the same bits.
//
// A new rule is a constant (rule.go), a row of the table (table.go), and its formula: here (formulas.go), and as a step of the
// kernels (cgo/kernel/rules.h). go generate writes what the kernels know of the table. The tests want the framework's own
// results, too (testdata/goldens.py).
//
// MXNet and PyTorch write different formulas under the same names, so a rule is named for its framework. They differ in where
// weight decay stands relative to clipping, whether the learning rate is inside the momentum, and whether epsilon is under the
// root. Every rule multiplies the summed gradient by the scale first.
//
// Everything is f32, each product rounded before it is added (an explicit conversion forbids fusing), in the order the
// source is written. What the frameworks compute once per step in f64, [Derive] does too, and rounds once.
//
// This package and the kernels give equal bits at every width, with one exception: the sign and payload of a NaN are unspecified
// where arithmetic made it or met it. [Convert] moves NaNs exactly as its comment says.
package optim
