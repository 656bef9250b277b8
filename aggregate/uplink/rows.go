package uplink

import (
	"math"
	"slices"

	"github.com/rackweave/rackweave/aggregate/failure"
	"github.com/rackweave/rackweave/aggregate/reduce"
	"github.com/rackweave/rackweave/aggregate/store"
	"github.com/rackweave/rackweave/cgo/kernel"
	"github.com/rackweave/rackweave/codec"
	"github.com/rackweave/rackweave/verbs"
)

// rows passes the rows of sparse tensors between the racks. One rack owns all of a tensor's rows in the lane. Every rack adds its
// workers' rows in a block of sums. When the block is full or ends at the last row, the rack sends it to the owner, in a slot of
// the tensor's own, because no tensor may wait for another's. The owner makes the results of the rows that the blocks of all racks
// cover, with the racks in order, and sends them to all racks in a block, which also tells them that the sums before its end were
// taken. Racks confirm results ([NoticeRows]).
type rows struct {
	u    *Uplink
	of   []*rowStream // by tensor; nil for a dense one
	all  []*rowStream
	look bool // a stream may go on
}

// rowStream is one sparse tensor in the lane. Its blocks lie in a buffer of its own, in the places for a sum and for a result.
type rowStream struct {
	number  int // among the lane's sparse tensors
	owner   int
	first   uint32 // chunk
	buffer  int32
	sums    codec.Rows
	full    bool // the block of sums takes no more rows
	sent    bool // to the owner
	results codec.Rows
	fresh   bool               // the workers here do not have the results yet
	owed    bool               // they have, and the owner must be told
	racks   []rowRack          // by rack, at the owner
	sources []kernel.RowSource // by rack, at the owner: its sums
}

// rowRack is a rack's end of a stream at the owner.
type rowRack struct {
	has       bool   // its sums are here, with a note
	to        uint32 // their end
	note      note
	due, busy bool // the results must be sent to it; they were, and it must confirm them
}

// add adds the sparse tensors that are new in the store.
func (r *rows) add() {
	st, racks := r.u.cfg.Store, r.u.cfg.Place.Racks
	for i := len(r.of); i < len(st.Tensors); i++ {
		r.of = append(r.of, nil)
		if t := &st.Tensors[i]; t.Rows != nil {
			n := len(r.all)
			r.of[i] = &rowStream{
				number: n, owner: int(st.Chunks[t.Rows.First].Owner), first: t.Rows.First, buffer: int32(len(r.u.resultAddrs) + n),
				racks: make([]rowRack, racks), sources: make([]kernel.RowSource, racks),
			}
			r.all = append(r.all, r.of[i])
		}
	}
}

func (r *rows) tensor(s *rowStream) *store.Tensor {
	return &r.u.cfg.Store.Tensors[r.u.cfg.Store.Chunks[s.first].Tensor]
}

func (r *rows) owns(s *rowStream) bool { return s.owner == r.u.cfg.Place.Rack }

// waiting reports whether a stream has messages that wait for room.
func (r *rows) waiting(s *rowStream) bool {
	waits := s.fresh || s.owed || s.full && !s.sent && !r.owns(s)
	for rack := range s.racks {
		waits = waits || s.racks[rack].due
	}
	return waits
}

// idle reports whether no stream has messages that wait for room.
func (r *rows) idle() bool { return !slices.ContainsFunc(r.all, r.waiting) }

// awaited adds 1 to the count of a rack for every stream that waits for its rows.
func (r *rows) awaited(counts []int) {
	for _, s := range r.all {
		for rack := range s.racks {
			if s.full && r.owns(s) && !s.racks[rack].has || s.sent && rack == s.owner {
				counts[rack]++
			}
		}
	}
}

// MergeRows adds rows of the workers' messages to this rack's block of sums.
func (u *Uplink) MergeRows(t *store.Tensor, src []kernel.RowSource, from, to uint32, _ uint64, _ bool) (uint32, bool, int) {
	s := u.rows.of[u.cfg.Store.Chunks[t.Rows.First].Tensor]
	b, at := &s.sums, u.buffers.sum(s.buffer)
	if from == 0 {
		u.buffers.since[s.buffer] = u.cfg.Lane.Stamp
	}
	var wrong int
	b.To, b.Count, s.full, wrong = u.cfg.Arithmetic.SumRows(t, src, uint8(t.Wire), from, to, at, b.Count)
	if s.full && wrong < 0 {
		u.rows.look = true
		n := note{resultAddr: u.buffers.result(s.buffer), hyperSum: u.cfg.Machine.HyperSum(s.first)}
		n.write(at + uint64(t.SumBlockBytes(b.Count)))
		b.Kind = codec.RowsBlock
		b.Append(store.Bytes(at, codec.RowsHeader)[:0])
		if r := u.cfg.Place.Rack; r == s.owner {
			s.racks[r] = rowRack{has: true, to: b.To, note: n}
			s.sources[r] = t.SumSource(*b, at)
		}
	}
	return b.To, s.full, wrong
}

