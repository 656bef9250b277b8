package worker_test

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"unsafe"

	"github.com/rackweave/rackweave/aggregate/optim"
	"github.com/rackweave/rackweave/cgo/worker"
	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/codec"
)

// answerer is the aggregator's end of compressed answers, in plain Go.
type answerer struct {
	spec codec.Spec
	key  codec.Key
	kept []float32 // the reference, or the residual
}

// payloads returns what the chunks of an answer travel as, and the values that the workers have then.
func (a *answerer) payloads(t *testing.T, x []float32, changes bool) (all [][]byte, values []float32) {
	for first := 0; first < len(x); first += codedChunk {
		end := min(first+codedChunk, len(x))
		p, key := make([]byte, 4*(end-first)), a.key
		key.First = uint64(first)
		got := make([]float32, end-first)
		if changes {
			p = p[:a.spec.EncodeChange(p, x[first:end], a.kept[first:end], key)]
			copy(got, a.kept[first:end])
		} else {
			p = p[:a.spec.Encode(p, x[first:end], a.kept[first:end], 1, key)]
			if err := codec.Decode(got, p); err != nil {
				t.Fatal(err)
			}
		}
		all, values = append(all, p), append(values, got...)
	}
	a.key.Step++
	return all, values
}

// raw returns what values travel as without a codec.
func raw(x []float32) (all [][]byte) {
	for first := 0; first < len(x); first += codedChunk {
		var p []byte
		for _, v := range x[first:min(first+codedChunk, len(x))] {
			p = binary.LittleEndian.AppendUint32(p, math.Float32bits(v))
		}
		all = append(all, p)
	}
	return all
}

// answerAll answers all chunks of an operation, some of them after a NACK.
func (p *peer) answerAll(answers [][]byte) {
	p.t.Helper()
	nacked := false
	for answered := 0; answered < len(answers); {
		came := p.came()
		if len(came) == 0 {
			p.t.Fatalf("%d of %d chunks came", answered, len(answers))
		}
		for _, m := range came {
			if !nacked && m.op == chunk.OpPushPull && m.index == 2 {
				nacked = true
				p.nack(m)
				continue
			}
			p.answer(m, answers[m.index])
			answered++
		}
	}
}

func TestAnswersAreDecodedAsTheAggregatorMeansThem(t *testing.T) {
	for _, text := range []string{"int8", "int4:stochastic", "fp8-e4m3"} {
		for _, answers := range []uint8{worker.AnswersSums, worker.AnswersChanges} {
			for _, memory := range []chunk.DType{chunk.F32, chunk.BF16} {
				t.Run(fmt.Sprint(text, " ", answers, " ", memory), func(t *testing.T) {
					cfg := worker.Config{Seed: 9, Rank: 3, AnyMemory: true, Answers: answers}
					checkDecoded(t, newPeer(t, cfg, 64<<10, f32Tensor(memory)), specOf(t, text), memory, answers == worker.AnswersChanges)
				})
			}
		}
	}
}

func checkDecoded(t *testing.T, p *peer, spec codec.Spec, memory chunk.DType, changes bool) {
	a := &answerer{spec: spec, key: codec.Key{Seed: 9, Rank: codec.AnswerRank}, kept: make([]float32, codedElems)}
	r := rand.New(rand.NewPCG(1, 2))
	src, dst, x := p.alloc(codedElems), p.alloc(codedElems), make([]float32, codedElems)
	compress(p, specOf(t, "sign"))
	var received uint64
	op := worker.Op{Src: addr(src), Dst: addr(dst)}
	for step, kind := range []chunk.Op{
		chunk.OpPushPull, chunk.OpBroadcast, chunk.OpPushPull, chunk.OpPull, chunk.OpPushPull, chunk.OpPushPull, chunk.OpPushPull,
	} {
		if kind == chunk.OpPushPull && step > 4 {
			op.Src = op.Dst
		}
		for i := range x {
			x[i] += float32(r.NormFloat64())
		}
		if step == 6 {
			x[codedChunk] = float32(math.Inf(1)) // the chunk travels as it is
		}
		if op.Kind = uint8(kind); memory == chunk.F32 {
			fill(src, r)
		}
		payloads, values := raw(x), x
		if kind == chunk.OpPushPull {
			payloads, values = a.payloads(t, x, changes)
		} else if kind == chunk.OpBroadcast && changes {
			copy(a.kept, x)
		}
		for _, b := range payloads {
			received += uint64(len(b))
		}
		p.start(op)
		p.answerAll(payloads)
		want, got := make([]byte, codedElems*memory.Size()), unsafe.Slice((*byte)(unsafe.Pointer(&dst[0])), codedElems*memory.Size())
		optim.Encode(want, values, memory)
		for i := range want {
			if got[i] != want[i] {
				t.Fatalf("step %d, %v: element %d differs from plain Go", step, kind, i/memory.Size())
			}
		}
	}
	var st worker.Stats
	worker.StatsOf(p.w, &st)
	if st.ReceivedBytes != received || st.ReceivedRawBytes != 7*4*codedElems {
		t.Errorf("%+v, expected %d bytes received", st, received)
	}
}

