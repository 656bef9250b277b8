package aggregate_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/rackweave/rackweave/aggregate"
	"github.com/rackweave/rackweave/aggregate/optim"
	"github.com/rackweave/rackweave/aggregate/racktest"
	"github.com/rackweave/rackweave/aggregate/store"
	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/codec"
	"github.com/rackweave/rackweave/verbs"
)

func pair(t testing.TB, text string, answers bool) codec.Pair {
	t.Helper()
	p, err := codec.ParsePair(text, answers)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestCodecsThatAJobCannotTrainWithAreRefused(t *testing.T) {
	for _, tc := range []struct {
		mode     aggregate.Mode
		rule     optim.Rule
		up, down codec.ID
		want     string // of the error, or empty
	}{
		{aggregate.Eager, optim.AdamTorch, codec.Sign, codec.Raw, "optimizer adam_torch divides by the root"},
		{aggregate.Eager, optim.AdamWMXNet, codec.TopK, codec.Raw, "such as int4"},
		{aggregate.TwoPhase, optim.LAMB, codec.TwoBit, codec.Raw, "such as int4"},
		{aggregate.Eager, optim.AdamTorch, codec.Int4, codec.Int8, ""},
		{aggregate.Eager, optim.SGDTorch, codec.Sign, codec.Int8, ""},
		{aggregate.Eager, optim.SGDTorch, codec.Int8, codec.Sign, "a second large loss"},
		{aggregate.Eager, optim.SGDTorch, codec.Int8, codec.TopK, "a second large loss"},
		{aggregate.Aggregate, optim.Sum, codec.Sign, codec.Int4, ""},
		{aggregate.TwoPhase, optim.SGDTorch, codec.Int8, codec.Int8, "mode two-phase cannot send answers in int8"},
		{aggregate.Stream, optim.SGDTorch, codec.Raw, codec.Int4, "mode stream cannot send answers in int4"},
		{aggregate.Stream, optim.SGDTorch, codec.Ternary, codec.Raw, ""},
	} {
		c := aggregate.JobConfig{Name: "job", Workers: 1, Mode: tc.mode, Rule: tc.rule, Hyper: tc.rule.Defaults(), ChunkBytes: 4096,
			Compress: codec.Pair{Up: codec.Spec{ID: tc.up, Param: 0.5}, Down: codec.Spec{ID: tc.down, Param: 0.5}}}
		if tc.mode == aggregate.Stream {
			c.Policy = spec(t, "asp")
		}
		lane := aggregate.LaneConfig{Device: openDevice(t, verbs.ProviderSHM), CPU: -1, Node: -1}
		e, err := aggregate.Start(aggregate.Config{Lanes: []aggregate.LaneConfig{lane}})
		if err != nil {
			t.Fatal(err)
		}
		j, err := e.NewJob(c)
		if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
			t.Errorf("mode %v, %v, codecs %v: %v, want %q", tc.mode, tc.rule, c.Compress, err, tc.want)
		}
		if err == nil {
			err = j.Close()
		} else {
			err = nil
		}
		if err := errors.Join(err, e.Close()); err != nil {
			t.Error(err)
		}
	}
}

func TestATensorThatIsNotF32IsRefusedInAJobWithCodecs(t *testing.T) {
	c := sumJob("job", 1000)
	c.Job.Compress = pair(t, "int8", true)
	r := threadedRack(t, verbs.ProviderSHM, 1, c)
	err := r.Add([]chunk.Tensor{{Name: "half", Elems: 5, DType: chunk.BF16}})
	if err == nil || !strings.Contains(err.Error(), `tensor "half" has wire type bf16, and the job has codecs int8/int8`) {
		t.Error(err)
	}
}

// codedRack is a rack of two workers and one lane, whose messages the test writes.
type codedRack struct {
	*racktest.Rack
	t       *testing.T
	network func()
	ends    [2]codedEnd // by rank
}

// codedEnd is a worker's end, where messages are written.
type codedEnd struct {
	memory []byte
	mr     verbs.MR
	sent   int // messages; each one holds a slot until it is answered
	epoch  [codedChunks]uint8
}