// receive takes a message of another rack about rows.
func (r *rows) receive(rack int, op Op, index, bytes uint32) {
	s, ok := r.of[r.u.cfg.Store.Chunks[index].Tensor], false
	if s != nil && s.first == index {
		p := &s.racks[rack]
		switch {
		case op == OpSum:
			ok = r.owns(s) && !p.has && r.takeSums(s, rack, bytes)
		case op == OpResult:
			ok = rack == s.owner && !s.fresh && r.takeResults(s, bytes)
		default:
			ok, p.busy = p.busy, false
		}
	}
	if !ok {
		r.u.Links.violates(rack, "sent %d bytes with operation %d of chunk %d of lane %d, which no stream of rows expects", bytes, op, index,
			r.u.cfg.Lane.Index)
	}
	r.look = true
}

// readBlock returns the header of a block that another rack has sent. ok reports whether the block covers rows from one on.
func readBlock(t *store.Tensor, from uint32, addr uint64) (h codec.Rows, ok bool) {
	h = codec.ReadRows(store.Bytes(addr, codec.RowsHeader))
	return h, h.Kind == codec.RowsBlock && h.From == from && from < h.To && h.To <= t.Rows.Count && h.Count <= h.To-from
}

// slot returns the address of the slot for a stream's sums, among slots at an address.
func (r *rows) slot(s *rowStream, slots uint64) uint64 {
	return slots + uint64(r.u.peerWindow+s.number)*r.u.buffers.slotBytes + normBytes
}

func (r *rows) takeSums(s *rowStream, rack int, bytes uint32) bool {
	t, p, at := r.tensor(s), &s.racks[rack], r.slot(s, r.u.Links.peers[rack].slots.Addr())
	h, ok := readBlock(t, p.to%t.Rows.Count, at)
	if !ok || bytes != t.SumBlockBytes(h.Count)+noteBytes {
		return false
	}
	p.has, p.to, p.note = true, h.To, readNote(at+uint64(bytes)-noteBytes)
	s.sources[rack] = t.SumSource(h, at)
	return true
}

// takeResults takes a block of the owner's results, and makes them the parameters, if the job keeps any.
func (r *rows) takeResults(s *rowStream, bytes uint32) bool {
	t, at := r.tensor(s), r.u.buffers.result(s.buffer)
	h, ok := readBlock(t, s.results.To%t.Rows.Count, at)
	s.results, s.fresh = h, true
	if !ok || int(bytes) != t.BlockBytes(h.Count) {
		return false
	}
	st := r.u.cfg.Store
	if st.Chunks[s.first].Addr == 0 {
		return true
	}
	ok = r.u.cfg.Arithmetic.ReplaceRows(t, h, at)
	if _, two := r.u.cfg.Reduction.(*TwoPhaseReduction); ok && !two && h.To == t.Rows.Count {
		st.RowsReplaced(t)
	}
	return ok
}

// advance merges, sends and delivers as far as there is room, and reports whether it did anything.
func (r *rows) advance() (worked bool) {
	if !r.look {
		return false
	}
	r.look = false
	for _, s := range r.all {
		if r.u.cfg.Fail.Has() || r.u.cfg.Machine.State != reduce.Running {
			return worked
		}
		worked = r.merge(s) || worked
		worked = r.send(s) || worked
		worked = r.deliver(s) || worked
		r.look = r.look || r.waiting(s)
	}
	return worked
}

