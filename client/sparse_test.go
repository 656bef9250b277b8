package client_test

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/rackweave/rackweave/aggregate"
	"github.com/rackweave/rackweave/aggregate/optim"
	"github.com/rackweave/rackweave/aggregate/racktest"
	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/client"
	"github.com/rackweave/rackweave/service"
	"github.com/rackweave/rackweave/verbs"
)

// sparseModel has tables of rows that take part of a chunk, and of nearly a chunk, beside a dense tensor. One is placed by
// frequencies, by which the last row is touched as often as all others.
func sparseModel() []client.Tensor {
	frequencies := slices.Repeat([]float32{1}, 3000)
	frequencies[2999] = 3000
	return []client.Tensor{
		{Name: "table", Shape: []uint64{3000, 8}, Sparse: true, Frequencies: frequencies},
		{Name: "dense", Shape: []uint64{5000}},
		{Name: "wide", Shape: []uint64{40, 1000}, Sparse: true},
	}
}

// draw returns the rows that a worker touches: none, some, or all.
func draw(r *rand.Rand, rows uint64) []int64 {
	ids, share := make([]int64, 0, rows), []float64{0, 0.05, 0.5, 1}[r.IntN(4)]
	for i := range int64(rows) {
		if r.Float64() < share {
			ids = append(ids, i)
		}
	}
	return ids
}

// packed returns the given rows of a table.
func packed(table []float32, ids []int64, width int) (out []float32) {
	for _, id := range ids {
		out = append(out, table[int(id)*width:][:width]...)
	}
	return out
}

// sparseStep is one worker's exchange of all tensors, and what it compares.
type sparseStep struct {
	ids         [][]int64
	grads, dsts [][]float32
	unions      []client.Union
}

// drawStep draws the rows that a worker touches, and their gradients.
func drawStep(r *rand.Rand, seed uint64, tensors []client.Tensor, dsts [][]float32) sparseStep {
	x := randomModel(seed, tensors)
	s := sparseStep{make([][]int64, len(tensors)), x, dsts, make([]client.Union, len(tensors))}
	for i, t := range tensors {
		if !t.Sparse {
			continue
		}
		s.ids[i] = draw(r, t.Shape[0])
		for row := range int(t.Shape[0]) {
			if _, ok := slices.BinarySearch(s.ids[i], int64(row)); !ok {
				width := int(t.Elems() / t.Shape[0])
				clear(x[i][row*width:][:width])
			}
		}
	}
	return s
}

func (s *sparseStep) ops(tensors []client.Tensor) (ops []client.Op) {
	for i, t := range tensors {
		op := client.Op{Kind: client.PushPull, Tensor: i, Src: client.Bytes(s.grads[i])}
		if s.dsts != nil {
			op.Dst = client.Bytes(s.dsts[i])
		}
		if t.Sparse {
			op.Src = client.Bytes(packed(s.grads[i], s.ids[i], int(t.Elems()/t.Shape[0])))
			op.Rows, op.Union = s.ids[i], &s.unions[i]
		}
		ops = append(ops, op)
	}
	return ops
}

func TestRowsAreExchangedBitEqualToTheReference(t *testing.T) {
	const workers, steps = 3, 4
	for _, provider := range providers() {
		s := serve(t, service.Options{Providers: []string{provider}})
		for _, mode := range []aggregate.Mode{aggregate.Aggregate, aggregate.Eager} {
			for _, wire := range []chunk.DType{chunk.F32, chunk.BF16} {
				t.Run(fmt.Sprint(provider, " ", mode, " ", wire), func(t *testing.T) {
					cfg := client.Config{
						Job: fmt.Sprintf("%v-%v", mode, wire), Workers: workers, Mode: mode.String(), Provider: provider, WireType: wire,
						ChunkBytes: 4096,
					}
					rule := optim.Rule(0)
					if mode == aggregate.Eager {
						cfg.Optimizer = "sgd_torch"
						rule, _ = optim.Parse(cfg.Optimizer)
					}
					h, err := rule.Hyper(nil)
					if err != nil {
						t.Fatal(err)
					}
					tensors := sparseModel()
					start := randomModel(7, tensors)
					for i := range start {
						start[i] = racktest.OnWire(wire, start[i])
					}
					ref := racktest.NewReference(mode, rule, h, wire, start)
					all := joinAll(t, s, cfg)
					exchangeRows(t, all, tensors, ref, begin(t, all, tensors, ref, wire == chunk.F32), steps, mode == aggregate.Eager)
				})
			}
		}
	}
}