const (
	codedElems  = 1000 // of each chunk, which is a tensor
	codedBytes  = 4 * codedElems
	codedChunks = 3
)

func newCodedRack(t *testing.T, options string, job aggregate.JobConfig) *codedRack {
	t.Helper()
	job.Name, job.ChunkBytes = "job", 4096
	r, network := simRack(t, 1, options, 2, racktest.Config{Lanes: 1, Window: 8, Job: job,
		Tensors: tensorsOf(chunk.F32, codedElems, codedElems, codedElems)})
	c := &codedRack{Rack: r, t: t, network: network}
	for rank := range c.ends {
		m, err := r.Workers[rank].Allocate("payloads", codedBytes)
		if err != nil {
			t.Fatal(err)
		}
		c.ends[rank].memory, c.ends[rank].mr = m.Bytes(), m.MRs[0]
	}
	return c
}

// send sends a worker's next message of a chunk. While no message waits, slots are used in turn.
func (r *codedRack) send(rank int, op chunk.Op, index uint32, payload []byte) {
	r.t.Helper()
	w, e := r.Workers[rank], &r.ends[rank]
	copy(e.memory, payload)
	var epoch uint8
	if index < codedChunks {
		if op == chunk.OpPush || op == chunk.OpPushPull {
			e.epoch[index]++
		}
		epoch = e.epoch[index]
	}
	_, err := w.QPs[0].PostSend([]verbs.SendWR{{
		Opcode: verbs.OpWriteWithImm, Imm: chunk.Pack(op, epoch, index), LAddr: e.mr.Addr, LKey: e.mr.LKey,
		Length: uint32(len(payload)), RAddr: w.Peers[0].SlotAddr + uint64(e.sent%8*4096), RKey: w.Peers[0].SlotRKey,
	}})
	e.sent++
	if err != nil {
		r.t.Fatal(err)
	}
	r.settle()
}

func (r *codedRack) settle() {
	for range 20 {
		r.network()
		if _, err := r.Engine.Lanes()[0].Step(); err != nil {
			r.t.Fatal(err)
		}
	}
}

func gaussian(n int, seed uint64) []float32 {
	x := make([]float32, n)
	fill(rand.New(rand.NewPCG(seed, 1)), x)
	return x
}

// payload returns a gradient in a codec.
func payload(t testing.TB, text string, n int) []byte {
	t.Helper()
	s, err := codec.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	p := make([]byte, 4*n)
	return p[:s.Encode(p, gaussian(n, 1), nil, 1, codec.Key{})]
}

