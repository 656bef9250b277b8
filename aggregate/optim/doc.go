// Package optim is the arithmetic of aggregation in plain Go: the update rules by name, the scalars each step derives from
// its hyper-parameters, and a reference for every kernel of cgo/kernel, which must give the same bits.
//
// MXNet and PyTorch write different formulas under the same names, so a rule carries its framework's: where weight decay
// stands relative to clipping, whether the learning rate is inside the momentum, whether epsilon is under the root. In every
// rule the summed gradient is multiplied by the scale first.
//
// Everything is f32, each product rounded before it is added (an explicit conversion forbids fusing), in the order the
// source is written. What the frameworks compute once per step in f64, [Derive] does too, and rounds once.
//
// Bits are equal between this package and the kernels at every width, with one exception: a NaN is a NaN in all of them,
// but which NaN (its sign and payload) is unspecified where arithmetic made it or met it. [Convert] moves NaNs exactly as
// its comment says.
package optim