// exchangeRows runs steps over rows drawn at random, and compares results and unions.
func exchangeRows(t *testing.T, workers []*client.Worker, tensors []client.Tensor, ref *racktest.Reference, dsts [][][]float32,
	steps int, keeps bool) {
	t.Helper()
	r := rand.New(rand.NewPCG(8, 9))
	for step := range steps {
		all, grads := make([]sparseStep, len(workers)), make([][][]float32, len(workers))
		for rank := range all {
			all[rank] = drawStep(r, uint64(step*100+rank+1), tensors, dsts[rank])
			grads[rank] = all[rank].grads
		}
		want := ref.Step(grads)
		each(t, workers, func(rank int, w *client.Worker) error {
			handles, err := w.Submit(all[rank].ops(tensors)...)
			if err != nil {
				return err
			}
			if err := w.WaitAll(bounded(t), handles); err != nil {
				return err
			}
			for i := range tensors {
				if err := checkRows(&tensors[i], all, rank, i, want[i]); err != nil {
					return fmt.Errorf("step %d: %w", step, err)
				}
			}
			if !keeps {
				return nil
			}
			return pullRows(bounded(t), w, rand.New(rand.NewPCG(uint64(step), uint64(rank))), &tensors[0], want[0])
		})
	}
}

// checkRows compares a worker's results of a tensor.
func checkRows(tensor *client.Tensor, all []sparseStep, rank, i int, want []float32) error {
	got := all[rank].dsts[i]
	if tensor.Sparse {
		union := []int64{}
		for row := range int64(tensor.Shape[0]) {
			if slices.ContainsFunc(all, func(s sparseStep) bool { _, ok := slices.BinarySearch(s.ids[i], row); return ok }) {
				union = append(union, row)
			}
		}
		if !slices.Equal(all[rank].unions[i].Rows(), union) {
			return fmt.Errorf("tensor %d: the union has %d rows, expected %d", i, len(all[rank].unions[i].Rows()), len(union))
		}
		width := int(tensor.Elems() / tensor.Shape[0])
		got, want = packed(got, union, width), packed(want, union, width)
	}
	if at, same := racktest.SameBits(got, want); !same {
		return fmt.Errorf("tensor %d, element %d of the results: %v, the reference has %v", i, at, got[at], want[at])
	}
	return nil
}

// pullRows pulls rows, some of them twice, and compares them.
func pullRows(ctx context.Context, w *client.Worker, r *rand.Rand, tensor *client.Tensor, want []float32) error {
	ids, width := make([]int64, r.IntN(int(tensor.Shape[0]))), int(tensor.Elems()/tensor.Shape[0])
	for i := range ids {
		ids[i] = r.Int64N(int64(tensor.Shape[0]))
	}
	dst := make([]float32, len(ids)*width)
	handles, err := w.Submit(client.Op{Kind: client.Pull, Dst: client.Bytes(dst), Rows: ids})
	if err != nil {
		return err
	}
	if err := w.WaitAll(ctx, handles); err != nil {
		return err
	}
	if at, same := racktest.SameBits(dst, packed(want, ids, width)); !same {
		return fmt.Errorf("row %d was pulled as %v", ids[at/width], dst[at])
	}
	return nil
}

