package kernel

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/rackweave/rackweave/aggregate/optim"
	"github.com/rackweave/rackweave/chunk"
)

// sources draws n-element sources of type d, as numbers and in the arena; misalign elements lie behind each.
func sources(rnd *rand.Rand, a *arena, count, n, misalign int, d chunk.DType, wild bool) (nums [][]float32, addrs []uint64) {
	for range count {
		a.take(misalign, d)
		mem := a.place(draw(rnd, n, wild), d)
		nums, addrs = append(nums, decoded(mem, d)), append(addrs, address(mem))
	}
	return nums, addrs
}

func TestSumsAreTheReferencesBits(t *testing.T) {
	eachISA(t, func(t *testing.T, isa ISA) {
		a := newArena(t, 1<<17)
		rnd := rand.New(rand.NewPCG(1, uint64(isa)))
		for _, srcType := range dtypes {
			for _, dstType := range dtypes {
				for _, count := range sourceCounts {
					for i, n := range lengths {
						for _, accumulate := range []bool{false, true} {
							if accumulate && dstType != chunk.F32 {
								continue
							}
							wild := i%2 == 0
							a.reset()
							want := draw(rnd, n, wild)
							dst := a.place(want, dstType)
							nums, addrs := sources(rnd, a, count, n, i%5, srcType, wild)

							Sum{Dst: []uint64{address(dst)}, DstType: uint8(dstType), Src: From(addrs, uint8(srcType)), N: uint64(n),
								Accumulate: accumulate}.Run(isa)
							optim.SumInto(want, nums, accumulate)
							rounded := make([]byte, len(dst))
							optim.Encode(rounded, want, dstType)
							if err := sameBits(decoded(dst, dstType), decoded(rounded, dstType)); err != nil {
								t.Fatalf("%d x %v[%d] to %v, accumulate %v: %v", count, srcType, n, dstType, accumulate, err)
							}
						}
					}
				}
			}
		}
	})
}

// Every destination gets the sum, in its range and nowhere else, wherever it lies in its cache lines.
func TestEveryDestinationGetsTheReferencesBits(t *testing.T) {
	eachISA(t, func(t *testing.T, isa ISA) {
		a := newArena(t, 1<<19)
		rnd := rand.New(rand.NewPCG(9, uint64(isa)))
		trial := 0
		for _, srcType := range dtypes {
			for _, dstType := range dtypes {
				for _, count := range sourceCounts {
					for _, n := range append(lengths, 1023, 1500, 2100) {
						if trial++; testing.Short() && trial%5 != 0 {
							continue
						}
						a.reset()
						ndst, stream, together := 1+rnd.IntN(5), rnd.IntN(4) > 0, rnd.IntN(2) == 0
						accumulate := dstType == chunk.F32 && rnd.IntN(2) == 0
						nums, addrs := sources(rnd, a, count, n, rnd.IntN(5), srcType, rnd.IntN(2) == 0)
						outs := newOutputs(rnd, a, ndst, n, dstType, together)
						want := draw(rnd, n, false)
						optim.Encode(outs.mem[0], want, dstType)

						Sum{Dst: outs.addrs, DstType: uint8(dstType), Src: From(addrs, uint8(srcType)), N: uint64(n),
							Accumulate: accumulate, PastCache: stream}.Run(isa)
						optim.SumInto(want, nums, accumulate)
						if err := outs.check(want); err != nil {
							t.Fatalf("%d x %v[%d] to %d x %v, accumulate %v, stream %v: %v", count, srcType, n, ndst, dstType,
								accumulate, stream, err)
						}
					}
				}
			}
		}
	})
}

// outputs are destinations of one type with marked bytes around each.
type outputs struct {
	dtype  chunk.DType
	addrs  []uint64
	mem    [][]byte
	around [][]byte
}

const mark, margin = 0xa5, 128