func TestAnAnswerThatDoesNotDecodeFailsTheWorkerByName(t *testing.T) {
	for _, tc := range []struct {
		what    string
		op      chunk.Op
		answers uint8
		change  func(p []byte) []byte
	}{
		{"it has another version", chunk.OpPushPull, worker.AnswersSums, func(p []byte) []byte { p[1]++; return p }},
		{"codec is unknown", chunk.OpPushPull, worker.AnswersChanges, func(p []byte) []byte { p[0] = 200; return p }},
		{"sparse", chunk.OpPushPull, worker.AnswersChanges, func(p []byte) []byte { p[0] = uint8(codec.TopK); return p }},
		{"a scale is", chunk.OpPushPull, worker.AnswersSums, func(p []byte) []byte { p[19] = 0xc0; return p }},
		{"its length", chunk.OpPushPull, worker.AnswersSums, func(p []byte) []byte { return p[:len(p)-1] }},
		{"shorter than a header", chunk.OpPushPull, worker.AnswersSums, func([]byte) []byte { return nil }},
		{"expected op", chunk.OpPushPull, worker.AnswersWhole, func(p []byte) []byte { return p }},
		{"expected op", chunk.OpPull, worker.AnswersSums, func(p []byte) []byte { return p }},
	} {
		p := newPeer(t, worker.Config{Answers: tc.answers}, 64<<10, f32Tensor(chunk.F32))
		x := p.alloc(codedElems)
		fill(x, rand.New(rand.NewPCG(1, 2)))
		p.start(worker.Op{Src: addr(x), Dst: addr(p.alloc(codedElems)), Kind: uint8(tc.op)})
		m := p.came()[1]
		payload := make([]byte, 4*codedChunk)
		payload = tc.change(payload[:specOf(t, "int8").Encode(payload, x[:codedChunk], nil, 1, codec.Key{})])
		p.fails = true
		p.answer(m, payload)
		rc, text := worker.Failure(p.w)
		if rc != worker.ErrProtocol || !strings.Contains(text, tc.what) || !strings.Contains(text, "lane 0: chunk 1 ") {
			t.Errorf("%d %q, expected a protocol error with %q", rc, text, tc.what)
		}
	}
}

func TestAWorkerWhoseParametersChangedFailsByTheHashOfTheReference(t *testing.T) {
	for _, same := range []bool{true, false} {
		p := newPeer(t, worker.Config{Answers: worker.AnswersChanges}, 64<<10, f32Tensor(chunk.F32))
		x, reference := p.alloc(codedElems), make([]float32, codedChunk)
		fill(x, rand.New(rand.NewPCG(1, 2)))
		p.start(worker.Op{Src: addr(x), Dst: addr(p.alloc(codedElems)), Kind: uint8(chunk.OpPushPull)})
		m := p.came()[1]
		payload := make([]byte, 4*codedChunk)
		n := specOf(t, "int8").EncodeChange(payload, x[:codedChunk], reference, codec.Key{})
		if !same {
			reference[codedChunk-1]++
		}
		whole := codec.AddHash(payload, n, reference)
		if whole != n+4 {
			t.Fatalf("a hash makes %d bytes of %d", whole, n)
		}
		p.fails = !same
		p.answer(m, payload[:whole])
		rc, text := worker.Failure(p.w)
		if same != (rc == 0) || !same && !strings.Contains(text, "differ from those of the other workers") {
			t.Errorf("equal %v: %d %q", same, rc, text)
		}
	}
}
