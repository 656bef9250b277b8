package kernel

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/rackweave/rackweave/aggregate/optim"
	"github.com/rackweave/rackweave/codec"
)

// payloads fills every slot of a chunk in some arrays with a codec's payload, as gradients lie in their slots.
func (wl *workload) payloads(b *testing.B, s codec.Spec, workers int) Sources {
	src := Sources{Type: F32}
	rnd := rand.New(rand.NewPCG(1, 1))
	for range workers {
		mem := mapped(b, wl.n*4)
		x, p := draw(rnd, chunkElems, false), make([]byte, chunkBytes)
		p = p[:s.Encode(p, x, nil, 1, codec.Key{})]
		form, err := codec.Check(p, chunkElems)
		if err != nil {
			b.Fatal(err)
		}
		for at := 0; at < len(mem); at += chunkBytes {
			copy(mem[at:], p)
		}
		src.Addr, src.Form = append(src.Addr, address(mem)), append(src.Form, uint64(form))
	}
	return src
}

// fold sums the chunks of a stretch, which ends in the cache, or with update updates the weights.
func (wl *workload) fold(src Sources, update bool) contender {
	return func(s stretch, threads int) {
		wl.eachChunk(s, threads, func(at uint64, r *room) {
			from := Sources{Addr: moved(r.src[:], src.Addr, at), Form: src.Form, Type: F32}
			if update {
				u := Update{W: wl.w + at, State: [3]uint64{wl.m + at}, N: chunkElems, Rule: uint8(optim.SGDMXNet), Scalar: wl.scalar}
				u.Run(wl.isa, from, nil)
				return
			}
			r.out[0] = wl.s
			Sum{Dst: r.out[:1], DstType: F32, Src: from, N: chunkElems}.Run(wl.isa)
		})
	}
}

// again calls a contender for the same chunk many times, which stays in the cache.
func (wl *workload) again(do contender) contender {
	return func(stretch, int) {
		wl.still = true
		do(stretch{0, short}, 1)
		wl.still = false
	}
}

// BenchmarkPayloads measures the fold of four workers' payloads over that of their f32 values: with the data in memory, with the
// update of weights and momentum in memory, and with the data in the second-level cache.
func BenchmarkPayloads(b *testing.B) {
	const workers = 4
	wl := newWorkload(b, workers, 64<<20)
	for _, isa := range isas {
		if !Supported(isa) || isa == Scalar {
			continue
		}
		wl.isa = isa
		for _, text := range []string{"int8", "int4", "sign", "ternary", "topk:1%", "topk:10%", "fp8-e4m3"} {
			b.Run(fmt.Sprintf("%v/%s", isa, text), func(b *testing.B) {
				s, err := codec.Parse(text)
				if err != nil {
					b.Fatal(err)
				}
				coded, raw := wl.payloads(b, s, workers), From(wl.grads, F32)
				var memory, update, hot []float64
				for b.Loop() {
					_, memory = wl.race(201, 1, short, wl.fold(raw, false), wl.fold(coded, false))
					_, update = wl.race(101, 1, short, wl.fold(raw, true), wl.fold(coded, true))
					_, hot = wl.race(201, 1, short, wl.again(wl.fold(raw, false)), wl.again(wl.fold(coded, false)))
				}
				b.ReportMetric(memory[1], "of-f32")
				b.ReportMetric(update[1], "with-update")
				b.ReportMetric(hot[1], "in-cache")
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}

// BenchmarkEncode measures the encoding of chunks with error feedback over the copy of the chunks: in memory, and in the cache.
func BenchmarkEncode(b *testing.B) {
	wl := newWorkload(b, 0, 64<<20)
	values := wl.payloads(b, codec.Spec{}, 2).Addr
	copies := func(s stretch, threads int) {
		wl.eachChunk(s, threads, func(at uint64, _ *room) { Convert(wl.isa, wl.m+at, F32, values[0]+at, F32, chunkElems, false) })
	}
	for _, isa := range isas {
		if !Supported(isa) || isa == Scalar {
			continue
		}
		wl.isa = isa
		for _, s := range specs {
			b.Run(fmt.Sprintf("%v/%v", isa, s), func(b *testing.B) {
				e := Encoding{N: chunkElems, Factor: 1, Type: F32, Codec: uint8(s.ID), Param: s.Param}
				if s.Stochastic {
					e.Stochastic = 1
				}
				encodes := func(s stretch, threads int) {
					wl.eachChunk(s, threads, func(at uint64, _ *room) {
						e.Values, e.Memory, e.Payload = values[0]+at, values[1]+at, wl.s+at
						e.Run(isa)
					})
				}
				var memory, hot []float64
				var speed float64
				for b.Loop() {
					_, memory = wl.race(201, 1, short, copies, encodes)
					speed, hot = wl.race(201, 1, short, wl.again(copies), wl.again(encodes))
				}
				b.ReportMetric(memory[1], "of-memcpy")
				b.ReportMetric(hot[1], "in-cache")
				b.ReportMetric(chunkElems/speed*1e9, "memcpy-ns")
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}
