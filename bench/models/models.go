// Package models has the shapes that comm-only benchmarks exchange: those of published models, generated from descriptions of their
// architectures ([Get]), and synthetic ones of a given size ([FromBytes]). A model is a value without data.
package models

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/agnivade/levenshtein"

	"github.com/rackweave/rackweave/chunk"
)

// Tensor is one parameter. Forward and Backward are the times that its layer computes in a replay, 0 for infinitely fast.
type Tensor struct {
	Name              string
	Shape             []int
	Forward, Backward time.Duration
}

// Elems returns the number of elements.
func (t Tensor) Elems() uint64 {
	n := uint64(1)
	for _, d := range t.Shape {
		n *= uint64(d)
	}
	return n
}

// Model is a list of parameters, in the order of the forward pass. Source names the origin of the shapes.
type Model struct {
	Name    string
	Tensors []Tensor
	Source  string
	// Compute has the origin of the tensors' times. Without times it has no Time.
	Compute Compute
}

// Params returns the number of elements of all tensors.
func (m Model) Params() uint64 {
	var n uint64
	for _, t := range m.Tensors {
		n += t.Elems()
	}
	return n
}

// Chunkable returns the tensors as a plan takes them, all with one wire type.
func (m Model) Chunkable(d chunk.DType) []chunk.Tensor {
	ts := make([]chunk.Tensor, len(m.Tensors))
	for i, t := range m.Tensors {
		ts[i] = chunk.Tensor{Name: t.Name, Elems: t.Elems(), DType: d}
	}
	return ts
}

// builtin is a model that [Get] knows.
type builtin struct {
	name, source string
	build        func(*builder)
	compute      Compute // as published; it may have no Time
}

var builtins = []builtin{
	{"alexnet", "Krizhevsky, arXiv:1404.5997, as torchvision.models.alexnet", alexNet, phub(16, 32)},
	{"vgg16", "Simonyan and Zisserman, arXiv:1409.1556, configuration D, as torchvision.models.vgg16", vgg16, Compute{}},
	{"vgg19", "Simonyan and Zisserman, arXiv:1409.1556, configuration E, as torchvision.models.vgg19", vgg19, phub(268, 32)},
	{"googlenet", "Szegedy et al., arXiv:1409.4842, as torchvision.models.googlenet without auxiliary heads", googLeNet, phub(100, 32)},
	{"inception-v3", "Szegedy et al., arXiv:1512.00567, as torchvision.models.inception_v3 without the auxiliary head", inceptionV3, phub(225, 32)},
	{"resnet50", "He et al., arXiv:1512.03385, as torchvision.models.resnet50", resNet50, phub(161, 32)},
	{"resnet269", "He et al., arXiv:1603.05027, as MXNet's example/image-classification/symbols/resnet.py with 269 layers", resNet269, phub(350, 16)},
	{"bert-large", "Devlin et al., arXiv:1810.04805, uncased, with the pooler and no head, as transformers.BertModel", bertLarge, Compute{}},
	{"gpt2-xl", "Radford et al., Language Models are Unsupervised Multitask Learners, as transformers.GPT2Model", gpt2XL, Compute{}},
}

// Names returns the names of the built-in models.
func Names() []string {
	names := make([]string, len(builtins))
	for i, b := range builtins {
		names[i] = b.name
	}
	return names
}

// Get returns a built-in model. The error for another name lists all names, and the nearest one.
func Get(name string) (Model, error) {
	for _, b := range builtins {
		if b.name == name {
			var to builder
			b.build(&to)
			m := Model{Name: b.name, Tensors: to.tensors, Source: b.source, Compute: b.compute}
			m.spread(to.work)
			return m, nil
		}
	}
	edits := func(known string) int { // of as much of it as is given
		return levenshtein.ComputeDistance(strings.ToLower(name), known[:min(len(known), len(name))])
	}
	near := slices.MinFunc(Names(), func(a, b string) int { return edits(a) - edits(b) })
	return Model{}, fmt.Errorf("unknown model %q: did you mean %s? known are %s", name, near, strings.Join(Names(), ", "))
}
