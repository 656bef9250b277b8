package simrack

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"unsafe"

	"github.com/rackweave/rackweave/aggregate"
	"github.com/rackweave/rackweave/aggregate/optim"
	"github.com/rackweave/rackweave/aggregate/racktest"
	"github.com/rackweave/rackweave/cgo/worker"
	"github.com/rackweave/rackweave/chunk"
)

// sparsify makes tensors of some jobs sparse. It draws from randomness of its own, as crowd does.
func sparsify(s *Schedule) {
	d := draw{rand.New(rand.NewPCG(s.Seed, 6))}
	if !d.chance(30) {
		return
	}
	for _, j := range s.Jobs {
		if d.chance(80) && !j.Rule.NeedsNorms() {
			d.sparsify(s, j)
		}
	}
}

const mostSparse = 3 // tensors of a job

func (d draw) sparsify(s *Schedule, j *JobSchedule) {
	sparse := 0
	j.Standard = d.chance(20)
	for _, batch := range j.Batches {
		widths := make([]uint32, len(batch))
		for i := range batch {
			if sparse == mostSparse || d.chance(30) {
				continue
			}
			sparse++
			longest := (chunkBytes - chunk.RowBytes) / j.Wire.Size()
			width := min([]int{1, 3, 16, 64, 200, longest}[d.IntN(6)], int(batch[i]))
			widths[i], batch[i] = uint32(width), batch[i]/uint64(width)*uint64(width)
		}
		j.Widths = append(j.Widths, widths)
	}
	if sparse == 0 {
		j.Widths = nil
	}
	s.Window = max(s.Window, 4*sparse+d.IntN(5))
	s.Staging = max(s.Staging, 4*sparse+d.IntN(5))
}

func (o *oracle) addTables() {
	o.ref.Tables, o.unions = make(map[int]*racktest.Table), make([]map[int]map[int64][]float32, len(o.job.Phases))
	o.ref.TableRows = o.lanes
	o.widths = slices.Concat(o.job.Widths...)
	if o.job.Widths == nil {
		o.widths = make([]uint32, len(o.elems))
	}
	for t, width := range o.widths {
		if width > 0 {
			o.ref.Tables[t] = racktest.NewTable(int(o.elems[t])/int(width), int(width), o.job.Standard)
		}
	}
}

// lanes returns the rows of a sparse tensor by lane, in the order of their first chunks.
func (o *oracle) lanes(t int) (rows [][]int64) {
	var lanes []int
	first, end := o.plan.TensorChunks(t)
	for id := first; id < end; id++ {
		if lane := o.plan.Chunk(id).Lane; !slices.Contains(lanes, lane) {
			lanes = append(lanes, lane)
			of, _ := o.laneRows(t, lane)
			rows = append(rows, of)
		}
	}
	return rows
}

// laneRows returns the rows of a sparse tensor in a lane, and the tensor's chunks there.
func (o *oracle) laneRows(t, lane int) (rows []int64, chunks []int) {
	first, end := o.plan.TensorChunks(t)
	per, all := int64(o.plan.RowsPerChunk(t)), int64(o.ref.Tables[t].Rows())
	for id := first; id < end; id++ {
		if int(o.plan.Chunk(id).Lane) != lane {
			continue
		}
		chunks = append(chunks, id)
		for row := int64(id-first) * per; row < min(int64(id-first+1)*per, all); row++ {
			rows = append(rows, row)
		}
	}
	return rows, chunks
}

// rng returns the randomness of a worker's operation on a sparse tensor. Worker -1 stands for all.
func (o *oracle) rng(phase, worker, tensor int) draw {
	return draw{rand.New(rand.NewPCG(o.key^uint64(tensor+1)<<48, uint64(phase)<<16^uint64(worker+1)))}
}

// touched returns the rows that a worker pushes: none, all, some, or few. whole reports that it pushes the whole tensor without a
// list of its rows.
func (o *oracle) touched(phase, worker, tensor int) (ids []int64, whole bool) {
	all, d := o.rng(phase, -1, tensor), o.rng(phase, worker, tensor)
	share := []float64{0, 0.02, 0.02, 0.3, 0.7, 1, 1}[d.IntN(7)]
	if all.chance(15) && all.IntN(len(o.job.Workers)) != worker {
		share = 0 // one worker alone
	}
	ids = []int64{}
	for id := range int64(o.ref.Tables[tensor].Rows()) {
		if d.Float64() < share {
			ids = append(ids, id)
		}
	}
	return ids, share == 1 && d.chance(50)
}