func TestAPayloadThatDoesNotDecodeFailsTheJobByName(t *testing.T) {
	put := func(at int, b ...byte) func([]byte) []byte {
		return func(p []byte) []byte { copy(p[at:], b); return p }
	}
	word := func(at int, v uint32) func([]byte) []byte {
		return put(at, binary.LittleEndian.AppendUint32(nil, v)...)
	}
	nan := math.Float32bits(float32(math.NaN()))
	index := codec.HeaderBytes + 4*codedElems/100 // of the first index of topk:1%
	for name, tc := range map[string]struct {
		codec string
		lie   func([]byte) []byte
	}{
		"an unknown codec":           {"int8", put(0, 77)},
		"raw in a short payload":     {"int8", put(0, 0)},
		"a later version":            {"int8", put(1, 2)},
		"unknown flags":              {"int8", put(2, 4)},
		"unknown flags of byte 3":    {"int8", put(3, 2)},
		"more elements":              {"int8", word(4, codedElems+1)},
		"fewer elements":             {"int4", word(4, codedElems-1)},
		"a NaN for the energy":       {"int8", word(8, nan)},
		"a negative loss":            {"int8", word(12, math.Float32bits(-1))},
		"a NaN for a scale":          {"int8", word(codec.HeaderBytes, nan)},
		"an infinite scale":          {"sign", word(codec.HeaderBytes+4, 0x7f800000)},
		"a codec of another length":  {"int8", put(0, byte(codec.Int4))},
		"a payload cut short":        {"int8", func(p []byte) []byte { return p[:len(p)-1] }},
		"less than a header":         {"int8", func(p []byte) []byte { return p[:8] }},
		"nothing":                    {"int8", func(p []byte) []byte { return p[:0] }},
		"an index past the last":     {"topk:1%", put(index+18, 0xff, 0xff)},
		"an index twice":             {"topk:1%", func(p []byte) []byte { copy(p[index+2:], p[index:index+2]); return p }},
		"more values than the chunk": {"topk:1%", word(4, 0xffffffff)},
		"fewer values":               {"topk:1%", word(4, 9)},
		"a value that is infinite":   {"topk:1%", word(codec.HeaderBytes, 0x7f800000)},
		"a bitmap for indexes":       {"topk:1%", put(2, 1)},
		"a bitmap of more elements":  {"topk:50%", put(codec.HeaderBytes+4*codedElems/2, 0xff, 0xff, 0xff, 0xff)},
	} {
		for _, options := range []string{"", ",by_reference=1"} {
			t.Run(name+options, func(t *testing.T) {
				r := newCodedRack(t, options, aggregate.JobConfig{Mode: aggregate.Eager, Rule: optim.SGDTorch,
					Hyper: optim.SGDTorch.Defaults(), Compress: pair(t, "int8/none", true)})
				r.send(0, chunk.OpPush, 1, payload(t, "int8", codedElems))
				if f := r.Job.Failure(); f != nil {
					t.Fatalf("a payload that decodes: %v", f.Err)
				}
				r.send(0, chunk.OpPush, 2, tc.lie(payload(t, tc.codec, codedElems)))
				f := r.Job.Failure()
				if f == nil || f.Rank != 0 || !errors.Is(f.Err, codec.ErrPayload) || !errors.Is(f.Err, aggregate.ErrProtocol) ||
					!strings.Contains(f.Err.Error(), "worker 0 sent a gradient of chunk 2 of lane 0 that cannot be read") {
					t.Errorf("the job's failure is %+v", f)
				}
			})
		}
	}
}

// By reference a payload stays in its worker's memory, where the worker may change it after it was checked.
func TestAPayloadThatChangesAfterItWasCheckedHurtsNothingElse(t *testing.T) {
	for _, text := range []string{"int8", "sign", "topk:1%", "topk:50%", "fp8-e5m2"} {
		t.Run(text, func(t *testing.T) {
			r := newCodedRack(t, ",by_reference=1", aggregate.JobConfig{Mode: aggregate.Eager, Rule: optim.SGDTorch,
				Hyper: optim.SGDTorch.Defaults(), Compress: pair(t, "int8", true)})
			r.send(0, push, 1, payload(t, text, codedElems))
			for i := range r.ends[0].memory {
				r.ends[0].memory[i] = 0xff
			}
			r.send(1, push, 1, payload(t, text, codedElems))
			st := r.Job.Shards()[0].Store
			if f := r.Job.Failure(); f != nil || st.Chunks[1].Updates != 1 {
				t.Fatalf("%+v, %d updates", f, st.Chunks[1].Updates)
			}
			for _, c := range []int{0, 2} {
				c := &st.Chunks[c]
				for i, x := range append(slices.Clone(st.Values(c, 0)), store.Floats(c.Kept, c.Elems)...) {
					if x != 0 {
						t.Fatalf("element %d of another chunk has become %v", i, x)
					}
				}
			}
		})
	}
}

func TestAJobWithoutCodecsTakesNoShorterGradient(t *testing.T) {
	r := newCodedRack(t, "", aggregate.JobConfig{Mode: aggregate.Aggregate, Hyper: optim.Sum.Defaults()})
	r.send(0, chunk.OpPush, 0, payload(t, "int8", codedElems))
	if f := r.Job.Failure(); f == nil || f.Rank != 0 || !strings.HasSuffix(f.Err.Error(), "for chunk 0 of lane 0, expected 4000") {
		t.Errorf("the job's failure is %+v", f)
	}
}

