//go:build !asan

// Under the address sanitizer the compiler moves variables of its own to the heap.

package kernel

import (
	"math/rand/v2"
	"testing"

	"github.com/rackweave/rackweave/aggregate/optim"
	"github.com/rackweave/rackweave/chunk"
)

func TestHotCallsDoNotAllocate(t *testing.T) {
	const n = 100
	a := newArena(t, 1<<14)
	_, addrs := sources(rand.New(rand.NewPCG(6, 0)), a, 4, n, 0, chunk.F32, false)
	w, m, out := address(a.take(n, chunk.F32)), address(a.take(n, chunk.F32)), address(a.take(n, chunk.F32))
	u := Update{W: w, State: [3]uint64{m}, N: n, OutType: F32, Rule: uint8(optim.SGDMXNet)}
	h := optim.Hyper{LR: 0.1, Momentum: 0.9, Scale: 1}
	rnd := rand.New(rand.NewPCG(6, 1))
	_, payloads := mixed(rnd, newArena(t, 1<<14), nil, 4, n)
	coded := Encoding{Values: addrs[0], Memory: m, Payload: address(newArena(t, 4*n).mem), N: n, Factor: 1, Type: F32}
	tensor := newSparse(t, rnd, n, 7, 9)
	rows, pushes := tensor.describe(), tensor.push(rnd, newArena(t, 1<<14), 0.5, chunk.F32).messages
	rows.What, rows.Rule, rows.SrcType = AccumulateRows, uint8(optim.SGDMXNet), F32
	isa := Best()
	for name, f := range map[string]func(){
		"update": func() {
			src := [...]uint64{addrs[0], addrs[1], addrs[2]}
			outs := [...]uint64{out}
			u.Scalar = optim.Derive(optim.SGDMXNet, h, 7)
			u.Run(isa, From(src[:], F32), outs[:])
		},
		"sum to many": func() {
			dsts := [...]uint64{w, m}
			Sum{Dst: dsts[:], DstType: F32, Src: From(addrs, F32), N: n, PastCache: true}.Run(isa)
		},
		"update from payloads": func() { u.Run(isa, payloads, nil) },
		"sum of payloads":      func() { Sum{Dst: []uint64{w}, DstType: F32, Src: payloads, N: n}.Run(isa) },
		"encode": func() {
			for _, s := range specs {
				coded.Codec, coded.Param = uint8(s.ID), s.Param
				coded.Run(isa)
			}
		},
		"sum":     func() { Sum{Dst: []uint64{w}, DstType: F32, Src: From(addrs, F32), N: n}.Run(isa) },
		"convert": func() { Convert(isa, w, BF16, m, F32, n, true) },
		"rows": func() {
			message := [...]RowSource{pushes[0]}
			message[0].Begin()
			rows.Merge(isa, message[:], nil, 0, message[0].To)
			apply := rows
			apply.What = ApplyRows
			apply.Apply(isa, 0, n)
			apply.Gather(isa, pushes[0].IDs, 0, out, F32)
		},
		"sumsq": func() { SumSq(isa, w, n) },
	} {
		if allocs := testing.AllocsPerRun(100, f); allocs != 0 {
			t.Errorf("%s allocates %v times", name, allocs)
		}
	}
}