// wants reports whether a worker asks for the results of its gradients.
func (o *oracle) wants(phase, worker, tensor int) bool {
	return o.job.Phases[phase].kind == phasePushPull && o.job.Mode != aggregate.Stream && !o.rng(^phase, worker, tensor).chance(25)
}

// pulled returns the rows that a worker pulls, in any order, repeated too, or nil for the whole tensor by its chunks.
func (o *oracle) pulled(phase, worker, tensor int) []int64 {
	d, rows := o.rng(phase, worker, tensor), o.ref.Tables[tensor].Rows()
	if d.chance(25) {
		return nil
	}
	ids := make([]int64, d.IntN(rows+1))
	for i := range ids {
		ids[i] = d.Int64N(int64(rows))
	}
	return ids
}

// runRows computes a sparse tensor's part of a phase, as run does.
func (o *oracle) runRows(n int, p *phase, t int) []float32 {
	k := o.ref.Tables[t]
	switch p.kind {
	case phaseBroadcast:
		k.W = clone(racktest.OnWire(o.job.Wire, o.gradient(n, 0, t)))
	case phasePush, phasePushPull:
		var ids [][]int64
		var values [][]float32
		for w := range o.job.Workers {
			rows, _ := o.touched(n, w, t)
			ids = append(ids, rows)
			values = append(values, racktest.OnWire(o.job.Wire, o.gradient(n, w, t)[:len(rows)*k.Width]))
		}
		if o.job.Mode == aggregate.TwoPhase {
			k.Accumulate(ids, values)
			return nil
		}
		union := k.Union(ids, values)
		if o.job.Mode == aggregate.Eager {
			k.Step(o.job.Rule, o.ref.Hyper, union)
		}
		for id := range union {
			if o.job.Mode == aggregate.Eager {
				union[id] = k.Row(k.W, id)
			}
			union[id] = clone(o.inMemory(union[id]))
		}
		if o.unions[n] == nil {
			o.unions[n] = make(map[int]map[int64][]float32)
		}
		o.unions[n][t] = union
		return nil
	}
	return clone(o.inMemory(k.W))
}

// inMemory returns values as a worker gets them.
func (o *oracle) inMemory(x []float32) []float32 {
	return racktest.OnWire(o.job.Type, racktest.OnWire(o.job.Wire, x))
}

// rowsOperation is a worker's operation on rows.
type rowsOperation struct {
	ids   []int64 // nil: all rows
	wants bool
	union []int64
	count uint64      // of union
	taken map[int]int // mode stream, by lane: the number of pulled rows so far
}

// listRows makes an operation on a sparse tensor one on rows. It returns nil for one on chunks.
func (m *member) listRows(p *phase, t int, op *worker.Op) *rowsOperation {
	o, rows := m.job.oracle, &rowsOperation{}
	switch p.kind {
	case phaseBroadcast:
		return nil
	case phasePull:
		if rows.ids = o.pulled(m.phase, m.rank, t); rows.ids == nil {
			return nil
		}
	default:
		ids, whole := o.touched(m.phase, m.rank, t)
		if rows.ids = ids; whole {
			rows.ids = nil
		}
		op.Kind = uint8(chunk.OpPush)
		if rows.wants = o.wants(m.phase, m.rank, t); rows.wants {
			op.Kind = uint8(chunk.OpPushPull)
			rows.union = make([]int64, o.ref.Tables[t].Rows())
			op.Union, op.NUnion = uintptr(unsafe.Pointer(unsafe.SliceData(rows.union))), uintptr(unsafe.Pointer(&rows.count))
		}
	}
	if rows.ids != nil {
		rows.ids = slices.Grow(rows.ids, 1) // so that there is an address
		op.IDs, op.NIDs = uintptr(unsafe.Pointer(unsafe.SliceData(rows.ids))), uint64(len(rows.ids))
	}
	return rows
}

