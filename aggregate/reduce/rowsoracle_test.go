package reduce

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/rackweave/rackweave/chunk"
)

// rowOracle knows which rows each worker touches, and recomputes what is merged and fetched.
type rowOracle struct {
	steps   int
	touched [][][]map[uint32]bool // by step, tensor and worker
	merged  [][]string            // by tensor: each row with the workers that list it, of the step under way
	done    []int                 // by tensor: rows merged, over all steps
	inUse   int                   // result buffers
	freed   int                   // buffers in use whose answers have arrived
}

// want returns the union of a step, each row with the workers that touch it.
func (o *rowOracle) want(step, tensor int, rows uint32) (union []uint32, text []string) {
	for row := range rows {
		of := ""
		for rank, touched := range o.touched[step][tensor] {
			if touched[row] {
				of += name(int32(rank))
			}
		}
		if of != "" {
			union, text = append(union, row), append(text, fmt.Sprint(row, of))
		}
	}
	return union, text
}

// streamer is a worker's end of a stream.
type streamer struct {
	active, wants, last bool
	cuts                []uint32 // the ends of its messages
	sent                int      // messages
	tos                 []int    // of its messages in flight: the rows behind them, over all steps
	fetches             int      // in flight
	got                 []uint32 // rows of the blocks that it has taken
}

func (s *streamer) extra() int { return max(0, len(s.tos)-1) + max(0, s.fetches-1) }

func (s *streamer) ended() bool {
	return !s.active || s.sent == len(s.cuts) && len(s.tos) == 0 && s.fetches == 0 && (s.last || !s.wants)
}

// rower is a worker that takes steps. In each it pushes every tensor once: all at once, or one after the other.
type rower struct {
	member   // its dense chunks
	streams  []streamer
	step     int
	order    []int // tensors
	begun    int   // of order
	oneByOne bool
	left     map[uint32]bool // dense chunks of the step that are not answered
}

func (w *rower) used() (n int) {
	n = w.inflight
	for i := range w.streams {
		n += w.streams[i].extra()
	}
	return n
}

func (w *rower) idle() bool {
	return len(w.left) == 0 && !slices.ContainsFunc(w.streams, func(s streamer) bool { return !s.ended() })
}

// In any order of messages and of arrivals, rows are merged as their workers touch them, blocks hold them all, and every step ends,
// beside dense chunks in any order.
func TestRowsAgreeWithTheOracleAndNothingLocksUp(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		sparse := rapid.IntRange(1, 3).Draw(t, "sparse")
		rows := uint32(rapid.IntRange(1, 12).Draw(t, "rows"))
		cfg := Config{
			Workers: rapid.IntRange(1, 4).Draw(t, "workers"), Window: 4*sparse + rapid.IntRange(0, 8).Draw(t, "window"),
			Mode:    rapid.SampledFrom([]Mode{Aggregate, Eager, TwoPhase}).Draw(t, "mode"),
			Results: rapid.IntRange(1, 5).Draw(t, "results"), Maps: rapid.Bool().Draw(t, "maps"),
		}
		cfg.Sends = SendMargin + rapid.IntRange(1, 2*cfg.Window).Draw(t, "sends")
		ts, cs := sparseTensors(sparse*rapid.IntRange(1, 2).Draw(t, "chunks"), sparse, rows)
		for i := range ts {
			ts[i].MergeMost = uint32(rapid.IntRange(0, 4).Draw(t, "most"))
		}
		for range rapid.IntRange(0, 2).Draw(t, "dense") {
			for range rapid.IntRange(1, 6).Draw(t, "chunks") {
				cs = append(cs, Chunk{Tensor: uint32(len(ts)), Bytes: chunkBytes})
			}
			ts = append(ts, Tensor{Name: fmt.Sprintf("t%d", len(ts))})
		}
		r := newRigOf(cfg, ts, cs, cfg.Window)
		r.manual = true
		r.rows.room = rapid.IntRange(1, 4).Draw(t, "room")
		o := &rowOracle{steps: rapid.IntRange(1, 3).Draw(t, "steps"), merged: make([][]string, sparse), done: make([]int, sparse)}
		for range o.steps {
			step := make([][]map[uint32]bool, sparse)
			for i := range step {
				for range cfg.Workers {
					touched := map[uint32]bool{}
					for _, row := range rapid.SliceOf(rapid.Uint32Range(0, rows-1)).Draw(t, "touched") {
						touched[row] = true
					}
					step[i] = append(step[i], touched)
				}
			}
			o.touched = append(o.touched, step)
		}
		newRowWorld(t, r, o, ts).run()
	})
}

