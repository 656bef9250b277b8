package aggregate_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"unsafe"

	"github.com/rackweave/rackweave/aggregate"
	"github.com/rackweave/rackweave/aggregate/optim"
	"github.com/rackweave/rackweave/aggregate/racktest"
	"github.com/rackweave/rackweave/cgo/fabric/simfabric"
	"github.com/rackweave/rackweave/cgo/worker"
	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/verbs"
)

// rowsRack drives a rack with sparse tensors beside a plain Go oracle of them.
type rowsRack struct {
	*testing.T
	*racktest.Rack
	run    func(ops [][]worker.Op) error
	wait   func(handles [][]uint64) error
	rng    *rand.Rand
	tables []*table
	keep   []any // memory of operations under way
}

// table is a sparse tensor as plain Go keeps it.
type table struct {
	*racktest.Table
	wire  chunk.DType
	racks []int // workers of each
}

func newRowsRack(t *testing.T, r *racktest.Rack, run func(ops [][]worker.Op) error, wait func(handles [][]uint64) error) *rowsRack {
	x := &rowsRack{T: t, Rack: r, run: run, wait: wait, rng: rand.New(rand.NewPCG(3, 4))}
	for i := range r.Plan.NumTensors() {
		d := r.Plan.Tensor(i)
		width := max(int(d.Width), 1)
		k := &table{racktest.NewTable(int(d.Elems)/width, width, r.Config.Standard), d.DType, []int{len(r.Workers)}}
		x.tables = append(x.tables, k)
	}
	return x
}

// draw returns a worker's rows of a table, ascending: none, all, or some.
func (x *rowsRack) draw(k *table) []int64 {
	ids := []int64{}
	share := []float64{0, 1, 0.01, 0.3}[x.rng.IntN(4)]
	for id := range int64(k.Rows()) {
		if x.rng.Float64() < share {
			ids = append(ids, id)
		}
	}
	return ids
}

// gradients lists each worker's rows of a table, and their values as they are on the wire.
type gradients struct {
	ids    [][]int64
	values [][]float32
}

// fill draws every worker's gradients into its source buffer.
func (x *rowsRack) fill(t int) gradients {
	k, g := x.tables[t], gradients{}
	for _, w := range x.Workers {
		ids := x.draw(k)
		src := w.SrcF32(t)[:len(ids)*k.Width]
		fill(x.rng, src)
		g.ids = append(g.ids, ids)
		g.values = append(g.values, slices.Clone(racktest.OnWire(k.wire, src)))
	}
	return g
}

// union returns the union's rows, each summed in the order of ranks, the racks' sums first.
func (k *table) union(g gradients) map[int64][]float32 {
	out, first := map[int64][]float32{}, 0
	for _, n := range k.racks {
		for id, row := range k.Union(g.ids[first:first+n], g.values[first:first+n]) {
			if out[id] == nil {
				out[id] = row
				continue
			}
			for i := range row {
				out[id][i] += row[i]
			}
		}
		first += n
	}
	return out
}

func (x *rowsRack) op(w *racktest.Worker, kind chunk.Op, t int, ids []int64) worker.Op {
	op := w.Op(kind, t, int32(t%2))
	if ids != nil {
		ids = slices.Grow(ids, 1) // so that there is an address
		op.IDs, op.NIDs = uintptr(unsafe.Pointer(unsafe.SliceData(ids))), uint64(len(ids))
		x.keep = append(x.keep, ids)
	}
	return op
}

func (x *rowsRack) ops(make func(w *racktest.Worker, t int) worker.Op) (ops [][]worker.Op) {
	for _, w := range x.Workers {
		var mine []worker.Op
		for t := range x.tables {
			mine = append(mine, make(w, t))
		}
		ops = append(ops, mine)
	}
	return ops
}

func (x *rowsRack) all(make func(w *racktest.Worker, t int) worker.Op) {
	x.Helper()
	if err := x.run(x.ops(make)); err != nil {
		x.Fatal(err)
	}
}

func (x *rowsRack) same(what string, t int, w *racktest.Worker, id int64, got, want []float32) {
	x.Helper()
	if i, same := racktest.SameBits(got, racktest.OnWire(x.tables[t].wire, want)); !same {
		x.Fatalf("%s: worker %d, tensor %d, row %d, element %d is %v, plain Go says %v", what, w.Rank, t, id, i, got[i], want[i])
	}
}

