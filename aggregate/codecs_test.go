package aggregate_test

import (
	"encoding/binary"
	"errors"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/rackweave/rackweave/aggregate"
	"github.com/rackweave/rackweave/aggregate/optim"
	"github.com/rackweave/rackweave/aggregate/racktest"
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

// codedRack is a rack of two workers and one lane, whose first worker's messages the test writes.
type codedRack struct {
	*racktest.Rack
	t       *testing.T
	network func()
	memory  []byte // worker 0's, registered
	key     verbs.MR
}

const (
	codedElems = 1000 // of each chunk
	codedBytes = 4 * codedElems
)

func newCodedRack(t *testing.T, options string, job aggregate.JobConfig) *codedRack {
	t.Helper()
	job.Name, job.ChunkBytes = "job", 4096
	r, network := simRack(t, 1, options, 2, racktest.Config{Lanes: 1, Window: 8, Job: job,
		Tensors: tensorsOf(chunk.F32, codedElems, codedElems, codedElems)})
	m, err := r.Workers[0].Allocate("payloads", codedBytes)
	if err != nil {
		t.Fatal(err)
	}
	return &codedRack{r, t, network, m.Bytes(), m.MRs[0]}
}

// push sends a payload as worker 0's first gradient of a chunk, into a slot.
func (r *codedRack) push(index uint32, slot int, payload []byte) {
	r.t.Helper()
	w := r.Workers[0]
	copy(r.memory, payload)
	_, err := w.QPs[0].PostSend([]verbs.SendWR{{
		Opcode: verbs.OpWriteWithImm, Imm: chunk.Pack(chunk.OpPush, 1, index), LAddr: r.key.Addr, LKey: r.key.LKey,
		Length: uint32(len(payload)), RAddr: w.Peers[0].SlotAddr + uint64(slot*4096), RKey: w.Peers[0].SlotRKey,
	}})
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
		"another byte that is 0":     {"int8", put(3, 1)},
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
				r.push(1, 0, payload(t, "int8", codedElems))
				if f := r.Job.Failure(); f != nil {
					t.Fatalf("a payload that decodes: %v", f.Err)
				}
				r.push(2, 1, tc.lie(payload(t, tc.codec, codedElems)))
				f := r.Job.Failure()
				if f == nil || f.Rank != 0 || !errors.Is(f.Err, codec.ErrPayload) || !errors.Is(f.Err, aggregate.ErrProtocol) ||
					!strings.Contains(f.Err.Error(), "worker 0 sent a gradient of chunk 2 of lane 0 that cannot be read") {
					t.Errorf("the job's failure is %+v", f)
				}
			})
		}
	}
}

func TestAJobWithoutCodecsTakesNoShorterGradient(t *testing.T) {
	r := newCodedRack(t, "", aggregate.JobConfig{Mode: aggregate.Aggregate, Hyper: optim.Sum.Defaults()})
	r.push(0, 0, payload(t, "int8", codedElems))
	if f := r.Job.Failure(); f == nil || f.Rank != 0 || !strings.HasSuffix(f.Err.Error(), "for chunk 0 of lane 0, expected 4000") {
		t.Errorf("the job's failure is %+v", f)
	}
}

// Whatever a message says, its chunk is looked up before it is read.
func TestACodedGradientOfNoChunkFailsTheJob(t *testing.T) {
	for _, index := range []uint32{3, chunk.MovedBit, chunk.IndexMask} {
		r := newCodedRack(t, "", aggregate.JobConfig{Mode: aggregate.Aggregate, Hyper: optim.Sum.Defaults(), Compress: pair(t, "int8", true)})
		r.push(index, 0, payload(t, "int8", codedElems))
		if f := r.Job.Failure(); f == nil || f.Rank != 0 || !strings.Contains(f.Err.Error(), "of lane 0, which has 3") {
			t.Errorf("chunk %d: the job's failure is %+v", index, f)
		}
	}
}

// The counters are of what has arrived, although the chunks are not complete.
func TestWorkersCountersTellWhatCodecsSave(t *testing.T) {
	r := newCodedRack(t, "", aggregate.JobConfig{Mode: aggregate.Aggregate, Hyper: optim.Sum.Defaults(), Compress: pair(t, "int8", true)})
	coded := payload(t, "int8", codedElems)
	r.push(0, 0, coded)
	r.push(1, 1, make([]byte, codedBytes))
	c := r.Job.WorkerCounters()[0].Up
	h := codec.HeaderOf(coded)
	if c.Chunks != 2 || c.Whole != 1 || c.Raw != 2*codedBytes || c.Sent != uint64(codedBytes+len(coded)) ||
		c.Energy != float64(h.Energy) || c.Lost != float64(h.Lost) {
		t.Errorf("%+v, of a payload of %d bytes with %+v", c, len(coded), h)
	}
}