// rowWorld connects workers with a machine.
type rowWorld struct {
	*rig
	t           *rapid.T
	o           *rowOracle
	ts          []Tensor
	workers     []rower
	outstanding []int          // by worker: messages sent to it that have not arrived
	ends        map[int32]bool // by place: the block ends at the last row
}

func newRowWorld(t *rapid.T, r *rig, o *rowOracle, ts []Tensor) *rowWorld {
	w := &rowWorld{rig: r, t: t, o: o, ts: ts, outstanding: make([]int, r.cfg.Workers), ends: map[int32]bool{}}
	r.rows.merged = func(a *Action, row uint32, of string) {
		tensor := r.chunks[a.Index].Tensor
		o.merged[tensor] = append(o.merged[tensor], fmt.Sprint(row, of))
	}
	for range r.cfg.Workers {
		w.workers = append(w.workers, rower{streams: make([]streamer, len(o.done)), left: map[uint32]bool{}})
	}
	return w
}

func (w *rowWorld) kept() int { return keptPerStream * len(w.o.done) }

func (w *rowWorld) run() {
	o := w.o
	for range rapid.IntRange(0, 100).Draw(w.t, "events") {
		w.now++
		switch rank := rapid.IntRange(0, w.cfg.Workers-1).Draw(w.t, "worker"); rapid.IntRange(0, 8).Draw(w.t, "event") {
		case 0:
			w.arrive(rank)
			w.advance()
		case 1:
			w.free()
			w.advance()
		case 2:
			w.Tick(w.now, rapid.Bool().Draw(w.t, "counts"))
			w.settle()
		default:
			w.act(rank)
		}
		w.check()
	}
	over := func(m rower) bool { return m.step == o.steps && m.begun == len(m.order) && m.idle() }
	for rounds := 0; ; rounds++ {
		if rounds > 4000 {
			w.t.Fatalf("stuck: rows merged %v, workers %+v", o.done, w.workers)
		}
		w.free()
		for rank := range w.workers {
			w.arrive(rank)
		}
		w.advance()
		worked := false
		for rank := range w.workers {
			worked = w.act(rank) || worked
		}
		if !worked && !slices.ContainsFunc(w.workers, func(m rower) bool { return !over(m) }) {
			break
		}
		if !worked {
			w.Tick(w.now, true)
			w.settle()
		}
		w.check()
	}
	if w.free(); w.Open() > 0 || w.rig.results != w.cfg.Results || len(w.Machine.rows.unused) != len(w.Machine.rows.blocks) {
		w.t.Fatalf("at the end %d are open, %d buffers of %d are free, %d blocks of %d", w.Open(), w.rig.results, w.cfg.Results,
			len(w.Machine.rows.unused), len(w.Machine.rows.blocks))
	}
}

func (w *rowWorld) arrive(rank int) {
	if n := w.outstanding[rank]; n > 0 {
		w.outstanding[rank] = 0
		w.Delivered(rank, n)
	}
}

func (w *rowWorld) free() {
	for ; w.o.freed > 0; w.o.freed-- {
		w.o.inUse--
		w.Freed()
	}
}

func (w *rowWorld) advance() {
	for w.Advance(w.now) {
		w.settle()
	}
}

func (w *rowWorld) check() {
	if err := errors.Join(w.Audit(), w.Machine.rows.count(w.cfg.Maps)); err != nil {
		w.t.Fatal(err)
	}
	blocks := len(w.rows.blocks)
	if w.State != Running || w.o.inUse > w.cfg.Results || blocks > max(1, w.cfg.Results/2) {
		w.t.Fatalf("%v: %v; %d result buffers in use, %d blocks of %d", w.State, w.failed, w.o.inUse, blocks, w.cfg.Results)
	}
	for rank, n := range w.outstanding {
		if n > w.cfg.Sends {
			w.t.Fatalf("%d messages sent to worker %d, whose queue takes %d", n, rank, w.cfg.Sends)
		}
	}
}

// count compares the counts of streams and blocks with what they count.
func (p *rowStreams) count(maps bool) error {
	open, used := 0, 0
	for i := range p.all {
		s, ready := &p.all[i], 0
		for rank := range s.of {
			if r := &s.of[rank]; r.gradients.first != none {
				ready++
			} else if r.next != none && p.blocks[r.next].left == 0 {
				return fmt.Errorf("worker %d waits for block %d, which all have taken", rank, r.next)
			}
		}
		fetching := maps && s.block == none && slices.ContainsFunc(s.of, func(r rowRank) bool { return !r.awaits() })
		if ready != s.ready || !s.queued && ready == len(s.of) && !fetching {
			return fmt.Errorf("stream %d has %d workers with gradients: it is %+v", i, ready, *s)
		}
		if s.block != none {
			used++
		}
		if s.begun > 0 {
			open++
		}
	}
	for i := range p.blocks {
		if p.blocks[i].left > 0 {
			used++
		}
	}
	if open != p.open || used+len(p.unused) != len(p.blocks) {
		return fmt.Errorf("%d streams are open, counted %d; %d blocks are in use and %d unused of %d", open, p.open, used, len(p.unused),
			len(p.blocks))
	}
	return nil
}