// newOutputs places count destinations of n elements, all at one offset in their cache lines if together is set.
func newOutputs(rnd *rand.Rand, a *arena, count, n int, d chunk.DType, together bool) *outputs {
	o := &outputs{dtype: d}
	offset := rnd.IntN(64/d.Size()) * d.Size()
	for range count {
		if !together {
			offset = rnd.IntN(64/d.Size()) * d.Size()
		}
		a.take(1, d)
		a.free &^= 63
		around := a.take((2*margin+n*d.Size())/64*64/d.Size()+64/d.Size(), d)
		for i := range around {
			around[i] = mark
		}
		mem := around[64+offset:][:n*d.Size()]
		o.mem, o.around, o.addrs = append(o.mem, mem), append(o.around, around), append(o.addrs, address(mem))
	}
	return o
}

// check tells where a destination is not want, or where a byte around it was written.
func (o *outputs) check(want []float32) error {
	rounded := make([]byte, len(want)*o.dtype.Size())
	optim.Encode(rounded, want, o.dtype)
	for i, mem := range o.mem {
		if err := sameBits(decoded(mem, o.dtype), decoded(rounded, o.dtype)); err != nil {
			return fmt.Errorf("destination %d of %d: %w", i, len(o.mem), err)
		}
		for j := range mem {
			mem[j] = mark
		}
		for j, b := range o.around[i] {
			if b != mark {
				at := j - int(o.addrs[i]-address(o.around[i]))
				return fmt.Errorf("destination %d of %d: byte %d, which is beside it, was written", i, len(o.mem), at)
			}
		}
	}
	return nil
}

func TestAccumulatingTheRestGivesTheBitsOfOneSum(t *testing.T) {
	eachISA(t, func(t *testing.T, isa ISA) {
		const n = 1000
		a := newArena(t, 1<<17)
		rnd := rand.New(rand.NewPCG(2, 0))
		_, addrs := sources(rnd, a, 40, n, 0, chunk.BF16, false)
		whole, parts := a.take(n, chunk.F32), a.take(n, chunk.F32)
		Sum{Dst: []uint64{address(whole)}, DstType: F32, Src: From(addrs, BF16), N: n}.Run(isa)
		for split := 1; split < len(addrs); split++ {
			Sum{Dst: []uint64{address(parts)}, DstType: F32, Src: From(addrs[:split], BF16), N: n}.Run(isa)
			Sum{Dst: []uint64{address(parts)}, DstType: F32, Src: From(addrs[split:], BF16), N: n, Accumulate: true}.Run(isa)
			if err := equalBytes(parts, whole); err != nil {
				t.Fatalf("split after %d: %v", split, err)
			}
		}
	})
}

func TestSumMayReplaceASource(t *testing.T) {
	eachISA(t, func(t *testing.T, isa ISA) {
		const n = 300
		a := newArena(t, 1<<17)
		for _, count := range sourceCounts {
			for at := range count {
				a.reset()
				nums, addrs := sources(rand.New(rand.NewPCG(3, 0)), a, count, n, 1, chunk.F32, false)
				want := make([]float32, n)
				optim.SumInto(want, nums, false)
				Sum{Dst: []uint64{addrs[at]}, DstType: F32, Src: From(addrs, F32), N: n}.Run(isa)
				begin := addrs[at] - address(a.mem)
				if err := sameBits(decoded(a.mem[begin:begin+4*n], chunk.F32), want); err != nil {
					t.Fatalf("%d sources into number %d: %v", count, at, err)
				}
			}
		}
	})
}

// hypers are settings that reach every branch of the rules.
func hypers(r optim.Rule) []optim.Hyper {
	h := r.Defaults()
	h.WD, h.Scale = 0.01, 0.25
	with := h
	with.Momentum, with.Dampening, with.Clip = 0.9, 0.1, 0.3
	without := h
	without.Momentum = 0
	return []optim.Hyper{with, without}
}