// Whatever a message says, its chunk is looked up before it is read.
func TestACodedGradientOfNoChunkFailsTheJob(t *testing.T) {
	for _, index := range []uint32{3, chunk.MaxLaneChunks, chunk.IndexMask} {
		r := newCodedRack(t, "", aggregate.JobConfig{Mode: aggregate.Aggregate, Hyper: optim.Sum.Defaults(), Compress: pair(t, "int8", true)})
		r.send(0, chunk.OpPush, index, payload(t, "int8", codedElems))
		if f := r.Job.Failure(); f == nil || f.Rank != 0 || !strings.Contains(f.Err.Error(), "of lane 0, which has 3") {
			t.Errorf("chunk %d: the job's failure is %+v", index, f)
		}
	}
}

// The counters are of what has arrived, although the chunks are not complete.
func TestWorkersCountersTellWhatCodecsSave(t *testing.T) {
	r := newCodedRack(t, "", aggregate.JobConfig{Mode: aggregate.Aggregate, Hyper: optim.Sum.Defaults(), Compress: pair(t, "int8", true)})
	coded := payload(t, "int8", codedElems)
	r.send(0, chunk.OpPush, 0, coded)
	r.send(0, chunk.OpPush, 1, make([]byte, codedBytes))
	c := r.Job.WorkerCounters()[0].Up
	h := codec.HeaderOf(coded)
	if c.Chunks != 2 || c.Whole != 1 || c.Raw != 2*codedBytes || c.Sent != uint64(codedBytes+len(coded)) ||
		c.Energy != float64(h.Energy) || c.Lost != float64(h.Lost) {
		t.Errorf("%+v, of a payload of %d bytes with %+v", c, len(coded), h)
	}
}

// What follows a payload after which the worker could send more tells of the link; sums are of one codec.
func TestGaugesTellWhatAControllerChoosesBy(t *testing.T) {
	r := newCodedRack(t, "", aggregate.JobConfig{Mode: aggregate.Aggregate, Hyper: optim.Sum.Defaults(),
		Compress: pair(t, "auto:answers=none", true)})
	more, last, other := payload(t, "int8", codedElems), payload(t, "int8", codedElems), payload(t, "int4", codedElems)
	more[3] = 1
	for step, p := range [][]byte{more, last, other} {
		r.send(0, chunk.OpPush, 0, p)
		r.send(1, chunk.OpPush, 0, make([]byte, codedBytes))
		r.send(0, chunk.OpPush, 1, p)
		r.send(1, chunk.OpPush, 1, last)
		g, _, err := r.Job.ReadGauges(t.Context(), 3)
		if err != nil {
			t.Fatal(err)
		}
		h := codec.HeaderOf(p)
		sums := g[0].Tensors[0]
		if g[0].Steps != uint64(step+1) || sums.Codec != h.ID || sums.Elems != codedElems || sums.Energy != float64(h.Energy) ||
			sums.Lost != float64(h.Lost) || g[1].Tensors[0].Elems != 0 || g[0].Tensors[2].Elems != 0 {
			t.Errorf("step %d: %+v", step, g)
		}
		if _, _, err := r.Job.ReadGauges(t.Context(), 0); err != nil { // as before the tensors are announced
			t.Fatal(err)
		}
		// The first payload of the second step follows one that told of more, too.
		if want := []int64{1, 1, 0}[step]; g[0].Flow.Chunks != want || g[0].Flow.Bytes != want*int64(len(p)) || g[0].Flow.NS < 0 {
			t.Errorf("step %d: %+v", step, g[0].Flow)
		}
	}
}