func TestPullsWaitForNoWorkerThatDoesNot(t *testing.T) {
	for _, provider := range providers() {
		t.Run(provider, func(t *testing.T) {
			s := serve(t, service.Options{Providers: []string{provider}})
			cfg := client.Config{
				Job: "j", Workers: 4, Mode: "eager", Optimizer: "sgd_torch", Provider: provider, ChunkBytes: 4096,
			}
			h, err := optim.SGDTorch.Hyper(nil)
			if err != nil {
				t.Fatal(err)
			}
			tensors, all := []client.Tensor{{Name: "table", Shape: []uint64{5120, 8}, Sparse: true}}, joinAll(t, s, cfg)
			ref := racktest.NewReference(aggregate.Eager, optim.SGDTorch, h, chunk.F32, randomModel(7, tensors))
			begin(t, all, tensors, ref, false)
			// Each worker's rows take 30 answers, and the aggregator has buffers for 32.
			pull := func(rank int) error {
				return pullRows(bounded(t), all[rank], rand.New(rand.NewPCG(1, 2)), &tensors[0], ref.W[0])
			}
			for rank := range all {
				if err := pull(rank); err != nil {
					t.Fatalf("worker %d, after others rest: %v", rank, err)
				}
			}
			var late [3][]client.Handle
			var ids []int64
			for i := range int64(5120) {
				ids = append(ids, i)
			}
			for rank := range late {
				late[rank], err = all[rank].Submit(client.Op{Kind: client.Pull, Dst: client.Bytes(make([]float32, 5120*8)), Rows: ids})
				if err != nil {
					t.Fatal(err)
				}
			}
			if err := pull(3); err != nil {
				t.Fatalf("while others take no answers: %v", err)
			}
			for rank, handles := range late {
				if err := all[rank].WaitAll(bounded(t), handles); err != nil {
					t.Errorf("worker %d: %v", rank, err)
				}
			}
		})
	}
}

func TestRowsOfATwoPhaseStepUpdateAsTheReference(t *testing.T) {
	s := serve(t, service.Options{Providers: []string{verbs.ProviderSHM}})
	cfg := client.Config{
		Job: "j", Workers: 3, Mode: "two-phase", Optimizer: "sgd_torch", Provider: verbs.ProviderSHM, ChunkBytes: 4096,
	}
	h, err := optim.SGDTorch.Hyper(nil)
	if err != nil {
		t.Fatal(err)
	}
	tensors, all := sparseModel(), joinAll(t, s, cfg)
	ref := racktest.NewReference(aggregate.Eager, optim.SGDTorch, h, chunk.F32, randomModel(7, tensors))
	begin(t, all, tensors, ref, false)
	for step := range 3 {
		r := rand.New(rand.NewPCG(uint64(step), 5))
		steps, grads := make([]sparseStep, len(all)), make([][][]float32, len(all))
		for rank := range all {
			steps[rank] = drawStep(r, uint64(step*100+rank+1), tensors, nil)
			grads[rank] = steps[rank].grads
		}
		want := ref.Step(grads)
		each(t, all, func(rank int, w *client.Worker) error {
			ops := steps[rank].ops(tensors)
			for i := range ops {
				ops[i].Kind, ops[i].Dst, ops[i].Union = client.Push, nil, nil
			}
			handles, err := w.Submit(ops...)
			if err != nil {
				return err
			}
			if err := w.WaitAll(bounded(t), handles); err != nil {
				return err
			}
			if _, err := w.Commit(bounded(t), client.Step{LR: float64(h.LR), WD: float64(h.WD)}); err != nil {
				return err
			}
			return pullRows(bounded(t), w, rand.New(rand.NewPCG(uint64(step), uint64(rank))), &tensors[0], want[0])
		})
	}
}