func (x *rowsRack) broadcast() {
	for t, k := range x.tables {
		src := x.Workers[0].SrcF32(t)[:len(k.W)]
		for i := range src {
			src[i] = float32(x.rng.IntN(64)) / 8
		}
		copy(k.W, racktest.OnWire(k.wire, src))
	}
	x.all(func(w *racktest.Worker, t int) worker.Op { return w.Op(chunk.OpBroadcast, t, 0) })
}

// pull pulls rows in any order, repeated too, and whole tables, and compares them with plain Go.
func (x *rowsRack) pull(what string) {
	x.Helper()
	asked := make([][][]int64, len(x.Workers))
	x.all(func(w *racktest.Worker, t int) worker.Op {
		k, ids := x.tables[t], []int64{}
		for range x.rng.IntN(k.Rows() + 1) {
			ids = append(ids, x.rng.Int64N(int64(k.Rows())))
		}
		asked[w.Rank] = append(asked[w.Rank], ids)
		return x.op(w, chunk.OpPull, t, ids)
	})
	for _, w := range x.Workers {
		for t, k := range x.tables {
			for i, id := range asked[w.Rank][t] {
				x.same(what+", pulled", t, w, id, w.DstF32(t)[i*k.Width:][:k.Width], k.Row(k.W, id))
			}
		}
	}
	x.all(func(w *racktest.Worker, t int) worker.Op { return w.Op(chunk.OpPull, t, 0) })
	for _, w := range x.Workers {
		for t, k := range x.tables {
			for id := range int64(k.Rows()) {
				x.same(what+", pulled whole", t, w, id, k.Row(w.DstF32(t), id), k.Row(k.W, id))
			}
		}
	}
}

func (x *rowsRack) push() []gradients {
	x.Helper()
	all := make([]gradients, len(x.tables))
	for t := range x.tables {
		all[t] = x.fill(t)
	}
	x.all(func(w *racktest.Worker, t int) worker.Op { return x.op(w, chunk.OpPush, t, all[t].ids[w.Rank]) })
	return all
}

// pushPull pushes gradients, of a few workers without asking for results, and compares the union's rows with want's.
func (x *rowsRack) pushPull(what string, want func(t int, g gradients) map[int64][]float32) {
	x.Helper()
	all := make([]gradients, len(x.tables))
	unions, counts := make([][][]int64, len(x.Workers)), make([][]*uint64, len(x.Workers))
	for t := range x.tables {
		all[t] = x.fill(t)
	}
	x.all(func(w *racktest.Worker, t int) worker.Op {
		k, kind := x.tables[t], chunk.OpPushPull
		if x.rng.IntN(4) == 0 {
			kind = chunk.OpPush
		}
		op := x.op(w, kind, t, all[t].ids[w.Rank])
		union, n := make([]int64, k.Rows()), new(uint64)
		if kind == chunk.OpPush {
			*n = ^uint64(0)
		} else {
			op.Union, op.NUnion = uintptr(unsafe.Pointer(unsafe.SliceData(union))), uintptr(unsafe.Pointer(n))
		}
		unions[w.Rank], counts[w.Rank] = append(unions[w.Rank], union), append(counts[w.Rank], n)
		return op
	})
	for t, k := range x.tables {
		rows := want(t, all[t])
		ids := []int64{}
		for id := range rows {
			ids = append(ids, id)
		}
		slices.Sort(ids)
		for _, w := range x.Workers {
			n := *counts[w.Rank][t]
			if n == ^uint64(0) {
				continue
			}
			if got := unions[w.Rank][t][:n]; !slices.Equal(got, ids) {
				x.Fatalf("%s: worker %d, tensor %d: the union is %v, want %v", what, w.Rank, t, got, ids)
			}
			for _, id := range ids {
				x.same(what, t, w, id, k.Row(w.DstF32(t), id), rows[id])
			}
		}
	}
}

var tables = []chunk.Tensor{
	{Name: "table", Elems: 16 * 1000, DType: chunk.F32, Width: 16}, {Name: "bias", Elems: 2000, DType: chunk.F32, Width: 1},
	{Name: "wide", Elems: 5 * 1019, DType: chunk.F32, Width: 1019}, {Name: "half", Elems: 7 * 900, DType: chunk.BF16, Width: 7},
	{Name: "one", Elems: 3, DType: chunk.F32, Width: 3},
}