// What shorter candidates would lose is measured of a worker's gradient once in 100 steps, unless its codec has lost much already.
func TestCandidatesAreTriedWithGradients(t *testing.T) {
	specs := []codec.Spec{{}, {ID: codec.Int8}, {ID: codec.Int4}, {ID: codec.Sign}, {ID: codec.TopK, Param: 0.01}}
	r := newCodedRack(t, "", aggregate.JobConfig{Mode: aggregate.Aggregate, Hyper: optim.Sum.Defaults(),
		Compress: pair(t, "auto:answers=none", true), Candidates: specs})
	p := payload(t, "int8", codedElems)
	decoded := make([]float32, codedElems)
	if err := codec.Decode(decoded, p); err != nil {
		t.Fatal(err)
	}
	raw := slices.Concat(make([]byte, 4), make([]byte, codedBytes-4))
	for i, v := range decoded {
		binary.LittleEndian.PutUint32(raw[4*i:], math.Float32bits(v))
	}
	tries := func(tensor uint32, payloads ...[]byte) []aggregate.TensorGauge {
		for rank, p := range payloads {
			r.send(rank, chunk.OpPush, tensor, p)
		}
		_, tries, err := r.Job.ReadGauges(t.Context(), 3)
		if err != nil || len(tries) != 3*len(specs) {
			t.Fatalf("%v, %v", tries, err)
		}
		return tries[int(tensor)*len(specs):][:len(specs)]
	}
	check := func(what string, got []aggregate.TensorGauge, most int) {
		for i, s := range specs {
			var want aggregate.TensorGauge
			buffer := make([]byte, codedBytes)
			if n := s.Encode(buffer, decoded, nil, 1, codec.Key{}); s.Bytes(codedElems) < most {
				h := codec.HeaderOf(buffer[:n])
				want = aggregate.TensorGauge{Codec: s.ID, Elems: codedElems, Energy: float64(h.Energy), Lost: float64(h.Lost)}
			}
			if i == 0 && most == codedBytes {
				want = aggregate.TensorGauge{Elems: codedElems, Energy: got[0].Energy}
				if e := float64(codec.HeaderOf(p).Energy); math.Abs(got[0].Energy-e) > 0.01*e {
					t.Errorf("%s: the energy is %v, want %v", what, got[0].Energy, e)
				}
			}
			if got[i] != want {
				t.Errorf("%s, %v: %+v, want %+v", what, s, got[i], want)
			}
		}
	}
	check("the first gradient of rank 0", tries(0, p, raw), len(p))
	check("the second of rank 1", tries(0, p, raw), codedBytes)
	check("others", tries(0, p, raw), 0)
	check("a gradient that tells too little", tries(1, payload(t, "sign", codedElems), raw), 0)
}

// Each worker chooses its own codec, whatever the job's is.
func TestGradientsInAnyCodecsAreSummedAsPlainGoDecodesThem(t *testing.T) {
	h := optim.SGDTorch.Defaults()
	h.Momentum = 0.9
	texts := append(codec.Names(), "topk:50%")
	for _, tc := range []struct {
		name string
		job  aggregate.JobConfig
	}{
		{"eager", aggregate.JobConfig{Mode: aggregate.Eager}},
		{"flat", aggregate.JobConfig{Mode: aggregate.Eager, Part: aggregate.Part{RackWorkers: []int{1, 1}}}},
		{"two-phase", aggregate.JobConfig{Mode: aggregate.TwoPhase}},
	} {
		for _, options := range []string{"", ",by_reference=1"} {
			t.Run(tc.name+options, func(t *testing.T) {
				tc.job.Rule, tc.job.Hyper, tc.job.Compress = optim.SGDTorch, h, pair(t, "int8/none", true)
				r := newCodedRack(t, options, tc.job)
				ref := racktest.NewReference(tc.job.Mode, optim.SGDTorch, h, chunk.F32, [][]float32{make([]float32, codedElems)})
				acc := make([]float32, codedElems)
				for i := range texts {
					var grads [][]float32
					for rank := range r.ends {
						p := payload(t, texts[(i*(1+2*rank)+rank)%len(texts)], codedElems)
						g := make([]float32, codedElems)
						if err := codec.Decode(g, p); err != nil {
							t.Fatal(err)
						}
						grads = append(grads, g)
						r.send(rank, push, 0, p)
					}
					if f := r.Job.Failure(); f != nil {
						t.Fatal(f.Err)
					}
					want, array := ref.W[0], 0
					if tc.job.Mode == aggregate.TwoPhase {
						optim.SumInto(acc, grads, i > 0)
						want, array = acc, 2
					} else {
						ref.StepTensor(0, grads)
					}
					st := r.Job.Shards()[0].Store
					if at, same := racktest.SameBits(st.Values(&st.Chunks[0], array), want); !same {
						t.Fatalf("step %d: element %d differs from plain Go", i, at)
					}
				}
			})
		}
	}
}