// Rank 0 submits all operations at once, so that chunks fill its window; others wait for each before the next, in another order.
func TestStreamsAndChunksWaitForNobodyInWhateverOrderTheyBegin(t *testing.T) {
	const workers = 3
	for _, provider := range providers() {
		for _, window := range []int{8, 12} {
			t.Run(fmt.Sprint(provider, " ", window), func(t *testing.T) {
				s := serve(t, service.Options{Providers: []string{provider}, Window: window})
				cfg := client.Config{Job: "j", Workers: workers, Mode: "aggregate", Provider: provider, ChunkBytes: 4096}
				tensors := []client.Tensor{
					{Name: "first", Shape: []uint64{40_000}}, {Name: "table", Shape: []uint64{3000, 8}, Sparse: true},
					{Name: "dense", Shape: []uint64{50_000}}, {Name: "wide", Shape: []uint64{90, 1000}, Sparse: true},
				}
				all := joinAll(t, s, cfg)
				each(t, all, func(_ int, w *client.Worker) error { return w.Register(bounded(t), tensors) })
				for step := range 6 {
					each(t, all, func(rank int, w *client.Worker) error {
						x := randomModel(uint64(step), tensors)
						one := sparseStep{make([][]int64, len(tensors)), x, randomModel(1, tensors), make([]client.Union, len(tensors))}
						r := rand.New(rand.NewPCG(uint64(rank), uint64(step)))
						for i := range tensors {
							if tensors[i].Sparse {
								one.ids[i] = draw(r, tensors[i].Shape[0])
							}
						}
						ops := one.ops(tensors)
						order := rand.New(rand.NewPCG(uint64(min(rank, 1)), uint64(step)))
						order.Shuffle(len(ops), func(i, j int) { ops[i], ops[j] = ops[j], ops[i] })
						most := 1
						if rank == 0 {
							most = len(ops)
						}
						for some := range slices.Chunk(ops, most) {
							handles, err := w.Submit(some...)
							if err != nil {
								return err
							}
							if err := w.WaitAll(bounded(t), handles); err != nil {
								return err
							}
						}
						return nil
					})
				}
			})
		}
	}
}

func TestTheSparseTensorThatHasNoRoomIsRefusedByTheAggregator(t *testing.T) {
	s := serve(t, service.Options{Providers: []string{verbs.ProviderSHM}})
	w := joinAll(t, s, client.Config{Job: "j", Workers: 1, Provider: verbs.ProviderSHM, Mode: "aggregate"})[0]
	tensors := make([]client.Tensor, 32)
	for i := range tensors {
		tensors[i] = client.Tensor{Name: fmt.Sprint("table", i+1), Shape: []uint64{3, 2}, Sparse: true}
	}
	if err := w.Register(bounded(t), tensors); err != nil {
		t.Fatal(err)
	}
	err := w.Register(bounded(t), []client.Tensor{{Name: "table33", Shape: []uint64{3, 2}, Sparse: true}})
	const want = `sparse tensor "table33" is number 33, and with a window of 256 job "j" has room for 32: use one tensor for several tables`
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("33 sparse tensors: %v", err)
	}
}

func TestRowsTravelWithoutAllocating(t *testing.T) {
	if testing.CoverMode() != "" || raceEnabled {
		t.Skip("instrumented code allocates")
	}
	s := serve(t, service.Options{Providers: []string{verbs.ProviderSHM}})
	w := joinAll(t, s, client.Config{Job: "j", Workers: 1, Provider: verbs.ProviderSHM, Mode: "eager", Optimizer: "sgd_torch"})[0]
	tensors := sparseModel()[:1]
	if err := w.Register(bounded(t), tensors); err != nil {
		t.Fatal(err)
	}
	ids := draw(rand.New(rand.NewPCG(1, 2)), 3000)
	src, dst := make([]float32, len(ids)*8), make([]float32, 3000*8)
	ops := []client.Op{{
		Kind: client.PushPull, Src: client.Bytes(src), Dst: client.Bytes(dst), Rows: ids, Union: new(client.Union),
	}}
	handles := make([]client.Handle, 0, 1)
	n := testing.AllocsPerRun(50, func() {
		var err error
		if handles, err = w.SubmitTo(handles[:0], ops); err != nil {
			t.Fatal(err)
		}
		if err := w.WaitAll(context.Background(), handles); err != nil {
			t.Fatal(err)
		}
	})
	if n != 0 {
		t.Errorf("%v allocations a step", n)
	}
}