// settle carries out the machine's actions, and gives the workers their answers.
func (w *rowWorld) settle() {
	actions := slices.Clone(w.Actions)
	for i := range actions {
		a := &actions[i]
		switch a.Kind {
		case MergeRows:
			w.merge(a)
		case Sum, Update, Accumulate:
			w.carryOut(a)
			if a.Buffered {
				w.o.inUse++
				w.o.freed++
			}
			for rank := range w.workers {
				w.outstanding[rank]++
				w.workers[rank].inflight--
				delete(w.workers[rank].left, a.Index)
			}
		case NACK:
			w.carryOut(a)
			w.outstanding[a.Worker]++
			m := &w.workers[a.Worker]
			m.inflight--
			m.todo = append(m.todo, a.Index)
		case Request:
			w.outstanding[a.Worker]++
			w.workers[a.Worker].requested = append(w.workers[a.Worker].requested, a.Index)
		case Acknowledge, AnswerRows:
			w.answer(a)
		default:
			w.t.Fatalf("action %s: %v", kindNames[a.Kind], a.Err)
		}
	}
}

func (w *rowWorld) merge(a *Action) {
	tensor := int(w.chunks[a.Index].Tensor)
	rows, o := int(w.ts[tensor].Rows), w.o
	if len(w.Actions) != 1 || int(a.Rows.From) != o.done[tensor]%rows {
		w.t.Fatalf("merge of %+v behind %d rows, among %d actions", a.Rows, o.done[tensor], len(w.Actions))
	}
	if a.Buffered {
		o.inUse++
	}
	_, reached, full := w.rows.merge(w.rig, a)
	w.ends[a.Block] = int(reached) == rows
	if o.done[tensor] += int(reached - a.Rows.From); int(reached) == rows {
		if _, want := o.want(o.done[tensor]/rows-1, tensor, uint32(rows)); !slices.Equal(o.merged[tensor], want) {
			w.t.Fatalf("merged %v, want %v", o.merged[tensor], want)
		}
		o.merged[tensor] = nil
	}
	w.RowsMerged(w.now, reached, full)
	w.settle()
}

func (w *rowWorld) answer(a *Action) {
	tensor := int(w.chunks[a.Index].Tensor)
	m := &w.workers[a.Worker]
	s := &m.streams[tensor]
	w.outstanding[a.Worker]++
	if a.Kind == Acknowledge {
		if s.tos[0] > w.o.done[tensor] {
			w.t.Fatalf("worker %d got the answer to its rows before %d of tensor %d, and %d are merged", a.Worker, s.tos[0], tensor,
				w.o.done[tensor])
		}
		s.tos = s.tos[1:]
		w.carryOut(a)
		return
	}
	s.fetches--
	if a.Block < 0 {
		w.o.inUse++
		w.o.freed++
		if !s.last {
			w.t.Fatalf("worker %d got an empty block of tensor %d before the last", a.Worker, tensor)
		}
	} else {
		s.got = append(s.got, w.rows.blocks[a.Block]...)
		s.last = w.ends[a.Block]
	}
	if a.Last {
		w.o.freed++
	}
	w.carryOut(a)
	if want, _ := w.o.want(m.step-1, tensor, w.ts[tensor].Rows); s.last && !slices.Equal(s.got, want) {
		w.t.Fatalf("worker %d fetched rows %v of tensor %d, want %v", a.Worker, s.got, tensor, want)
	}
}

// act lets a worker begin a tensor or send a message, and reports whether it did.
func (w *rowWorld) act(rank int) bool {
	m := &w.workers[rank]
	if m.begun == len(m.order) && m.idle() && m.step < w.o.steps {
		m.step++
		m.begun, m.requested = 0, nil
		m.order = make([]int, len(w.ts))
		for i := range m.order {
			m.order[i] = i
		}
		if m.oneByOne = rapid.Bool().Draw(w.t, "one by one"); !m.oneByOne {
			m.order = rapid.Permutation(m.order).Draw(w.t, "order")
		}
	}
	if m.begun < len(m.order) && (!m.oneByOne || m.idle()) {
		w.begin(rank, m.order[m.begun])
		m.begun++
		return true
	}
	sends := []func(*rower, int) bool{w.sendChunk}
	for tensor := range m.streams {
		if m.streams[tensor].active {
			sends = append(sends, w.sendRows(tensor), w.sendFetch(tensor))
		}
	}
	first := rapid.IntRange(0, len(sends)-1).Draw(w.t, "send")
	for i := range sends {
		if sends[(first+i)%len(sends)](m, rank) {
			w.advance()
			return true
		}
	}
	return false
}