// bytesOf returns raw values as they travel.
func bytesOf(x []float32) (p []byte) {
	for _, v := range x {
		p = binary.LittleEndian.AppendUint32(p, math.Float32bits(v))
	}
	return p
}

// step sends both workers' gradients of chunk 0, by these operations, and returns the gradients.
func (r *codedRack) step(seed uint64, ops ...chunk.Op) (grads [][]float32) {
	r.t.Helper()
	for rank, op := range ops {
		g := gaussian(codedElems, 2*seed+uint64(rank))
		grads = append(grads, g)
		r.send(rank, op, 0, bytesOf(g))
	}
	if f := r.Job.Failure(); f != nil {
		r.t.Fatal(f.Err)
	}
	return grads
}

// kept compares what the aggregator keeps for the answers of chunk 0.
func (r *codedRack) kept(what string, want []float32) {
	r.t.Helper()
	got := store.Floats(r.Job.Shards()[0].Store.Chunks[0].Kept, codedElems)
	if i, same := racktest.SameBits(got, want); !same {
		r.t.Fatalf("%s: element %d is %v, plain Go says %v", what, i, got[i], want[i])
	}
}

const push, pushpull = chunk.OpPush, chunk.OpPushPull

// A change can be sent only to workers that hold what it is a change of.
func TestTheReferenceIsWhatAllWorkersHold(t *testing.T) {
	for _, down := range []string{"int8", "int4", "int8:stochastic", "fp8-e4m3"} {
		t.Run(down, func(t *testing.T) {
			h := optim.SGDTorch.Defaults()
			r := newCodedRack(t, "", aggregate.JobConfig{Mode: aggregate.Eager, Rule: optim.SGDTorch, Hyper: h,
				Compress: pair(t, "none/"+down, true)})
			initial := gaussian(codedElems, 99)
			r.send(0, chunk.OpBroadcast, 0, bytesOf(initial))
			r.send(1, chunk.OpBroadcast, 0, nil)
			ref := racktest.NewReference(aggregate.Eager, optim.SGDTorch, h, chunk.F32, [][]float32{initial})
			stream := codec.NewStream(pair(t, "none/"+down, true).Down, codedElems, codedElems, codec.Key{Rank: codec.AnswerRank})
			copy(stream.Kept, initial)
			r.kept("broadcast", initial)
			for i, s := range []struct {
				ops     []chunk.Op
				changes bool
				whole   bool // answered with the reference itself
			}{
				{[]chunk.Op{pushpull, pushpull}, true, false}, {[]chunk.Op{pushpull, pushpull}, true, false},
				{[]chunk.Op{push, push}, false, false}, {[]chunk.Op{pushpull, pushpull}, true, false},
				{[]chunk.Op{push, pushpull}, true, false}, {[]chunk.Op{push, push}, false, false},
				{[]chunk.Op{pushpull, push}, true, true}, {[]chunk.Op{pushpull, pushpull}, true, true},
				{[]chunk.Op{pushpull, pushpull}, true, false},
			} {
				before := r.Job.WorkerCounters()
				if w := ref.StepTensor(0, r.step(uint64(i), s.ops...)); s.changes {
					stream.Parameters(w)
				}
				r.kept(fmt.Sprint("step ", i), stream.Kept)
				for rank, c := range r.Job.WorkerCounters() {
					want := uint64(0)
					switch b := &before[rank]; {
					case s.ops[rank] == push:
					case !s.whole:
						want = uint64(stream.Spec.Bytes(codedElems))
						if c.Down.Lost <= b.Down.Lost || c.Down.Energy <= b.Down.Energy || c.Down.Raw != b.Down.Raw+codedBytes {
							t.Errorf("step %d: %+v after %+v", i, c.Down, b.Down)
						}
					default:
						want = codedBytes
					}
					if n := c.SentBytes - before[rank].SentBytes; n != want {
						t.Errorf("step %d: worker %d gets %d bytes, expected %d", i, rank, n, want)
					}
				}
				r.send(i%2, chunk.OpPull, 0, nil) // which changes nothing
				r.kept("pull", stream.Kept)
			}
		})
	}
}