func TestUpdatesAreTheReferencesBits(t *testing.T) {
	eachISA(t, func(t *testing.T, isa ISA) {
		a := newArena(t, 1<<17)
		rnd := rand.New(rand.NewPCG(4, uint64(isa)))
		outTypes := append([]chunk.DType{0}, dtypes...)
		trial, each := 0, 4
		if testing.Short() {
			each = 1
		}
		for _, rule := range append(optim.Rules(), optim.LAMBApply) {
			for _, h := range hypers(rule) {
				for _, srcType := range dtypes {
					for _, count := range sourceCounts {
						for range each { // of the lengths and types of out, which the trials go through together
							trial++
							a.reset()
							n, outType := lengths[trial%len(lengths)], outTypes[trial%len(outTypes)]
							draw := func() ([][]float32, Sources) {
								nums, addrs := sources(rnd, a, count, n, trial%5, srcType, trial%3 == 0)
								return nums, From(addrs, uint8(srcType))
							}
							if err := checkUpdate(rnd, a, isa, rule, h, outType, n, trial%5, trial%3 == 0, draw); err != nil {
								t.Fatalf("%v %+v, %d x %v[%d] to %v: %v", rule, h, count, srcType, n, outType, err)
							}
						}
					}
				}
			}
		}
	})
}

// checkUpdate runs two steps of a rule on the same numbers by the kernel and by the reference.
func checkUpdate(rnd *rand.Rand, a *arena, isa ISA, rule optim.Rule, h optim.Hyper, outType chunk.DType,
	n, misalign int, wild bool, gradients func() ([][]float32, Sources)) error {
	u := Update{N: uint64(n), OutType: uint8(outType), Rule: uint8(rule), PastCache: uint8(rnd.IntN(2))}
	var want struct {
		w, out []float32
		states [optim.MaxStates][]float32
	}
	var w []byte
	var states [optim.MaxStates][]byte
	outs := &outputs{}
	if outType != 0 {
		outs, want.out = newOutputs(rnd, a, 1+rnd.IntN(4), n, outType, rnd.IntN(2) == 0), make([]float32, n)
	}
	if rule != optim.Sum {
		want.w = draw(rnd, n, wild)
		w = a.place(want.w, chunk.F32)
		u.W = address(w)
	}
	for i := range rule.States(h) {
		want.states[i] = draw(rnd, n, wild)
		for j, x := range want.states[i] {
			want.states[i][j] = max(x, -x) // averages of squares are not negative
		}
		a.take(misalign, chunk.F32)
		states[i] = a.place(want.states[i], chunk.F32)
		u.State[i] = address(states[i])
	}
	for step := uint32(1); step <= 2; step++ {
		nums, src := gradients()
		u.Scalar = optim.Derive(rule, h, step)
		u.Run(isa, src, outs.addrs)
		k := optim.Scalars(u.Scalar)
		optim.Update(rule, &k, want.w, want.states, nums, want.out)
		if err := sameBits(decoded(w, chunk.F32), want.w); err != nil {
			return fmt.Errorf("step %d: w: %w", step, err)
		}
		for i, s := range states {
			if err := sameBits(decoded(s, chunk.F32), want.states[i]); err != nil {
				return fmt.Errorf("step %d: state %d: %w", step, i, err)
			}
		}
		if err := outs.check(want.out); err != nil {
			return fmt.Errorf("step %d: %w", step, err)
		}
	}
	return nil
}