func (w *rowWorld) begin(rank, tensor int) {
	m := &w.workers[rank]
	if rows := w.ts[tensor].Rows; rows > 0 {
		cuts := append(rapid.SliceOfN(rapid.Uint32Range(1, rows), 0, 5).Draw(w.t, "cuts"), rows)
		slices.Sort(cuts)
		wants := w.cfg.Mode != TwoPhase && rapid.Bool().Draw(w.t, "wants")
		m.streams[tensor] = streamer{active: true, wants: wants, cuts: slices.Compact(cuts)}
		return
	}
	for c := range w.chunks {
		if int(w.chunks[c].Tensor) == tensor {
			m.todo = append(m.todo, uint32(c))
			m.left[uint32(c)] = true
		}
	}
	if !m.oneByOne {
		m.todo = rapid.Permutation(m.todo).Draw(w.t, "chunks")
	}
}

// room reports whether a worker has room for a message beside the slots that it keeps for streams.
func (w *rowWorld) room(m *rower, leave int) bool { return m.used()+leave < w.cfg.Window-w.kept() }

func (w *rowWorld) sendChunk(m *rower, rank int) bool {
	if !w.room(m, 0) {
		return false
	}
	c, ok := m.next(w.room(m, 1))
	if !ok {
		return false
	}
	m.inflight++
	op := chunk.OpPushPull
	if w.cfg.Mode == TwoPhase {
		op = chunk.OpPush
	}
	w.send(rank, w.message(op, rank, c, nil))
	return true
}

// roomFor reports whether a stream may send another message, beside so many of the same kind.
func (w *rowWorld) roomFor(m *rower, beside int) bool {
	extra := m.used() - m.inflight
	return beside == 0 || extra+w.kept() < w.cfg.Window/2 && w.room(m, min(1, len(m.requested)))
}

func (w *rowWorld) sendRows(tensor int) func(*rower, int) bool {
	return func(m *rower, rank int) bool {
		s, t := &m.streams[tensor], &w.ts[tensor]
		if s.sent == len(s.cuts) || !w.roomFor(m, len(s.tos)) {
			return false
		}
		msg := w.rowMessage(rank, t, RowsPushed)
		if s.wants {
			msg.Rows.Kind = RowsWanted
		}
		if s.sent > 0 {
			msg.Rows.From = s.cuts[s.sent-1]
		} else {
			w.at[rank].begun[t.First] = epochAfter(w.at[rank].epochs[t.First])
			msg.Epoch = w.at[rank].begun[t.First]
		}
		msg.Rows.To = s.cuts[s.sent]
		var list []uint32
		for row := msg.Rows.From; row < msg.Rows.To; row++ {
			if w.o.touched[m.step-1][tensor][rank][row] {
				list = append(list, row)
			}
		}
		s.sent++
		s.tos = append(s.tos, (m.step-1)*int(t.Rows)+int(msg.Rows.To))
		w.rows.lists[payloadOf(rank, t.First, w.at[rank].slots[0])] = list
		w.send(rank, msg)
		return true
	}
}

func (w *rowWorld) sendFetch(tensor int) func(*rower, int) bool {
	return func(m *rower, rank int) bool {
		s := &m.streams[tensor]
		if !s.wants || s.sent == 0 || s.last || !w.roomFor(m, s.fetches) {
			return false
		}
		s.fetches++
		w.send(rank, w.rowMessage(rank, &w.ts[tensor], RowsFetch))
		return true
	}
}

func (w *rowWorld) rowMessage(rank int, t *Tensor, kind RowKind) Message {
	return Message{Op: chunk.OpPush, Index: t.First, Epoch: w.at[rank].begun[t.First], Rows: RowRange{Kind: kind}}
}

func (w *rowWorld) send(rank int, msg Message) {
	slots := &w.at[rank].slots
	msg.Where.Payload = payloadOf(rank, msg.Index, (*slots)[0])
	*slots = (*slots)[1:]
	w.Receive(w.now, rank, &msg)
	w.settle()
}