// completeRows checks an operation on rows that has ended.
func (m *member) completeRows(op operation) error {
	o, t := m.job.oracle, op.tensor
	m.listed = true
	kind := m.job.Phases[op.phase].kind
	if kind != phasePull {
		m.streams += uint64(len(o.lanes(t)))
	}
	if m.job.doubtful || kind != phasePull && !op.rows.wants {
		return nil
	}
	m.last[t] = op.phase
	if m.job.stream != nil {
		return m.check(t)
	}
	values, k := o.result(op.phase, t), o.ref.Tables[t]
	if kind == phasePull {
		for i, id := range op.rows.ids {
			copy(m.memory[t][i*k.Width:], k.Row(values, id))
		}
		return m.check(t)
	}
	union := o.unions[op.phase][t]
	want := slices.Sorted(maps.Keys(union))
	if got := op.rows.union[:op.rows.count]; !slices.Equal(got, want) {
		return fmt.Errorf("%v: phase %d: tensor %d: the union has rows %v, plain Go says %v", m, op.phase, t, got, want)
	}
	for _, id := range want {
		copy(k.Row(m.memory[t], id), union[id])
	}
	return m.check(t)
}

// parameters returns a chunk's parameters.
func (o *streamOracle) parameters(id int) []float32 {
	if k := o.job.oracle.ref.Tables[o.tensor(id)]; k != nil {
		return o.part(id, k.W)
	}
	return o.ref.W[id]
}

// applyRows applies the rows of one message of a worker, which ends at a row of the lane.
func (o *streamOracle) applyRows(lane, w, id int, e *aggregate.TraceEvent) error {
	f, t, m := &o.workers[w], o.tensor(id), o.job.members[w]
	if int(f.applied[id]) >= m.pushes[t] {
		return fmt.Errorf("worker %d has pushed tensor %d %d times, and its rows are applied again", w, t, m.pushes[t])
	}
	k, phase, key := o.job.oracle.ref.Tables[t], m.sent[t], [2]int{t, lane}
	rows, chunks := o.job.oracle.laneRows(t, lane)
	h := o.hyper
	h.Scale *= float64(len(o.workers))
	h.LR *= o.job.Policy.Rate(len(o.workers), uint64(o.updates[id]-min(o.updates[id], f.seen[id])))
	scalars := optim.Derive(o.job.Rule, h, o.updates[id]+1)
	ids, _ := o.job.oracle.touched(phase, w, t)
	values := racktest.OnWire(o.job.Wire, o.job.oracle.gradient(phase, w, t)[:len(ids)*k.Width])
	for _, row := range rows[f.reached[key]:e.Rows] {
		if at, ok := slices.BinarySearch(ids, row); ok {
			k.Update(o.job.Rule, &scalars, row, values[at*k.Width:][:k.Width])
		} else if k.Standard {
			k.Update(o.job.Rule, &scalars, row, make([]float32, k.Width))
		}
	}
	if f.reached[key] = e.Rows; int(e.Rows) == len(rows) {
		f.reached[key] = 0
		for _, c := range chunks {
			f.applied[c]++
			o.updates[c]++
		}
	}
	return nil
}

// pullRows records the rows that a worker is sent, which are the next that it pulls of those in the lane.
func (o *streamOracle) pullRows(lane, w, id int, e *aggregate.TraceEvent) error {
	f, t := &o.workers[w], o.tensor(id)
	i := slices.IndexFunc(o.job.members[w].pending, func(op operation) bool { return op.tensor == t && op.rows != nil })
	if i < 0 {
		return fmt.Errorf("worker %d is sent rows of tensor %d that it does not pull", w, t)
	}
	op, k := o.job.members[w].pending[i].rows, o.job.oracle.ref.Tables[t]
	rows, _ := o.job.oracle.laneRows(t, lane)
	if op.taken == nil {
		op.taken = make(map[int]int)
	}
	skip, left := op.taken[lane], int(e.Rows)
	for place, row := range op.ids {
		if _, ok := slices.BinarySearch(rows, row); !ok || left == 0 {
			continue
		}
		if skip--; skip < 0 {
			copy(f.got[t][place*k.Width:], o.job.oracle.inMemory(k.Row(k.W, row)))
			left--
		}
	}
	op.taken[lane] += int(e.Rows)
	f.seen[id] = o.updates[id]
	return nil
}
