package models

import (
	"fmt"
	"math/bits"
	"slices"
	"strconv"
	"strings"

	"github.com/rackweave/rackweave/chunk"
)

// maxElems bounds every model: more is a mistake.
const maxElems = 1 << 48

// A synthetic model has a tensor for each syntheticTensorBytes, but at most syntheticTensors.
const (
	syntheticTensorBytes = 4 << 20
	syntheticTensors     = 8
)

// FromBytes returns a synthetic model that takes size on the wire, such as "100MB" ([ParseBytes]), with elements of type d. It has
// a few tensors, as even as possible.
func FromBytes(size string, d chunk.DType) (Model, error) {
	if d.Size() == 0 {
		return Model{}, fmt.Errorf("model of %s: %v is not a wire type: use f32, bf16 or f16", size, d)
	}
	total, err := ParseBytes(size)
	if err != nil {
		return Model{}, err
	}
	if total%uint64(d.Size()) != 0 {
		return Model{}, fmt.Errorf("model of %s: not a whole number of %v elements of %d bytes", size, d, d.Size())
	}
	elems := total / uint64(d.Size())
	if elems == 0 || elems > maxElems {
		return Model{}, fmt.Errorf("model of %s: %d elements: use 1 to %d", size, elems, uint64(maxElems))
	}
	n := min(max(total/syntheticTensorBytes, 1), syntheticTensors)
	m := Model{Name: size, Source: "synthetic"}
	for i := range n {
		// The first elems%n tensors take one more.
		share := elems / n
		if i < elems%n {
			share++
		}
		m.Tensors = append(m.Tensors, Tensor{Name: fmt.Sprintf("tensor%d", i), Shape: []int{int(share)}})
	}
	return m, nil
}

var units = map[string]uint64{
	"": 1, "B": 1,
	"KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12,
	"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40,
	"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30,
}

// ParseBytes reads a whole number of bytes with a unit: none or B, KB, MB, GB, TB (powers of 1000), KiB, MiB, GiB, TiB (powers
// of 1024), or as nccl-tests has it K, M, G, also in lower case (powers of 1024). A space may stand before the unit.
func ParseBytes(s string) (uint64, error) {
	digits := strings.TrimRight(s, "BKMGTkmgi ")
	unit, known := units[strings.TrimSpace(s[len(digits):])]
	n, err := strconv.ParseUint(digits, 10, 64)
	if err != nil || !known {
		return 0, fmt.Errorf("size %q: use a whole number with B, KB, MB, GB, TB, KiB, MiB, GiB, TiB, K, M or G, such as 100MB or 128M",
			s)
	}
	over, bytes := bits.Mul64(n, unit)
	if over != 0 {
		return 0, fmt.Errorf("size %q: does not fit in 64 bits", s)
	}
	return bytes, nil
}

// Scaled returns the model with tensors of a share of the elements, at least one each, for links that are as much slower.
func (m Model) Scaled(divisor uint64) Model {
	m.Tensors = slices.Clone(m.Tensors)
	for i, t := range m.Tensors {
		m.Tensors[i].Shape = []int{int(max(t.Elems()/divisor, 1))}
	}
	if divisor > 1 {
		m.Name = fmt.Sprintf("%s/%d", m.Name, divisor)
	}
	return m
}
