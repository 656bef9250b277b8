package simrack

import (
	"encoding/binary"
	"math"

	"github.com/rackweave/rackweave/aggregate/optim"
	"github.com/rackweave/rackweave/chunk"
)

// store writes numbers to memory in a type that holds them exactly.
func store(d chunk.DType, memory []byte, x []float32) {
	for i, v := range x {
		switch d {
		case chunk.BF16:
			binary.NativeEndian.PutUint16(memory[2*i:], optim.BF16(v))
		case chunk.F16:
			binary.NativeEndian.PutUint16(memory[2*i:], optim.F16(v))
		default:
			binary.NativeEndian.PutUint32(memory[4*i:], math.Float32bits(v))
		}
	}
}

// load reads n numbers from memory.
func load(d chunk.DType, memory []byte, n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		switch d {
		case chunk.BF16:
			x[i] = optim.FromBF16(binary.NativeEndian.Uint16(memory[2*i:]))
		case chunk.F16:
			x[i] = optim.FromF16(binary.NativeEndian.Uint16(memory[2*i:]))
		default:
			x[i] = math.Float32frombits(binary.NativeEndian.Uint32(memory[4*i:]))
		}
	}
	return x
}