func TestUpdateRefusesWhatItCannotRun(t *testing.T) {
	a := newArena(t, 1<<12)
	mem := address(a.take(16, chunk.F32))
	src := []uint64{mem}
	adam := optim.Derive(optim.AdamTorch, optim.AdamTorch.Defaults(), 1)
	sgd := optim.Derive(optim.SGDTorch, optim.Hyper{Scale: 1, Momentum: 0.9}, 1)
	for name, f := range map[string]func(){
		"a rule of tomorrow": func() { (&Update{Rule: 200}).Run(Best(), From(src, F32), nil) },
		"no w":               func() { (&Update{Rule: uint8(optim.SGDMXNet), Scalar: sgd}).Run(Best(), From(src, F32), nil) },
		"no momentum": func() {
			(&Update{Rule: uint8(optim.SGDTorch), W: mem, Scalar: sgd}).Run(Best(), From(src, F32), nil)
		},
		"one state of two": func() {
			(&Update{Rule: uint8(optim.AdamTorch), W: mem, State: [3]uint64{mem}, Scalar: adam}).Run(Best(), From(src, F32), nil)
		},
		"update with dtype 0":    func() { (&Update{}).Run(Best(), From(src, 0), nil) },
		"update without sources": func() { (&Update{}).Run(Best(), From(nil, F32), nil) },
		"update to no dtype":     func() { (&Update{}).Run(Best(), From(src, F32), src) },
		"sum to nowhere":         func() { Sum{Dst: nil, DstType: F32, Src: From(src, F32), N: 1, PastCache: true}.Run(Best()) },
		"sum of nothing":         func() { Sum{Dst: []uint64{mem}, DstType: F32, Src: From(nil, F32), N: 1}.Run(Best()) },
		"accumulate into bf16": func() {
			Sum{Dst: []uint64{mem}, DstType: BF16, Src: From(src, F32), N: 1, Accumulate: true}.Run(Best())
		},
		"conversion to dtype 4":   func() { Convert(Best(), mem, 4, mem, F32, 1, false) },
		"probe off a cache line":  func() { Probe{Read: []uint64{mem + 4}, Bytes: 64}.Run(Best(), 1) },
		"conversion from dtype 0": func() { Convert(Best(), mem, F32, mem, 0, 1, false) },
	} {
		t.Run(name, func(t *testing.T) {
			defer func() {
				if recover() == nil {
					t.Error("did not panic")
				}
			}()
			f()
		})
	}
}

func TestSumSqIsTheReferencesBits(t *testing.T) {
	eachISA(t, func(t *testing.T, isa ISA) {
		a := newArena(t, 1<<14)
		rnd := rand.New(rand.NewPCG(5, 0))
		for i, n := range append(lengths, 1000) {
			for _, wild := range []bool{false, true} {
				a.reset()
				a.take(i%5, chunk.F32)
				x := draw(rnd, n, wild)
				mem := a.place(x, chunk.F32)
				got, want := SumSq(isa, address(mem), uint64(n)), optim.SumSq(x)
				if math.Float64bits(got) != math.Float64bits(want) && !(got != got && want != want) {
					t.Fatalf("of %d, wild %v: %v, want %v", n, wild, got, want)
				}
			}
		}
	})
}

func TestNamesOfTheInstructionSets(t *testing.T) {
	if got := ISA(9).String(); got != "isa(9)" {
		t.Errorf("ISA(9) is %q", got)
	}
	if !Supported(Scalar) || !Supported(Best()) || Supported(NEON+1) || Supported(-1) {
		t.Error("Supported contradicts Best")
	}
}

func TestTheEnvironmentForcesAnInstructionSet(t *testing.T) {
	t.Setenv(Env, "scalar")
	if isa, err := Default(); isa != Scalar || err != nil {
		t.Errorf("scalar: %v, %v", isa, err)
	}
	t.Setenv(Env, "")
	if isa, err := Default(); isa != Best() || err != nil {
		t.Errorf("unset: %v, %v", isa, err)
	}
	t.Setenv(Env, "mmx")
	if isa, err := Default(); isa != Best() || err == nil || !strings.Contains(err.Error(), "scalar, avx2, avx512, neon") {
		t.Errorf("mmx: %v, %v", isa, err)
	}
}

func TestMoreThanTheCPUHasRunsAsWhatItHas(t *testing.T) {
	a := newArena(t, 1<<12)
	src := a.place([]float32{1.5}, chunk.F32)
	dst := a.take(1, chunk.F32)
	Sum{Dst: []uint64{address(dst)}, DstType: F32, Src: From([]uint64{address(src)}, F32), N: 1}.Run(NEON + 1)
	if got := decoded(dst, chunk.F32)[0]; got != 1.5 {
		t.Errorf("got %v", got)
	}
}
