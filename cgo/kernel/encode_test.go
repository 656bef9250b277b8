package kernel

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/codec"
)

// specs are all codecs, with different parameters.
var specs = func() (out []codec.Spec) {
	for _, text := range append(codec.Names(), "int8:stochastic", "int4:stochastic", "topk:10%", "topk:1", "topk:60%") {
		s, err := codec.Parse(text)
		if err != nil {
			panic(err)
		}
		out = append(out, s)
	}
	return out
}()

// encodings are chunks' lengths, around groups and blocks.
var encodings = []int{1, 5, 6, 7, 8, 9, 63, 64, 65, 130, 511, 512, 513, 576, 700, 1023, 1024, 1025, 2048, 4097, 8192, 8999}

// values draws numbers of a kind that a codec treats in its own way.
func values(rnd *rand.Rand, n int) []float32 {
	x := make([]float32, n)
	kind := rnd.IntN(8)
	for i := range x {
		x[i] = float32(rnd.NormFloat64())
		switch kind {
		case 0: // ties
			x[i] = float32(rnd.IntN(5)-2) / 4
		case 1: // some zeros of both signs, in whole blocks, too
			if i/512%2 == 0 || rnd.IntN(3) == 0 {
				x[i] = float32(math.Copysign(0, rnd.Float64()-0.5))
			}
		case 2: // subnormals
			x[i] = math.Float32frombits(rnd.Uint32() & 0x800fffff)
		case 3: // far apart
			x[i] = float32(math.Ldexp(float64(x[i]), rnd.IntN(250)-140))
		case 4: // large
			x[i] *= 0x1p120
		}
	}
	if kind == 5 && rnd.IntN(2) == 0 {
		x[rnd.IntN(n)] = specials[rnd.IntN(len(specials))]
	}
	return x
}

// checkEncoding encodes by the kernel and by package codec.
func checkEncoding(rnd *rand.Rand, a *arena, isa ISA, s codec.Spec, d chunk.DType, n int) error {
	a.reset()
	memory := values(rnd, n)
	keep := a.place(memory, chunk.F32)
	mem := a.place(values(rnd, n), d)
	want := make([]byte, 4*n)
	around := a.take(len(want)+2*margin, chunk.BF16)
	for i := range around {
		around[i] = mark
	}
	payload := around[margin+rnd.IntN(4):]
	key := codec.Key{Seed: rnd.Uint64(), Step: rnd.Uint32(), Tensor: rnd.Uint32(), Rank: rnd.Uint32(), First: rnd.Uint64N(1 << 36)}
	e := Encoding{
		Values: address(mem), Memory: address(keep), Payload: address(payload), N: uint64(n), Seed: key.Seed, First: key.First,
		Param: s.Param,
		Step:  key.Step, Tensor: key.Tensor, Rank: key.Rank, Factor: 1, Type: uint8(d), Codec: uint8(s.ID),
	}
	if s.Stochastic {
		e.Stochastic = 1
	}
	var length int
	form := rnd.IntN(3)
	switch form {
	case 0:
		e.Reference = 1
		length = s.EncodeChange(want, decoded(mem, d), memory, key)
	default:
		e.Factor = []float32{1, 0.3}[form-1]
		length = s.Encode(want, decoded(mem, d), memory, e.Factor, key)
	}
	if got := e.Run(isa); got != length {
		return fmt.Errorf("form %d: %d bytes, want %d", form, got, length)
	}
	if length == 4*n {
		if err := sameBits(decoded(payload[:length], chunk.F32), decoded(want, chunk.F32)); err != nil {
			return fmt.Errorf("form %d: raw: %w", form, err)
		}
	} else if err := equalBytes(payload[:length], want[:length]); err != nil {
		return fmt.Errorf("form %d: %w", form, err)
	}
	if err := sameBits(decoded(keep, chunk.F32), memory); err != nil {
		return fmt.Errorf("form %d: memory: %w", form, err)
	}
	for i, b := range around {
		if at := i - (len(around) - len(payload)); (at < 0 || at >= length) && b != mark {
			return fmt.Errorf("form %d: byte %d of %d was written", form, at, length)
		}
	}
	return nil
}

func TestPayloadsAreTheReferencesBytes(t *testing.T) {
	eachISA(t, func(t *testing.T, isa ISA) {
		a := newArena(t, 1<<18)
		rnd := rand.New(rand.NewPCG(11, uint64(isa)))
		for _, s := range specs {
			for _, d := range dtypes {
				each := 3
				if testing.Short() {
					each = 1
				}
				for i, n := range encodings {
					for range each {
						if i%3 == 0 {
							n = 1 + rnd.IntN(9000)
						}
						if err := checkEncoding(rnd, a, isa, s, d, n); err != nil {
							t.Fatalf("%v of %v[%d]: %v", s, d, n, err)
						}
					}
				}
			}
		}
	})
}
