package reduce

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"github.com/rackweave/rackweave/chunk"
)

// rowModel carries out what a machine decides about rows, without arithmetic.
type rowModel struct {
	room   int                 // rows that fit into a block
	lists  map[uint64][]uint32 // by payload: the rows that a gradient message lists
	blocks map[int32][]uint32  // by place: the rows in the blocks that the lane holds
	merged func(a *Action, row uint32, of string)
}

// merge merges rows as the lane does. It names the workers that list each row.
func (m *rowModel) merge(r *rig, a *Action) (text string, reached uint32, full bool) {
	text = fmt.Sprintf("merge %d..%d of %d", a.Rows.From, a.Rows.To, a.Index)
	if a.Buffered {
		if m.blocks[a.Block] != nil {
			text += " [the block is in use]"
		}
		m.blocks[a.Block] = []uint32{}
		text += " new"
	}
	for rank := range r.at {
		if fetch, wants := r.FetchOf(a, rank); r.cfg.Maps && a.Block >= 0 && wants && fetch == nil {
			text += fmt.Sprintf(" [%s has not fetched]", name(int32(rank)))
		}
	}
	if a.Block >= 0 {
		text += fmt.Sprintf(" block %d", a.Block)
	}
	text += ":"
	reached = a.Rows.To
	block, filled := a.Block, a.Block >= 0 || r.cfg.Above // above the rack the sums fill a block outside the machine
	for row := a.Rows.From; row < a.Rows.To && reached == a.Rows.To; row++ {
		of := m.ranks(r, a, row)
		switch {
		case of == "":
		case filled && len(m.blocks[block]) == m.room:
			reached, full = row, true
		default:
			text += fmt.Sprintf(" %d%s", row, of)
			if m.merged != nil {
				m.merged(a, row, of)
			}
			if filled {
				m.blocks[block] = append(m.blocks[block], row)
			}
		}
	}
	return text, reached, full || filled && len(m.blocks[block]) == m.room
}

// ranks returns the names of the workers that list a row in the messages of a merge.
func (m *rowModel) ranks(r *rig, a *Action, row uint32) (of string) {
	for rank := range r.at {
		h := r.RowsOf(a, rank)
		if h.Payload != payloadOf(rank, a.Index, h.Slot) || row < h.Rows.From || row >= h.Rows.To {
			of += fmt.Sprintf("[%s: rows %d..%d in slot %d, payload 0x%x]", name(int32(rank)), h.Rows.From, h.Rows.To, h.Slot, h.Payload)
		}
		if slices.Contains(m.lists[h.Payload], row) {
			of += name(int32(rank))
		}
	}
	return of
}

// answer takes an answer at the worker.
func (m *rowModel) answer(r *rig, a *Action) string {
	p := &r.at[a.Worker]
	r.free(int(a.Worker), a.Message.Slot)
	to := fmt.Sprintf("%s %d to %s/%d", kindNames[a.Kind], a.Index, name(a.Worker), a.Message.Slot)
	switch a.Kind {
	case MergeOne:
		to += fmt.Sprintf(" rows %d..%d: %v", a.Rows.From, a.Rows.To, m.lists[a.Message.Payload])
		if a.Rows.To == r.tensors[r.chunks[a.Index].Tensor].Rows {
			p.epochs[a.Index] = a.Epoch
		}
	case Acknowledge:
		p.epochs[a.Index] = a.Epoch
	case PullRows:
		to += fmt.Sprintf(" %d rows", a.Rows.Count)
	case AnswerRows:
		if a.Block < 0 {
			return to + " empty"
		}
		to += fmt.Sprintf(" block %d: %v", a.Block, m.blocks[a.Block])
		if a.Last {
			to += " last"
			delete(m.blocks, a.Block)
		}
	}
	return to
}

func sparseTensors(chunks, sparse int, rows uint32) (ts []Tensor, cs []Chunk) {
	for i := range chunks {
		tensor := i * sparse / chunks
		if tensor == len(ts) {
			ts = append(ts, Tensor{Name: fmt.Sprintf("t%d", tensor), Rows: rows, First: uint32(i)})
		}
		cs = append(cs, Chunk{Tensor: uint32(tensor), Bytes: chunkBytes})
	}
	return ts, cs
}

// openSparse returns a rig of tensors with so many rows each, and dense ones behind them with a chunk each.
func openSparse(t *testing.T, d *datadriven.TestData, cfg Config, chunks, tensors int) *rig {
	var rows, most, dense, room int
	d.ScanArgs(t, "rows", &rows)
	for key, v := range map[string]*int{"most": &most, "dense": &dense, "room": &room} {
		d.MaybeScanArgs(t, key, v)
	}
	ts, cs := sparseTensors(chunks, tensors, uint32(rows))
	for i := range ts {
		ts[i].MergeMost = uint32(most)
	}
	for range dense {
		cs = append(cs, Chunk{Tensor: uint32(len(ts)), Bytes: chunkBytes})
		ts = append(ts, Tensor{Name: fmt.Sprintf("t%d", len(ts))})
	}
	r := newRigOf(cfg, ts, cs, 4)
	r.rows.room = max(room, 1)
	return r
}