func TestParametersThatAreNotFiniteAreAnsweredAsTheyAre(t *testing.T) {
	r := newCodedRack(t, "", aggregate.JobConfig{Mode: aggregate.Eager, Rule: optim.SGDTorch, Hyper: optim.SGDTorch.Defaults(),
		Compress: pair(t, "none/int8", true)})
	r.step(1, pushpull, pushpull)
	g := gaussian(codedElems, 3)
	g[7] = float32(math.Inf(1))
	before := r.Job.WorkerCounters()[0].SentBytes
	r.send(0, pushpull, 0, bytesOf(g))
	r.send(1, pushpull, 0, bytesOf(gaussian(codedElems, 4)))
	st := r.Job.Shards()[0].Store
	r.kept("the reference", st.Values(&st.Chunks[0], 0))
	if n := r.Job.WorkerCounters()[0].SentBytes - before; n != codedBytes {
		t.Errorf("the answer has %d bytes", n)
	}
}

func TestSumsTakeTheirResidualAlong(t *testing.T) {
	h := optim.Sum.Defaults()
	r := newCodedRack(t, "", aggregate.JobConfig{Mode: aggregate.Aggregate, Hyper: h, Compress: pair(t, "none/int4", true)})
	ref := racktest.NewReference(aggregate.Aggregate, optim.Sum, h, chunk.F32, [][]float32{make([]float32, codedElems)})
	stream := codec.NewStream(codec.Spec{ID: codec.Int4}, codedElems, codedElems, codec.Key{Rank: codec.AnswerRank})
	r.send(0, chunk.OpBroadcast, 0, bytesOf(gaussian(codedElems, 99)))
	r.send(1, chunk.OpBroadcast, 0, nil)
	for i, ops := range [][]chunk.Op{{pushpull, pushpull}, {push, pushpull}, {pushpull, pushpull}} {
		stream.Gradient(ref.StepTensor(0, r.step(uint64(i), ops...)), 1)
		r.kept(fmt.Sprint("step ", i), stream.Kept)
	}
	before := slices.Clone(stream.Kept)
	ref.StepTensor(0, r.step(7, push, push))
	r.kept("nobody pulls", before)
}

// What is kept for answers belongs to the job's memory from its tensors on, and is charged.
func TestWhatIsKeptForAnswersIsCharged(t *testing.T) {
	for _, mode := range []aggregate.Mode{aggregate.Eager, aggregate.Aggregate} {
		c := aggregate.JobConfig{Name: "job", Mode: mode, Rule: optim.SGDTorch, Hyper: optim.SGDTorch.Defaults()}
		need := func(text string) (charged, held int64) {
			c.Compress = pair(t, text, true)
			r := threadedRack(t, verbs.ProviderSHM, 1, racktest.Config{Lanes: 1, Job: c, Tensors: tensorsOf(chunk.F32, 1<<20)})
			c.ChunkBytes = r.Config.Job.ChunkBytes
			return r.Engine.TensorsNeed(c, tensorsOf(chunk.F32, 1<<20)).Bytes, int64(r.Job.Memory().Parameters)
		}
		raw, rawHeld := need("int8/none")
		coded, codedHeld := need("int8/int8")
		if more := coded - raw; more < codedHeld-rawHeld || more > 4<<20+4<<20/64 || codedHeld-rawHeld < 4<<20 {
			t.Errorf("mode %v: %d bytes more are charged for %d more that are held", mode, more, codedHeld-rawHeld)
		}
	}
}
