package service_test

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/client"
	"github.com/rackweave/rackweave/codec"
	"github.com/rackweave/rackweave/service"
	"github.com/rackweave/rackweave/service/api"
	"github.com/rackweave/rackweave/verbs"
)

var tensorsOfAuto = []client.Tensor{{Name: "a", Shape: []uint64{40_000}}, {Name: "b", Shape: []uint64{9000}},
	{Name: "c", Shape: []uint64{100}}, {Name: "d", Shape: []uint64{64, 512}}}

// gradientOf returns a gradient, whose energy differs between tensors.
func gradientOf(step, rank, tensor int) []float32 {
	r := rand.New(rand.NewPCG(uint64(step), uint64(rank<<8|tensor)))
	x := make([]float32, tensorsOfAuto[tensor].Elems())
	for i := range x {
		x[i] = float32(r.NormFloat64()) / float32(1+10*tensor)
	}
	return x
}

// exchangeAuto exchanges a step's gradients, and returns what each worker got.
func exchangeAuto(t *testing.T, workers []*client.Worker, step int) [][][]float32 {
	t.Helper()
	out, errs := make([][][]float32, len(workers)), make([]error, len(workers))
	var wg sync.WaitGroup
	for rank, w := range workers {
		wg.Go(func() {
			for tensor := range tensorsOfAuto {
				x := gradientOf(step, rank, tensor)
				h, err := w.PushPull(tensor, client.Bytes(x), client.Bytes(x), 0)
				if err == nil {
					err = h.Wait(within(t))
				}
				out[rank] = append(out[rank], x)
				if err != nil {
					errs[rank] = fmt.Errorf("step %d, tensor %d: %w", step, tensor, err)
					return
				}
			}
		})
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
	return out
}

// settled waits until the controller has seen a step, and its decision, if any, was accepted or withdrawn.
func settled(t *testing.T, s *service.Service, steps int) *api.JobStatus {
	t.Helper()
	for end := time.Now().Add(deadline); time.Now().Before(end); {
		r, err := s.Status(within(t), nil)
		if err != nil {
			t.Fatal(err)
		}
		j := r.Jobs[0]
		if !slices.ContainsFunc(j.Members, func(m *api.WorkerStatus) bool { return m.Step != uint64(steps) }) && j.PendingDecision == "" {
			return j
		}
	}
	t.Fatalf("the controller has not seen step %d within %v", steps, deadline)
	return nil
}

// decision is a line of a job's log.
type decision struct {
	step   int
	codecs []codec.Spec // by tensor
}

// readDecision reads a line such as "3 from step 152: int4*2 none int8".
func readDecision(t *testing.T, line string) (d decision) {
	t.Helper()
	head, list, _ := strings.Cut(line, ":")
	version := 0
	if _, err := fmt.Sscanf(head, "%d from step %d", &version, &d.step); err != nil {
		t.Fatalf("%q: %v", line, err)
	}
	for field := range strings.FieldsSeq(list) {
		name, times, _ := strings.Cut(field, "*")
		spec, err := codec.Parse(name)
		n, _ := strconv.Atoi(cmp.Or(times, "1"))
		if err != nil || n < 1 {
			t.Fatalf("%q: %q: %v", line, field, err)
		}
		d.codecs = append(d.codecs, slices.Repeat([]codec.Spec{spec}, n)...)
	}
	return d
}

// replayed returns the sums of a step as plain Go has them, with the codecs of a log.
type replayed struct {
	log     []decision
	streams [][]*codec.Stream // by rank and tensor
}

func newReplayed(t *testing.T, log []string, start codec.Spec) *replayed {
	t.Helper()
	r := &replayed{streams: make([][]*codec.Stream, 2)}
	for _, line := range log {
		r.log = append(r.log, readDecision(t, line))
	}
	for i := range tensorsOfAuto {
		for rank := range r.streams {
			r.streams[rank] = append(r.streams[rank], codec.NewStream(start, int(tensorsOfAuto[i].Elems()), chunk.DefaultChunkBytes/4,
				codec.Key{Tensor: uint32(i), Rank: uint32(rank)}))
		}
	}
	return r
}

func (r *replayed) sums(step int) (sums [][]float32) {
	for tensor := range tensorsOfAuto {
		var sum []float32
		for rank, streams := range r.streams {
			s := streams[tensor]
			for _, d := range r.log {
				if step >= d.step {
					s.Spec = d.codecs[tensor]
				}
			}
			if g := s.Gradient(gradientOf(step, rank, tensor), 1); rank == 0 {
				sum = g
			} else {
				for i, v := range g {
					sum[i] += v
				}
			}
		}
		sums = append(sums, sum)
	}
	return sums
}

// Same gradients, same decisions, same bits: the log of the job says at which steps the codecs change, and plain Go that follows it
// has the sums that the workers got.
func TestAControllersDecisionsAreAcceptedAndReplayed(t *testing.T) {
	for _, provider := range []string{verbs.ProviderTCP, verbs.ProviderSHM} {
		t.Run(provider, func(t *testing.T) {
			s, _ := serve(t, service.Options{Cores: 1, Providers: []string{provider}})
			workers := join(t, s, client.Config{Job: "j", Workers: 2, Provider: provider,
				Compress: "auto:budget=0.15,answers=none"})
			var wg sync.WaitGroup
			for _, w := range workers {
				wg.Go(func() {
					if err := w.Register(within(t), tensorsOfAuto); err != nil {
						t.Error(err)
					}
				})
			}
			wg.Wait()
			const steps = 12
			var got [][][][]float32
			var last *api.JobStatus
			for step := range steps {
				got = append(got, exchangeAuto(t, workers, step))
				last = settled(t, s, step+1)
			}
			if len(last.Decisions) == 0 || !strings.Contains(last.Decisions[0], "int4") || last.Compress != "auto:budget=0.15,answers=none" {
				t.Fatalf("the decisions of %s are %q", last.Compress, last.Decisions)
			}
			t.Log(last.Decisions)
			plain := newReplayed(t, last.Decisions, codec.Spec{ID: codec.Int8})
			for step := range steps {
				want := plain.sums(step)
				for rank := range workers {
					for tensor := range want {
						if !slices.Equal(got[step][rank][tensor], want[tensor]) {
							t.Fatalf("step %d: worker %d got other sums of tensor %d than the log's replay has", step, rank, tensor)
						}
					}
				}
			}
			before, err := workers[0].Stats()
			if err != nil {
				t.Fatal(err)
			}
			exchangeAuto(t, workers, steps)
			after, err := workers[0].Stats()
			if err != nil {
				t.Fatal(err)
			}
			sent, raw := after.SentBytes-before.SentBytes, after.SentRawBytes-before.SentRawBytes
			if float64(sent) > 0.15*float64(raw) {
				t.Errorf("%d bytes of %d are above the budget", sent, raw)
			}
		})
	}
}

// By what top-k loses of dense values, sign would be better for all tensors.
func TestASparseTensorsBestCodecIsFoundByTryingIt(t *testing.T) {
	s, _ := serve(t, service.Options{Cores: 1})
	w := join(t, s, client.Config{Job: "j", Workers: 1, Compress: "auto:budget=0.05,codecs=int8+int4+sign+topk:1%,answers=none"})[0]
	if err := w.Register(within(t), tensorsOfAuto[:2]); err != nil {
		t.Fatal(err)
	}
	for step := range 400 {
		for tensor := range 2 {
			x := gradientOf(step, 0, tensor)
			for i := range x {
				if x[i] *= float32(1 + 1000*tensor); tensor == 1 && i%100 > 0 {
					x[i] = 0
				}
			}
			h, err := w.PushPull(tensor, client.Bytes(x), client.Bytes(x), 0)
			if err == nil {
				err = h.Wait(within(t))
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		if d := settled(t, s, step+1).Decisions; len(d) > 0 && strings.HasSuffix(d[len(d)-1], ": sign topk:0.01") {
			t.Log(d)
			return
		}
	}
	t.Errorf("top-k is not chosen: %q", settled(t, s, 400).Decisions)
}

func TestABadTextOfAControllerIsRefused(t *testing.T) {
	s, _ := serve(t, service.Options{Cores: 1})
	for text, want := range map[string]string{
		"auto:budgt=1": "did you mean budget", "auto:codecs=int8+sign": "use a codec of 4 bits", "auto:codecs=int8+none": "leave it out",
		"auto:answers=sign": "use none, int8",
	} {
		_, err := client.Join(within(t), client.Config{Server: s.URL(), Job: "j", Workers: 1, Mode: "eager", Optimizer: "adam_torch",
			Compress: text})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
}
