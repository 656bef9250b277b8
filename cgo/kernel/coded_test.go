package kernel

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/rackweave/rackweave/aggregate/optim"
	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/codec"
)

// coded draws a source of n elements, as it is or by a codec, and places it so that what ends it ends the memory before it.
func coded(rnd *rand.Rand, a *arena, s codec.Spec, n int) (x []float32, addr, form uint64, p []byte) {
	raw := values(rnd, n)
	p = make([]byte, 4*n)
	p = p[:s.Encode(p, raw, nil, 1, codec.Key{Seed: rnd.Uint64()})]
	checked, err := codec.Check(p, n)
	if err == nil {
		x = make([]float32, n)
		err = codec.Decode(x, p)
	}
	if err != nil {
		panic(err)
	}
	a.take(rnd.IntN(3), chunk.F32)
	mem := a.take((len(p)+3)/4, chunk.F32) // at least the payload, from a multiple of 4 on
	copy(mem, p)
	return x, address(mem), uint64(checked), mem[:len(p)]
}

// mixed draws sources, of one codec if it is not nil, else of any.
func mixed(rnd *rand.Rand, a *arena, s *codec.Spec, count, n int) (nums [][]float32, src Sources) {
	src.Type = F32
	for range count {
		spec := specs[rnd.IntN(len(specs))]
		if rnd.IntN(4) == 0 {
			spec = codec.Spec{}
		}
		if s != nil {
			spec = *s
		}
		x, addr, form, _ := coded(rnd, a, spec, n)
		nums, src.Addr, src.Form = append(nums, x), append(src.Addr, addr), append(src.Form, form)
	}
	return nums, src
}

// fewer returns how often a test repeats, also if it should be short, as under sanitizers, which see the same code each time.
func fewer(all, short int) int {
	if testing.Short() {
		return short
	}
	return all
}

// folds are lengths around groups, blocks of a scale, and blocks that are summed at once.
var folds = []int{7, 64, 65, 130, 511, 512, 513, 700, 1025, 4095, 4096, 4097, 4600, 8192, 8999}

func TestSumsOfPayloadsAreTheReferencesBits(t *testing.T) {
	eachISA(t, func(t *testing.T, isa ISA) {
		a := newArena(t, 3<<20)
		rnd := rand.New(rand.NewPCG(12, uint64(isa)))
		trial, every := 0, fewer(3, 9)
		if isa != Scalar && !testing.Short() {
			every = 1
		}
		for i := range 2 * len(specs) {
			var s *codec.Spec
			if i < len(specs) {
				s = &specs[i]
			}
			for _, n := range folds {
				for _, count := range []int{1, 2, 3, 4, 5, 7, 9, 18} {
					if trial++; trial%every != 0 {
						continue
					}
					a.reset()
					dstType := dtypes[rnd.IntN(3)]
					accumulate := dstType == chunk.F32 && rnd.IntN(2) == 0
					outs := newOutputs(rnd, a, 1+rnd.IntN(3), n, dstType, rnd.IntN(2) == 0)
					want := values(rnd, n)
					optim.Encode(outs.mem[0], want, dstType)
					nums, src := mixed(rnd, a, s, count, n)
					Sum{Dst: outs.addrs, DstType: uint8(dstType), Src: src, N: uint64(n), Accumulate: accumulate,
						PastCache: rnd.IntN(2) == 0}.Run(isa)
					optim.SumInto(want, nums, accumulate)
					if err := outs.check(want); err != nil {
						t.Fatalf("%d x [%d] to %v, forms %x, accumulate %v: %v", count, n, dstType, src.Form, accumulate, err)
					}
				}
			}
		}
	})
}

func TestUpdatesWithPayloadsAreTheReferencesBits(t *testing.T) {
	eachISA(t, func(t *testing.T, isa ISA) {
		a := newArena(t, 2<<20)
		rnd := rand.New(rand.NewPCG(13, uint64(isa)))
		for _, rule := range append(optim.Rules(), optim.LAMBApply) {
			for _, h := range hypers(rule) {
				for range fewer(6, 2) {
					a.reset()
					n, outType := folds[rnd.IntN(len(folds))], dtypes[rnd.IntN(3)]
					draw := func() ([][]float32, Sources) { return mixed(rnd, a, nil, 1+rnd.IntN(10), n) }
					if err := checkUpdate(rnd, a, isa, rule, h, outType, n, 0, false, draw); err != nil {
						t.Fatalf("%v %+v of %d: %v", rule, h, n, err)
					}
				}
			}
		}
	})
}

// A payload that its sender changes after the check is read within its length, and changes elements of its chunk only.
func TestAPayloadThatChangesIsReadWithinItsLength(t *testing.T) {
	eachISA(t, func(t *testing.T, isa ISA) {
		rnd := rand.New(rand.NewPCG(14, uint64(isa)))
		for _, s := range specs {
			a := newArena(t, 1<<17)
			for range fewer(40, 10) {
				n := 1 + rnd.IntN(9000)
				a.reset()
				_, addr, form, p := coded(rnd, a, s, n)
				outs := newOutputs(rnd, a, 1, n, chunk.F32, false)
				for i := range p {
					p[i] = byte(rnd.Uint32() | 0x80>>rnd.IntN(8))
				}
				Sum{Dst: outs.addrs, DstType: F32, Src: Sources{Addr: []uint64{addr}, Form: []uint64{form}, Type: F32}, N: uint64(n)}.Run(isa)
				if err := outs.check(decoded(outs.mem[0], chunk.F32)); err != nil {
					t.Fatalf("%v[%d]: %v", s, n, err)
				}
			}
		}
	})
}

func FuzzSumOfAnyPayload(f *testing.F) {
	f.Add([]byte{1, 2, 3}, uint16(600), uint8(0), uint64(1))
	a := newArena(f, 1<<17)
	f.Fuzz(func(t *testing.T, change []byte, elems uint16, which uint8, seed uint64) {
		rnd, n := rndFor(seed), int(elems)%9000+1
		a.reset()
		_, addr, form, p := coded(rnd, a, specs[int(which)%len(specs)], n)
		outs := newOutputs(rnd, a, 1, n, chunk.F32, false)
		for i := range p {
			if len(change) > 0 {
				p[i] ^= change[i%len(change)]
			}
		}
		for _, isa := range isas {
			if Supported(isa) {
				Sum{Dst: outs.addrs, DstType: F32, Src: Sources{Addr: []uint64{addr}, Form: []uint64{form}, Type: F32}, N: uint64(n)}.Run(isa)
			}
		}
		if err := outs.check(decoded(outs.mem[0], chunk.F32)); err != nil {
			t.Error(fmt.Errorf("%v: %w", codec.Form(form).ID(), err))
		}
	})
}