// onRacks runs a test on racks over every kind of provider.
func onRacks(t *testing.T, job aggregate.JobConfig, standard bool, test func(x *rowsRack)) {
	job.Name, job.ChunkBytes = "job", 4096
	for _, options := range []string{"", ",by_reference=1"} {
		t.Run(simfabric.Provider+options, func(t *testing.T) {
			r, network := simRack(t, 5, options, 3, racktest.Config{
				Lanes: 2, Window: 24, Staging: 24, Job: job, Tensors: tables, Standard: standard,
			})
			test(newRowsRack(t, r, driven(r, network), func(handles [][]uint64) error { return r.Drive(network, handles, 100000) }))
		})
	}
	for _, provider := range []string{verbs.ProviderSHM, verbs.ProviderTCP} {
		t.Run(provider, func(t *testing.T) {
			r := threadedRack(t, provider, 4, racktest.Config{Lanes: 3, Job: job, Staging: 32, Tensors: tables, Standard: standard})
			test(newRowsRack(t, r, func(ops [][]worker.Op) error { return runAll(r, ops) }, func(handles [][]uint64) error {
				for i, w := range r.Workers {
					if rc := worker.Wait(w.C, handles[i][0], 20000); rc < 0 {
						return w.Error(rc)
					}
				}
				return nil
			}))
		})
	}
}

func TestRowsEqualPlainGoBitForBit(t *testing.T) {
	momentum := optim.SGDMXNet.Defaults()
	momentum.Momentum, momentum.WD = 0.9, 1e-4
	for _, tc := range []struct {
		rule     optim.Rule
		hyper    optim.Hyper
		standard bool
	}{
		{optim.SGDTorch, optim.SGDTorch.Defaults(), false},
		{optim.SGDMXNet, momentum, false},
		{optim.SGDMXNet, momentum, true},
		{optim.AdamMXNet, optim.AdamMXNet.Defaults(), false},
		{optim.AdagradMXNet, optim.AdagradMXNet.Defaults(), false},
		{optim.FtrlMXNet, optim.FtrlMXNet.Defaults(), false},
		{optim.FtrlMXNet, optim.FtrlMXNet.Defaults(), true},
	} {
		if testing.Short() && tc.rule != optim.AdamMXNet && !tc.standard { // a detector sees the same code in each rule
			continue
		}
		name := fmt.Sprintf("%v standard %t", tc.rule, tc.standard)
		t.Run("eager "+name, func(t *testing.T) {
			onRacks(t, aggregate.JobConfig{Mode: aggregate.Eager, Rule: tc.rule, Hyper: tc.hyper}, tc.standard, func(x *rowsRack) {
				x.broadcast()
				for step := range 3 {
					for i, g := range x.push() {
						x.tables[i].Step(tc.rule, tc.hyper, x.tables[i].union(g))
					}
					x.pull(fmt.Sprintf("step %d", step))
					x.pushPull(fmt.Sprintf("step %d", step), func(i int, g gradients) map[int64][]float32 {
						k := x.tables[i]
						union := k.union(g)
						k.Step(tc.rule, tc.hyper, union)
						for id := range union {
							union[id] = k.Row(k.W, id)
						}
						return union
					})
				}
			})
		})
		t.Run("two-phase "+name, func(t *testing.T) {
			onRacks(t, aggregate.JobConfig{Mode: aggregate.TwoPhase, Rule: tc.rule, Hyper: tc.hyper}, tc.standard, func(x *rowsRack) {
				x.broadcast()
				for step := range 3 {
					x.twoPhase(tc.rule, tc.hyper, step == 1)
					x.pull(fmt.Sprintf("step %d", step))
				}
			})
		})
	}
	t.Run("aggregate", func(t *testing.T) {
		sum := aggregate.JobConfig{Mode: aggregate.Aggregate, Rule: optim.Sum, Hyper: optim.Sum.Defaults()}
		onRacks(t, sum, false, func(x *rowsRack) {
			for step := range 4 {
				x.pushPull(fmt.Sprintf("step %d", step), func(i int, g gradients) map[int64][]float32 {
					return x.tables[i].union(g)
				})
			}
		})
	})
}

// summed returns the racks' sum of gradients as one worker's.
func (k *table) summed(g gradients) gradients {
	union, values := k.union(g), []float32{}
	ids := slices.Sorted(maps.Keys(union))
	for _, id := range ids {
		values = append(values, union[id]...)
	}
	return gradients{[][]int64{ids}, [][]float32{values}}
}