// command runs one line of a story: "rows A 0..5 1 3 [of=2] [epoch=3] [kind=1] [pushpull=1]", "fetch A", "pull-rows A 7 3". The
// chunk of is the tensor's first.
func (m *rowModel) command(t *testing.T, r *rig, rank int, line string) string {
	var from, to, of, epoch, kind, whole int
	var list []uint32
	set := map[string]bool{}
	for _, w := range strings.Fields(line)[2:] {
		var n int
		key, value, ok := strings.Cut(w, "=")
		switch {
		case ok:
			set[key] = true
			at := map[string]*int{"of": &of, "epoch": &epoch, "kind": &kind, "pushpull": &whole}[key]
			if _, err := fmt.Sscan(value, at); err != nil {
				t.Fatalf("%q: %v", line, err)
			}
		case strings.Contains(w, ".."):
			if _, err := fmt.Sscanf(w, "%d..%d", &from, &to); err != nil {
				t.Fatalf("%q: %v", line, err)
			}
		default:
			if _, err := fmt.Sscan(w, &n); err != nil {
				t.Fatalf("%q: %v", line, err)
			}
			list = append(list, uint32(n))
		}
	}
	msg := Message{Op: chunk.OpPush + chunk.Op(whole), Index: uint32(of)}
	p, g := &r.at[rank], &msg.Rows
	*g = RowRange{From: uint32(from), To: uint32(to), Count: uint32(len(list)), Kind: RowKind(kind)}
	switch strings.Fields(line)[0] {
	case "fetch":
		g.Kind = RowsFetch
		msg.Epoch = p.begun[of]
	case "pull-rows":
		g.Kind = RowsPull
		msg.Epoch = p.epochs[of]
	default:
		if g.From == 0 {
			p.begun[of] = epochAfter(p.epochs[of])
		}
		msg.Epoch = p.begun[of]
	}
	if set["epoch"] {
		msg.Epoch = uint8(epoch)
	}
	return r.sendRows(rank, msg, list)
}

// sendRows sends a message about rows, and lets the machine advance.
func (r *rig) sendRows(rank int, msg Message, list []uint32) string {
	if p := &r.at[rank]; len(p.slots) > 0 {
		r.rows.lists[payloadOf(rank, msg.Index, p.slots[0])] = list
	}
	out := r.send(rank, msg)
	for r.Advance(r.now) {
		out += r.settle()
	}
	return out
}

// Events of streams allocate nothing, from their first message to the last block.
func TestStreamsAllocateNothing(t *testing.T) {
	step := newStreamStep(2)
	if allocs := testing.AllocsPerRun(200, step.run); allocs != 0 || step.m.Finished == 0 {
		t.Errorf("%v allocations, %d streams finished", allocs, step.m.Finished)
	}
}

func BenchmarkStream(b *testing.B) {
	step := newStreamStep(16)
	for b.Loop() {
		step.run()
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(step.messages), "ns/message")
}

// streamStep runs steps in which every worker sends a stream and fetches each block, which takes the rows of one message.
type streamStep struct {
	m              *Machine
	msg            Message
	each, messages uint32
}

func newStreamStep(each uint32) *streamStep {
	ts, cs := sparseTensors(4, 1, 8*each)
	r := newRigOf(Config{Workers: 4, Window: 32, Sends: 80, Results: 8, Mode: Eager}, ts, cs, 32)
	return &streamStep{m: r.Machine, msg: Message{Op: chunk.OpPush}, each: each, messages: 4 * 2 * each}
}

func (s *streamStep) run() {
	s.msg.Epoch = epochAfter(s.msg.Epoch)
	for i := range s.each {
		s.send(RowRange{From: 8 * i, To: 8 * (i + 1), Count: 8, Kind: RowsWanted})
		s.send(RowRange{Kind: RowsFetch})
	}
}

func (s *streamStep) send(rows RowRange) {
	s.msg.Rows = rows
	for rank := range 4 {
		s.m.Receive(0, rank, &s.msg)
		for more := true; more; more = s.m.Advance(0) {
			s.carryOut()
		}
	}
}

func (s *streamStep) carryOut() {
	for i := range s.m.Actions {
		switch a := &s.m.Actions[i]; {
		case a.Kind == MergeRows:
			s.m.RowsMerged(0, a.Rows.To, true)
			s.carryOut()
			return
		case a.Last:
			s.m.Freed()
			fallthrough
		default:
			s.m.Delivered(int(a.Worker), 1)
		}
	}
}
