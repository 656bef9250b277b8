package models

import "fmt"

// builder collects tensors. Shapes and names are PyTorch's: a convolution is [out, in, height, width], a fully connected layer
// [out, in].
type builder struct {
	tensors []Tensor
	// side is the height and width of what convolutions give from here on: a weight is used once for each position.
	side int
	// work is, by tensor, the multiplications of one sample's forward pass.
	work []float64
}

func (b *builder) add(name string, shape ...int) {
	b.tensors = append(b.tensors, Tensor{Name: name, Shape: shape})
	b.work = append(b.work, 0)
}

// uses notes that the last tensor's elements are each used so many times in a forward pass.
func (b *builder) uses(n int) {
	last := len(b.tensors) - 1
	b.work[last] = float64(b.tensors[last].Elems()) * float64(n)
}

func (b *builder) conv(name string, in, out, height, width int) {
	b.add(name+".weight", out, in, height, width)
	b.uses(b.side * b.side)
}

func (b *builder) biasedConv(name string, in, out, k int) {
	b.conv(name, in, out, k, k)
	b.add(name+".bias", out)
}

// norm is a batch or layer normalisation: a scale and a shift for each channel.
func (b *builder) norm(name string, channels int) {
	b.add(name+".weight", channels)
	b.add(name+".bias", channels)
}

func (b *builder) linear(name string, in, out int) {
	b.add(name+".weight", out, in)
	b.uses(1)
	b.add(name+".bias", out)
}

func at(prefix string, i int) string { return fmt.Sprintf("%s.%d", prefix, i) }