// twoPhase runs a step of two pushes and a commit, which may be skipped.
func (x *rowsRack) twoPhase(rule optim.Rule, h optim.Hyper, skip bool) {
	for range 2 {
		for i, g := range x.push() {
			k := x.tables[i]
			if len(k.racks) > 1 {
				g = k.summed(g)
			}
			k.Accumulate(g.ids, g.values)
		}
	}
	h.LR, h.WD, h.Scale = 0.5, 0.25, 0.5
	record := chunk.TensorRecord{LR: 0.5, WD: 0.25, Scale: 0.5}
	if skip {
		record.Flags = chunk.RecordSkip
	}
	x.endStep(record)
	for _, k := range x.tables {
		k.Commit(rule, h, skip)
	}
}

// Each worker's rows are applied by themselves, in whatever order they arrive, so plain SGD with powers of two is exact.
func TestRowsOfAStreamAreAppliedOnce(t *testing.T) {
	job := streamJob(t, "asp")
	onRacks(t, job, false, func(x *rowsRack) {
		x.broadcast()
		for range 4 {
			all := x.pushWhole()
			for i, k := range x.tables {
				for id, row := range k.union(all[i]) {
					for e := range row {
						k.Row(k.W, id)[e] -= 0.25 * 0.5 * row[e]
					}
				}
			}
			x.endStep(chunk.TensorRecord{})
			x.pull("stream")
		}
	})
}

// pushWhole pushes small whole gradients onto whole parameters, so that no sum rounds.
func (x *rowsRack) pushWhole() []gradients {
	all := make([]gradients, len(x.tables))
	for t, k := range x.tables {
		for _, w := range x.Workers {
			ids := x.draw(k)
			src := w.SrcF32(t)[:len(ids)*k.Width]
			for i := range src {
				src[i] = float32(x.rng.IntN(4))
			}
			all[t].ids = append(all[t].ids, ids)
			all[t].values = append(all[t].values, slices.Clone(src))
		}
	}
	x.all(func(w *racktest.Worker, t int) worker.Op { return x.op(w, chunk.OpPush, t, all[t].ids[w.Rank]) })
	return all
}

func (x *rowsRack) endStep(record chunk.TensorRecord) {
	x.Helper()
	handles := make([][]uint64, len(x.Workers))
	for i, w := range x.Workers {
		h, rc := w.CommitStart(record)
		if rc < 0 {
			x.Fatal(w.Error(rc))
		}
		handles[i] = []uint64{h}
	}
	if err := x.wait(handles); err != nil {
		x.Fatal(err)
	}
}

func TestTheCountsOfRowsAreThoseOfTheGradients(t *testing.T) {
	job := aggregate.JobConfig{Mode: aggregate.Eager, Rule: optim.SGDTorch, Hyper: optim.SGDTorch.Defaults()}
	onRacks(t, job, false, func(x *rowsRack) {
		x.broadcast()
		listed, merged := make([]uint64, len(x.tables)), make([]uint64, len(x.tables))
		const steps = 3
		for range steps {
			for i, g := range x.push() {
				for _, ids := range g.ids {
					listed[i] += uint64(len(ids))
				}
				merged[i] += uint64(len(x.tables[i].union(g)))
			}
		}
		got, err := x.Job.Rows(t.Context())
		if err != nil || len(got) != len(x.tables) {
			t.Fatalf("%d sparse tensors, %v", len(got), err)
		}
		for i, r := range got {
			k := x.tables[i]
			if r.Listed != listed[i] || r.Merged != merged[i] || r.Steps != steps || r.Rows != uint64(k.Rows()) || r.Name != tables[i].Name {
				t.Errorf("%+v, want %d rows of %d sent in %d steps, %d of them once a step", r, listed[i], k.Rows(), steps, merged[i])
			}
			if least := r.Listed * uint64(r.RowBytes); r.Bytes < least || r.DenseBytes(len(x.Workers)) < least {
				t.Errorf("%q: %d bytes, and dense %d, for %d bytes of rows", r.Name, r.Bytes, r.DenseBytes(len(x.Workers)), least)
			}
			for h := 1; h < len(r.Hottest); h++ {
				if r.Hottest[h].Merged > r.Hottest[h-1].Merged {
					t.Errorf("%q: chunks %+v are not from the hottest on", r.Name, r.Hottest)
				}
			}
		}
	})
}
