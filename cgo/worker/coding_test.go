package worker_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"syscall"
	"testing"
	"unsafe"

	"github.com/rackweave/rackweave/aggregate/optim"
	"github.com/rackweave/rackweave/cgo/worker"
	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/codec"
)

const (
	codedChunk = chunk.MinChunkBytes / 4 // elements
	codedElems = 5*codedChunk + 77
)

func specOf(t *testing.T, text string) codec.Spec {
	t.Helper()
	s, err := codec.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func compress(p *peer, s codec.Spec) {
	p.t.Helper()
	p.must(worker.Compress(p.w, 0, worker.Codec{ID: uint8(s.ID), Stochastic: s.Stochastic, Param: s.Param}), "compress")
}

// sender is a worker's tensor in plain Go.
type sender struct {
	spec     codec.Spec
	key      codec.Key
	residual []float32
}

// payloads returns what a gradient's chunks travel as.
func (s *sender) payloads(g []float32, factor float32) (all [][]byte) {
	for first := 0; first < len(g); first += codedChunk {
		end := min(first+codedChunk, len(g))
		p, key := make([]byte, 4*(end-first)), s.key
		key.First = uint64(first)
		all = append(all, p[:s.spec.Encode(p, g[first:end], s.residual[first:end], factor, key)])
	}
	s.key.Step++
	return all
}

func newSender(spec codec.Spec) *sender {
	return &sender{spec: spec, key: codec.Key{Seed: 9, Rank: 3}, residual: make([]float32, codedElems)}
}

func f32Tensor(memory chunk.DType) worker.Tensor {
	return worker.Tensor{Elems: codedElems, WireType: uint8(chunk.F32), MemoryType: uint8(memory)}
}

func codedPeer(t *testing.T) *peer {
	t.Helper()
	return newPeer(t, worker.Config{Seed: 9, Rank: 3}, 64<<10, f32Tensor(chunk.F32))
}

// exchange answers the chunks of a pushpull, or NACKs them as often as told, and compares how they travel.
func (p *peer) exchange(want [][]byte, nacks func(m message) bool) {
	p.t.Helper()
	for answered := 0; answered < len(want); {
		came := p.came()
		if len(came) == 0 {
			p.t.Fatalf("%d of %d chunks came", answered, len(want))
		}
		for _, m := range came {
			if len(m.payload) < 4*codedChunk && len(m.payload) < len(answerOf(m.index)) {
				m.payload[3] &^= 1 // which TestPayloadsTellWhetherMoreFollows compares
			}
			if !bytes.Equal(m.payload, want[m.index]) {
				p.t.Fatalf("chunk %d came with %d bytes, expected %d, and these or others:\n%x\n%x", m.index, len(m.payload),
					len(want[m.index]), m.payload[:min(len(m.payload), 48)], want[m.index][:min(len(want[m.index]), 48)])
			}
			if nacks != nil && nacks(m) {
				p.nack(m)
				continue
			}
			p.answer(m, answerOf(m.index))
			answered++
		}
	}
	if n := worker.Active(p.w); n != 0 {
		p.t.Fatalf("%d operations are in flight", n)
	}
}

// answerOf returns a chunk's answer, which tells chunks apart.
func answerOf(index uint32) []byte {
	elems := min(codedChunk, codedElems-int(index)*codedChunk)
	out := make([]byte, 4*elems)
	for i := range elems {
		binary.LittleEndian.PutUint32(out[4*i:], math.Float32bits(float32(index)+float32(i)/4096))
	}
	return out
}

func checkAnswers(t *testing.T, dst []float32) {
	t.Helper()
	for i, v := range dst {
		if want := float32(i/codedChunk) + float32(i%codedChunk)/4096; v != want {
			t.Fatalf("element %d is %v, expected %v", i, v, want)
		}
	}
}

func fill(g []float32, r *rand.Rand) {
	for i := range g {
		g[i] = float32(r.NormFloat64())
	}
}

var codecs = append(codec.Names()[1:], "int8:stochastic", "int4:stochastic", "topk:3%")

func TestGradientsTravelAsTheirCodecWritesThem(t *testing.T) {
	for _, text := range codecs {
		for _, inPlace := range []bool{false, true} {
			t.Run(fmt.Sprint(text, " in place ", inPlace), func(t *testing.T) {
				p, s, r := codedPeer(t), newSender(specOf(t, text)), rand.New(rand.NewPCG(1, 2))
				src := p.alloc(codedElems)
				dst := src
				if !inPlace {
					dst = p.alloc(codedElems)
				}
				compress(p, s.spec)
				raw, sent := uint64(0), uint64(0)
				for range 4 {
					fill(src, r)
					want := s.payloads(src, 1)
					for _, w := range want {
						sent += uint64(len(w))
					}
					raw += 4 * codedElems
					p.submit(0, src, dst)
					p.exchange(want, nil)
					checkAnswers(t, dst)
				}
				var st worker.Stats
				worker.StatsOf(p.w, &st)
				if st.SentBytes != sent || st.SentRawBytes != raw || st.ReceivedBytes != raw || st.ReceivedRawBytes != raw {
					t.Errorf("%+v, expected %d bytes of %d", st, sent, raw)
				}
				left := 0.0
				for _, e := range s.residual {
					left += float64(e) * float64(e)
				}
				if math.Abs(st.Residual-left) > left/1000 {
					t.Errorf("the residual's square is %v, expected %v", st.Residual, left)
				}
			})
		}
	}
}

func TestMemoryOf16BitsIsCompressedAsF32(t *testing.T) {
	for memory, from := range map[chunk.DType]func(uint16) float32{chunk.BF16: optim.FromBF16, chunk.F16: optim.FromF16} {
		p := newPeer(t, worker.Config{Seed: 9, Rank: 3}, 64<<10, f32Tensor(memory))
		s := newSender(specOf(t, "int4"))
		src, dst := p.alloc(codedElems/2+1), p.alloc(codedElems/2+1)
		elems := unsafe.Slice((*uint16)(unsafe.Pointer(&src[0])), codedElems)
		compress(p, s.spec)
		for range 3 {
			g := make([]float32, codedElems)
			for i := range g {
				elems[i] = uint16(0x3c00 + 7*i%512)
				g[i] = from(elems[i])
			}
			p.submit(0, src, dst)
			p.exchange(s.payloads(g, 1), nil)
		}
	}
}

// The residual is changed where a chunk is encoded, so encoding it again would count it twice, and forgetting the payload would
// lose it.
func TestAChunkThatIsNACKedTravelsAgainAsItWas(t *testing.T) {
	for _, text := range []string{"int8", "sign", "topk:3%", "none"} {
		for _, inPlace := range []bool{false, true} {
			for first := range 6 {
				p, s, r := codedPeer(t), newSender(specOf(t, "int4")), rand.New(rand.NewPCG(3, uint64(first)))
				src := p.alloc(codedElems)
				dst := src
				if !inPlace {
					dst = p.alloc(codedElems)
				}
				for step := range 4 {
					if step == 1 {
						s.spec = specOf(t, text)
					}
					compress(p, s.spec)
					fill(src, r)
					want := s.payloads(src, 1)
					p.submit(0, src, dst)
					times := map[uint32]int{}
					p.exchange(want, func(m message) bool {
						times[m.index]++
						return m.index >= uint32(first) && times[m.index] <= 1+int(m.index)%3
					})
					checkAnswers(t, dst)
				}
			}
		}
	}
}

func TestACodecChangesAtTheNextGradient(t *testing.T) {
	p, s, r := codedPeer(t), newSender(specOf(t, "sign")), rand.New(rand.NewPCG(5, 6))
	src, dst := p.alloc(codedElems), p.alloc(codedElems)
	for _, text := range []string{"sign", "int4", "topk:1%", "none", "none", "int8"} {
		compress(p, specOf(t, "fp8-e5m2")) // which never holds
		compress(p, specOf(t, text))
		s.spec = specOf(t, text)
		fill(src, r)
		want := s.payloads(src, 1)
		p.submit(0, src, dst)
		compress(p, specOf(t, "ternary"))
		p.exchange(want, nil)
	}
}

// The first gradient without a codec takes all that is left along. Later ones travel from the caller's memory.
func TestACodecHoldsFromItsGradientOn(t *testing.T) {
	p, s, r := codedPeer(t), newSender(specOf(t, "int8")), rand.New(rand.NewPCG(3, 9))
	src := p.alloc(codedElems)
	int4 := worker.Codec{ID: uint8(codec.Int4)}
	compress(p, s.spec)
	for step := range 6 {
		switch step {
		case 2:
			p.must(worker.CompressFrom(p.w, 0, int4, 4), "compress")
		case 3:
			if rc := worker.CompressFrom(p.w, 0, worker.Codec{ID: uint8(codec.Sign)}, 2); rc != -int(syscall.EAGAIN) {
				t.Fatalf("a codec of a gradient that has begun: %d", rc)
			}
		case 4:
			s.spec = specOf(t, "int4")
		}
		fill(src, r)
		want := s.payloads(src, 1)
		p.submit(0, src, src)
		p.exchange(want, nil)
	}
}

func TestACodecHoldsUntilALaterOne(t *testing.T) {
	p, s, r := codedPeer(t), newSender(specOf(t, "int8")), rand.New(rand.NewPCG(3, 11))
	src := p.alloc(codedElems)
	compress(p, s.spec)
	p.must(worker.CompressFrom(p.w, 0, worker.Codec{ID: uint8(codec.Int4)}, 2), "compress")
	for step := range 5 {
		switch step {
		case 2:
			p.must(worker.CompressFrom(p.w, 0, worker.Codec{ID: uint8(codec.Sign)}, 4), "compress")
			s.spec = specOf(t, "int4")
		case 4:
			s.spec = specOf(t, "sign")
		}
		fill(src, r)
		want := s.payloads(src, 1)
		p.submit(0, src, src)
		p.exchange(want, nil)
		if c := worker.CodecOf(p.w, 0); codec.ID(c.ID) != s.spec.ID {
			t.Errorf("gradient %d had codec %d, want %d", step, c.ID, s.spec.ID)
		}
	}
}

// Six chunks wait for a window of four, so the fourth waits for an answer.
func TestPayloadsTellWhetherMoreFollows(t *testing.T) {
	p := codedPeer(t)
	src := p.alloc(codedElems)
	compress(p, specOf(t, "int8"))
	p.submit(0, src, src)
	came := p.came()
	for i, m := range came {
		if more := codec.HeaderOf(m.payload).More; more != (i < peerWindow-1) {
			t.Errorf("chunk %d of %d: %v", i, len(came), more)
		}
	}
	if len(came) != peerWindow {
		t.Errorf("%d chunks came", len(came))
	}
}

func TestTheGradientAfterTheCodecSendsTheResidual(t *testing.T) {
	p, s, r := codedPeer(t), newSender(specOf(t, "sign")), rand.New(rand.NewPCG(7, 8))
	src, dst := p.alloc(codedElems), p.alloc(codedElems)
	sum, sent := make([]float64, codedElems), make([]float64, codedElems)
	step := func(spec codec.Spec) {
		compress(p, spec)
		s.spec = spec
		for i := range src {
			src[i] = float32(r.IntN(1 << 10))
			sum[i] += float64(src[i])
		}
		want := s.payloads(src, 1)
		p.submit(0, src, dst)
		p.exchange(want, nil)
		for c, w := range want {
			x := make([]float32, min(codedChunk, codedElems-c*codedChunk))
			if err := codec.Decode(x, w); err != nil {
				t.Fatal(err)
			}
			for i, v := range x {
				sent[c*codedChunk+i] += float64(v)
			}
		}
	}
	for range 3 {
		step(specOf(t, "int4"))
	}
	for range 2 {
		var before, after worker.Stats
		worker.StatsOf(p.w, &before)
		step(codec.Spec{})
		worker.StatsOf(p.w, &after)
		for i := range sum {
			if sum[i] != sent[i] {
				t.Fatalf("element %d: gradients of %v, sent %v", i, sum[i], sent[i])
			}
		}
		if after.Residual != 0 {
			t.Errorf("a residual of %v is left", after.Residual)
		}
	}
}

func TestAFlushSendsTheResidualWithOneGradient(t *testing.T) {
	p, s, r := codedPeer(t), newSender(specOf(t, "sign")), rand.New(rand.NewPCG(7, 8))
	src, dst := p.alloc(codedElems), p.alloc(codedElems)
	compress(p, s.spec)
	for _, text := range []string{"sign", "sign", "none", "sign"} {
		if s.spec = specOf(t, text); s.spec.ID == codec.Raw {
			worker.Flush(p.w)
		}
		fill(src, r)
		want := s.payloads(src, 1)
		p.submit(0, src, dst)
		p.exchange(want, nil)
	}
}

// A gradient that is not finite leaves the residual for the next one, even if the codec is off by then.
func TestTheResidualOutlivesAGradientThatIsNotFinite(t *testing.T) {
	p, s, r := codedPeer(t), newSender(specOf(t, "sign")), rand.New(rand.NewPCG(7, 8))
	src, dst := p.alloc(codedElems), p.alloc(codedElems)
	for step, text := range []string{"sign", "sign", "none", "none", "none"} {
		compress(p, specOf(t, text))
		s.spec = specOf(t, text)
		fill(src, r)
		if step == 1 || step == 2 {
			src[codedChunk+1] = float32(math.Inf(1))
		}
		p.submit(0, src, dst)
		p.exchange(s.payloads(src, 1), nil)
	}
}

func TestTheResidualFollowsTheRateThatItIsAppliedWith(t *testing.T) {
	p, s, r := codedPeer(t), newSender(specOf(t, "int4")), rand.New(rand.NewPCG(7, 8))
	src, dst := p.alloc(codedElems), p.alloc(codedElems)
	compress(p, s.spec)
	inf := float32(math.Inf(1))
	for _, c := range []struct{ lr, scale, factor float32 }{
		{0, 0, 1}, {0.5, 1, 1}, {0.25, 1, 2}, {0.25, 0.5, 2}, {0, 0.5, 1}, {0.25, 1, 0.5}, {inf, 1, 1}, {inf, 0, 1}, {0.5, 1, 0.5},
		{0.5, 1, 1}, {0.1, 1, float32(0.5) / float32(0.1)}, {1e30, 1, float32(0.1) / 1e30}, {1e-30, 1, 1},
	} {
		record := (&chunk.TensorRecord{LR: c.lr, Scale: c.scale}).Values()
		p.must(worker.Hyper(p.w, 0, &record), "hyper")
		fill(src, r)
		p.submit(0, src, dst)
		p.exchange(s.payloads(src, c.factor), nil)
	}
}

func TestAResidualAsItIsDoesNotFollowTheRate(t *testing.T) {
	p, s, r := codedPeer(t), newSender(specOf(t, "2bit:0.5")), rand.New(rand.NewPCG(7, 8))
	src, dst := p.alloc(codedElems), p.alloc(codedElems)
	p.must(worker.Compress(p.w, 0, worker.Codec{ID: uint8(s.spec.ID), Param: s.spec.Param, AsIs: true}), "compress")
	for _, lr := range []float32{0.5, 0.25, 1} {
		record := (&chunk.TensorRecord{LR: lr, Scale: 1}).Values()
		p.must(worker.Hyper(p.w, 0, &record), "hyper")
		fill(src, r)
		p.submit(0, src, dst)
		p.exchange(s.payloads(src, 1), nil)
	}
}

func TestWhatCannotBeCompressedIsRefused(t *testing.T) {
	p := newPeer(t, worker.Config{}, 0, worker.Tensor{Elems: 8, WireType: uint8(chunk.BF16), MemoryType: uint8(chunk.F32)})
	for _, c := range []worker.Codec{{ID: uint8(codec.Int8)}, {ID: 77}} {
		if rc := worker.Compress(p.w, 0, c); rc >= 0 {
			t.Errorf("%+v was taken", c)
		}
	}
	if rc := worker.Compress(p.w, 1, worker.Codec{}); rc >= 0 {
		t.Error("a tensor was compressed that there is not")
	}
	if rc := worker.Compress(p.w, 0, worker.Codec{}); rc < 0 {
		t.Errorf("no codec: %d", rc)
	}
}