// BenchmarkRows exchanges one row in a hundred of an embedding between 4 workers, or all of it as a dense tensor.
func BenchmarkRows(b *testing.B) {
	const workers, rows, width = 4, 1_000_000, 64
	for _, sparse := range []bool{true, false} {
		b.Run(fmt.Sprint("sparse=", sparse), func(b *testing.B) {
			s := serve(b, service.Options{Providers: []string{verbs.ProviderSHM}})
			cfg := client.Config{Job: "j", Workers: workers, Provider: verbs.ProviderSHM, Mode: "eager", Optimizer: "sgd_torch"}
			all := joinAll(b, s, cfg)
			ops := make([][]client.Op, workers)
			each(b, all, func(rank int, w *client.Worker) error {
				r := rand.New(rand.NewPCG(1, uint64(rank)))
				var ids []int64
				for i := range int64(rows) {
					if sparse && r.IntN(100) == 0 {
						ids = append(ids, i)
					}
				}
				n := rows
				if sparse {
					n = len(ids)
				}
				src, err := w.Alloc(n * width * 4)
				if err != nil {
					return err
				}
				dst, err := w.Alloc(rows * width * 4)
				ops[rank] = []client.Op{{Kind: client.PushPull, Src: src, Dst: dst, Rows: ids}}
				if err != nil {
					return err
				}
				return w.Register(bounded(b), []client.Tensor{{Name: "e", Shape: []uint64{rows, width}, Sparse: sparse}})
			})
			for b.Loop() {
				each(b, all, func(rank int, w *client.Worker) error {
					handles, err := w.Submit(ops[rank]...)
					if err != nil {
						return err
					}
					return w.WaitAll(context.Background(), handles)
				})
			}
		})
	}
}

func TestBadFrequenciesAreRefusedByTheTensorsName(t *testing.T) {
	s := serve(t, service.Options{Providers: []string{verbs.ProviderTCP}, Cores: 1})
	w := joinAll(t, s, client.Config{Job: "job", Workers: 1, Provider: verbs.ProviderTCP})[0]
	nan := slices.Repeat([]float32{1}, 300)
	nan[200] = float32(math.NaN())
	for want, bad := range map[string]client.Tensor{
		`tensor "t" of shape [300 64] has 2 frequencies of rows`: {Shape: []uint64{300, 64}, Sparse: true, Frequencies: make([]float32, 2)},
		`tensor "t" of shape [300 64] has 300 frequencies`:       {Shape: []uint64{300, 64}, Frequencies: make([]float32, 300)},
		`tensor "t" of shape [] has 1 frequencies`:               {Sparse: true, Frequencies: make([]float32, 1)},
		`tensor "t": row 200 has the frequency NaN: use finite`:  {Shape: []uint64{300, 64}, Sparse: true, Frequencies: nan},
		`tensor "t": row 0 has the frequency -1: use finite`:     {Shape: []uint64{1, 64}, Sparse: true, Frequencies: []float32{-1}},
	} {
		bad.Name = "t"
		if err := w.Register(bounded(t), []client.Tensor{bad}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v; want an error with %q", err, want)
		}
	}
}

func TestFrequenciesDecideWhereRowsAre(t *testing.T) {
	s := serve(t, service.Options{Providers: []string{verbs.ProviderTCP}, Cores: 2})
	w := joinAll(t, s, client.Config{Job: "job", Workers: 1, Provider: verbs.ProviderTCP, ChunkBytes: 4096})[0]
	if w.Lanes() < 2 {
		t.Skipf("the aggregator has %d lane: this is about several", w.Lanes())
	}
	if err := w.Register(bounded(t), sparseModel()[:1]); err != nil {
		t.Fatal(err)
	}
	first, end := w.Plan().TensorChunks(0)
	alone, half := w.Plan().Chunk(end-1).Lane, (end-first)/2
	if rows := int(w.Plan().LaneRows(alone, 0)); rows > half*128/8 {
		t.Errorf("the lane of the row that is touched most has %d rows of 3000", rows)
	}
}