// merge makes the results of the rows that the blocks of all racks cover, once all have those before.
func (r *rows) merge(s *rowStream) bool {
	u, t, at := r.u, r.tensor(s), r.u.buffers.result(s.buffer)
	from, to := s.results.To%t.Rows.Count, t.Rows.Count
	if s.fresh {
		return false
	}
	for rack := range s.racks {
		p := &s.racks[rack]
		if !p.has || p.due || p.busy {
			r.refuseBroadcast(s, t)
			return false
		}
		to = min(to, p.to)
	}
	for rack := range s.racks {
		if s.racks[rack].note.hyperSum != s.racks[s.owner].note.hyperSum {
			u.cfg.Fail.Fail(failure.NoRank, u.differ(t, rack))
			return false
		}
	}
	reached, count, wrong := r.makeResults(t, s.sources, from, to, at)
	if wrong >= 0 {
		u.Links.violates(wrong, "sent rows of tensor %q of lane %d that contradict their header", t.Name, u.cfg.Lane.Index)
		return false
	}
	if reached == t.Rows.Count {
		u.cfg.Arithmetic.RowsMerged(u.cfg.Store, t, (u.cfg.Machine.CommitEpoch()+1)&1)
	}
	s.results, s.fresh = codec.Rows{From: from, To: reached, Count: count, Kind: codec.RowsBlock}, true
	s.results.Append(store.Bytes(at, codec.RowsHeader)[:0])
	for rack := range s.racks {
		p := &s.racks[rack]
		p.has, p.due = p.to > reached, rack != s.owner
	}
	return true
}

// refuseBroadcast ends the job if some racks have sent rows of a tensor while others broadcast it, because neither would be
// answered. It need not spare a refresh, which begins when the rows of all racks are merged, and ends before the next.
func (r *rows) refuseBroadcast(s *rowStream, t *store.Tensor) {
	rack := slices.IndexFunc(s.racks, func(p rowRack) bool { return p.has })
	if rack >= 0 && r.u.reducer.Broadcasts(s.first, t.Rows.Chunks) {
		r.u.Links.violates(rack, "sent rows of tensor %q of lane %d while others broadcast it", t.Name, r.u.cfg.Lane.Index)
	}
}

// makeResults runs the rule, or in mode two-phase accumulates, or in mode aggregate only sums.
func (r *rows) makeResults(t *store.Tensor, sums []kernel.RowSource, from, to uint32, at uint64) (reached, count uint32,
	wrong int) {
	st, k := r.u.cfg.Store, r.u.cfg.Arithmetic
	switch r.u.cfg.Reduction.(type) {
	case *TwoPhaseReduction:
		reached, wrong = k.AccumulateRows(st, t, sums, from, to)
		return reached, 0, wrong
	case *AggregateReduction:
		st.RowsSum(t)
	default:
		st.RowsStep(t)
	}
	reached, _, wrong = k.MergeRows(t, sums, from, to, at, true)
	return reached, t.Rows.Results(), wrong
}

// send sends blocks and confirmations as far as there is room.
func (r *rows) send(s *rowStream) (worked bool) {
	u, t := r.u, r.tensor(s)
	for rack := range s.racks {
		p, peer := &s.racks[rack], &u.Links.peers[rack]
		up := rack == s.owner && !r.owns(s)
		if up && s.owed && u.reducer.TakeSend(rack) {
			s.owed, worked = false, true
			u.Links.notify(rack, NoticeRows, s.first)
		}
		if up && s.full && !s.sent && u.reducer.TakeSend(rack) {
			s.sent, worked = true, true
			u.Links.send(rack, pack(OpSum, 0, s.first), store.NoBuffer, verbs.SendWR{
				LAddr: u.buffers.sum(s.buffer), Length: t.SumBlockBytes(s.sums.Count) + noteBytes,
				RAddr: r.slot(s, peer.sumAddr), RKey: peer.sumRKey,
			})
		}
		if p.due && u.reducer.TakeSend(rack) {
			p.due, p.busy, worked = false, true, true
			u.Links.send(rack, pack(OpResult, 0, s.first), store.NoBuffer, verbs.SendWR{
				LAddr: u.buffers.result(s.buffer), Length: uint32(t.BlockBytes(s.results.Count)),
				RAddr: p.note.resultAddr, RKey: peer.resultRKey,
			})
		}
	}
	return worked
}

// deliver gives the results to the rack's workers. If the owner has taken the block of sums, the workers' next rows may be added.
func (r *rows) deliver(s *rowStream) bool {
	u, t := r.u, r.tensor(s)
	taken, last := s.full && s.sums.To <= s.results.To, s.results.To == t.Rows.Count
	if !s.fresh || !u.cfg.Shard.TakeRows(t, u.buffers.result(s.buffer), s.results.Count, taken, last) {
		return false
	}
	s.fresh, s.owed, r.look = false, !r.owns(s), true
	if last {
		u.buffers.since[s.buffer] = math.MaxInt64
		if _, two := u.cfg.Reduction.(*TwoPhaseReduction); two {
			for i := range t.Rows.Chunks {
				u.cfg.Store.Chunks[s.first+i].Stale = true
			}
		}
	}
	if taken {
		s.full, s.sent, s.sums = false, false, codec.Rows{From: s.sums.To % t.Rows.Count}
	}
	return true
}
