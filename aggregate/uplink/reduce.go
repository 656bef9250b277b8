package uplink

import (
	"fmt"
	"math"

	"github.com/rackweave/rackweave/aggregate/failure"
	"github.com/rackweave/rackweave/aggregate/reduce"
	"github.com/rackweave/rackweave/aggregate/store"
	"github.com/rackweave/rackweave/cgo/kernel"
	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/hierarchy"
)

// HandUp makes this rack's sum of a chunk, or keeps the action until a buffer is free.
func (u *Uplink) HandUp(a *reduce.Action) {
	if len(u.pending) > 0 || u.buffers.Free() == 0 {
		u.pending = append(u.pending, *a)
		return
	}
	u.makeSum(a)
}

// sumPending makes the sums that waited for a buffer, and reports whether it made any.
func (u *Uplink) sumPending() (worked bool) {
	for len(u.pending) > 0 && u.buffers.Free() > 0 && u.cfg.Machine.State == reduce.Running {
		a := u.pending[0]
		u.pending = u.pending[:copy(u.pending, u.pending[1:])]
		u.makeSum(&a)
		worked = true
	}
	return worked
}

// makeSum makes this rack's sum of a chunk, or its part of a broadcast, in a buffer, and tells the reducer that it is complete.
func (u *Uplink) makeSum(a *reduce.Action) {
	c := &u.cfg.Store.Chunks[a.Index]
	b := u.buffers.take(u.cfg.Lane.Stamp)
	u.chunks[a.Index].sum = b
	broadcast := a.Op == chunk.OpBroadcast
	u.rows.look = u.rows.look || u.rows.of[c.Tensor] != nil
	n := note{resultAddr: u.buffers.result(b), hyperSum: u.cfg.Machine.HyperSum(a.Index)}
	switch {
	case coded(c, broadcast):
		n.resultAddr = u.buffers.answer(b)
	case !broadcast && u.keepsAsBuddy(c):
		n.resultAddr = u.buffers.total(b)
	}
	switch root := u.cfg.Place.RootWorker(); {
	case !broadcast:
		u.cfg.Reduction.Sum(c, u.cfg.Shard.Gradients(a), u.buffers.sum(b))
		n.flags = math.Float32bits(c.Round.Part)
	case root >= 0:
		wire := u.wire(c)
		kernel.Convert(u.cfg.Arithmetic.ISA, u.buffers.sum(b), wire, u.cfg.Shard.Gradients(a).Addr[root], wire, uint64(c.Elems), false)
		n.flags |= noteValues
	}
	n.write(u.buffers.sum(b) + u.sumBytes(c, broadcast))
	u.reducer.Ready(a.Index, broadcast)
	u.carryOut()
}

var notices = [...]Notice{
	hierarchy.SendRequest: NoticeRequest, hierarchy.SendRecall: NoticeRecall, hierarchy.SendNACK: NoticeNACK,
	hierarchy.SendTaken: NoticeTaken,
}

// carryOut does what the reducer has decided in the last event, until the job has failed.
func (u *Uplink) carryOut() {
	actions := u.reducer.Actions()
	for i := range actions {
		a := &actions[i]
		switch a.Kind {
		case hierarchy.Combine:
			if u.readNotes(a) {
				u.combine(a)
			}
		case hierarchy.Finish:
			if u.readNotes(a) {
				u.makeResult(a)
			}
		case hierarchy.SendSum:
			u.sendSum(a)
		case hierarchy.SendResult:
			u.sendResult(a)
		case hierarchy.SendRequest, hierarchy.SendRecall, hierarchy.SendNACK, hierarchy.SendTaken:
			u.Links.notify(a.Peer, notices[a.Kind], a.Index)
		case hierarchy.Follow:
			u.wanted = append(u.wanted, a.Index)
		case hierarchy.Discard:
			u.release(a.Index)
			u.discarded = append(u.discarded, a.Index)
		case hierarchy.Return:
			b := u.chunks[a.Index].sum
			u.chunks[a.Index].result = b
			u.buffers.Hold(b, len(u.reducer.Route(a.Index).Children))
			u.returned = append(u.returned, a.Index)
		case hierarchy.Violate:
			u.cfg.Lane.Count.Dropped++
			u.cfg.Fail.Fail(failure.NoRank, fmt.Errorf("%w (%s)", a.Err, u.Links.name(a.Peer)))
		}
		if u.cfg.Fail.Has() {
			return
		}
	}
}

// release ends the rack's own use of a chunk's buffer. Results on their way may still hold it.
func (u *Uplink) release(index uint32) {
	u.buffers.release(u.chunks[index].sum)
	u.chunks[index].sum = store.NoBuffer
}

// sumOf returns the address of a rack's sum of the chunk that is being combined or finished.
func (u *Uplink) sumOf(rack int, index uint32) uint64 {
	if rack == u.cfg.Place.Rack {
		return u.buffers.sum(u.chunks[index].sum)
	}
	return u.Links.peers[rack].slots.Addr() + uint64(u.reducer.Slot(rack))*u.buffers.slotBytes
}

// readNotes records the addresses for a chunk's result at the children, and checks that their workers sent the
// hyper-parameters of this rack's.
func (u *Uplink) readNotes(a *hierarchy.Action) bool {
	c := &u.cfg.Store.Chunks[a.Index]
	own := u.cfg.Machine.HyperSum(a.Index)
	for _, rack := range u.reducer.Route(a.Index).Children {
		n := u.noteOf(rack, a.Index, a.Broadcast)
		u.resultAddrs[u.chunks[a.Index].sum][rack] = n.resultAddr
		if !a.Broadcast && n.hyperSum != own {
			u.cfg.Fail.Fail(failure.NoRank, u.differ(&u.cfg.Store.Tensors[c.Tensor], rack))
			return false
		}
	}
	return true
}

// differ returns the error for a rack whose workers have sent other hyper-parameters than this rack's.
func (u *Uplink) differ(t *store.Tensor, rack int) error {
	return fmt.Errorf("%w: the workers of %s sent other hyper-parameters for tensor %q than those of %s: all must send the same",
		reduce.ErrProtocol, u.Links.name(rack), t.Name, u.Links.name(u.cfg.Place.Rack))
}

// noteOf returns the note of a rack's sum of the chunk that is being combined or finished.
func (u *Uplink) noteOf(rack int, index uint32, broadcast bool) note {
	c := &u.cfg.Store.Chunks[index]
	bytes := u.sumBytes(c, broadcast)
	if coded(c, broadcast) && rack != u.cfg.Place.Rack {
		bytes = uint64(u.coding.lengths[rack][index])
	}
	return readNote(u.sumOf(rack, index) + bytes)
}

// addParts sets a chunk's [store.Round.Part] to the sum of the parts of all racks, and reports whether racks send parts. It adds
// them in the order of the sums, so that no shape changes a bit.
func (u *Uplink) addParts(c *store.Chunk, index uint32) bool {
	if u.cfg.Reduction.Behind() == 0 {
		return false
	}
	c.Round.Part = 0
	for _, g := range u.reducer.Route(index).Groups {
		part := float32(0)
		for _, rack := range g {
			part += math.Float32frombits(u.noteOf(rack, index, false).flags)
		}
		c.Round.Part += part
	}
	return true
}

// inputs returns the sums of a gathered chunk, in order, and reports whether all can be read. With several groups it makes and
// returns each group's sum.
func (u *Uplink) inputs(index uint32) (kernel.Sources, bool) {
	c, kind := &u.cfg.Store.Chunks[index], uint8(u.cfg.Place.CoreType())
	groups := u.reducer.Route(index).Groups
	u.groups = u.groups[:0]
	for _, g := range groups {
		u.src, u.coding.forms = u.src[:0], u.coding.forms[:0]
		for _, rack := range g {
			form, ok := u.coding.formOf(rack, c, index)
			if !ok {
				return kernel.Sources{}, false
			}
			u.src, u.coding.forms = append(u.src, u.sumOf(rack, index)), append(u.coding.forms, form)
		}
		src := kernel.From(u.src, kind)
		if c.Core != 0 {
			src.Form = u.coding.forms
		}
		if len(groups) == 1 {
			return src, true
		}
		// The sum may replace the group's first sum: a child's slot here is this rack's until its answer is posted, a child keeps
		// its own copy until it has the result, and every element is read before it is written.
		// A payload is not replaced while it is read: the slot has room for a chunk behind it.
		out := u.src[0]
		if u.coding.forms[0] != 0 {
			out += u.buffers.chunkBytes
		}
		if len(g) > 1 || out != u.src[0] {
			u.cfg.Arithmetic.SumInto(out, kernel.F32, src, c.Elems)
		}
		u.groups = append(u.groups, out)
	}
	return kernel.From(u.groups, kernel.F32), true
}

// values returns the address of the values of a broadcast among the sums of a gathered chunk, or 0 if the root is in none of these
// racks.
func (u *Uplink) values(index uint32) uint64 {
	c := &u.cfg.Store.Chunks[index]
	for _, g := range u.reducer.Route(index).Groups {
		for _, rack := range g {
			if at := u.sumOf(rack, index); readNote(at+u.sumBytes(c, true)).flags&noteValues != 0 {
				return at
			}
		}
	}
	return 0
}

// combine adds the children's sums into this rack's, or takes the root's values from the child that has them.
func (u *Uplink) combine(a *hierarchy.Action) {
	c, own := &u.cfg.Store.Chunks[a.Index], u.sumOf(u.cfg.Place.Rack, a.Index)
	if !a.Broadcast {
		if u.addParts(c, a.Index) {
			n := u.noteOf(u.cfg.Place.Rack, a.Index, false)
			n.flags = math.Float32bits(c.Round.Part)
			n.write(own + u.sumBytes(c, false))
		}
		if in, ok := u.inputs(a.Index); ok {
			u.cfg.Arithmetic.SumInto(own, kernel.F32, in, c.Elems)
		}
		return
	}
	at := u.values(a.Index)
	if at == 0 || at == own {
		return
	}
	wire := u.wire(c)
	kernel.Convert(u.cfg.Arithmetic.ISA, own, wire, at, wire, uint64(c.Elems), false)
	// A broadcast's note needs no checksum, because readNotes compares only those of gradients.
	n := note{resultAddr: u.buffers.result(u.chunks[a.Index].sum), flags: noteValues}
	n.write(own + u.sumBytes(c, true))
}

// makeResult makes the result of a chunk that this rack owns.
func (u *Uplink) makeResult(a *hierarchy.Action) {
	c, b := &u.cfg.Store.Chunks[a.Index], u.chunks[a.Index].sum
	result := u.buffers.result(b)
	if !a.Broadcast {
		u.addParts(c, a.Index)
		in, ok := u.inputs(a.Index)
		if !ok {
			return
		}
		u.cfg.Reduction.Result(c, in, result, u.buffers.total(b))
		if c.Core != 0 && u.cfg.Reduction.ResultBytes(c) > 0 {
			u.coding.encodeResult(c, a.Index)
		}
		return
	}
	if u.refresh.active {
		kind := uint8(u.cfg.Store.Tensors[c.Tensor].Result)
		kernel.Convert(u.cfg.Arithmetic.ISA, result, kind, c.Addr, kernel.F32, uint64(c.Elems), false)
		u.coding.refer(c, result)
		return
	}
	at := u.values(a.Index)
	if at == 0 {
		u.cfg.Fail.Fail(failure.NoRank, fmt.Errorf("%w: a broadcast of tensor %q without its root's values", reduce.ErrProtocol,
			u.cfg.Store.Tensors[c.Tensor].Name))
		return
	}
	u.one[0] = result
	u.cfg.Arithmetic.Broadcast(u.cfg.Store, c, at, u.one[:], false)
	u.coding.refer(c, result)
}

// Deliver takes a chunk's result into the rack, writes it to every output, and releases the rack's hold on the chunk's buffer. If
// pastCache is true, it writes past the cache.
func (u *Uplink) Deliver(index uint32, broadcast bool, outs []uint64, pastCache bool) {
	c, b := &u.cfg.Store.Chunks[index], u.chunks[index].sum
	result, kind, answers := u.buffers.result(b), uint8(u.cfg.Store.Tensors[c.Tensor].Result), true
	if broadcast {
		kind = u.wire(c)
		if int(c.Owner) != u.cfg.Place.Rack {
			u.cfg.Arithmetic.Replace(u.cfg.Store, c, result, kind)
		}
		u.cfg.Reduction.Begin(c)
	} else {
		answers = u.cfg.Reduction.Apply(c, result, u.buffers.total(b))
	}
	if answers && len(outs) > 0 {
		u.one[0] = result
		sum := kernel.Sum{Dst: outs, DstType: u.wire(c), Src: kernel.From(u.one[:], kind), N: uint64(c.Elems), PastCache: pastCache}
		sum.Run(u.cfg.Arithmetic.ISA)
	}
	u.release(index)
}

func (u *Uplink) wire(c *store.Chunk) uint8 { return uint8(u.cfg.Store.Tensors[c.Tensor].Wire) }

// Pending reports whether Advance may have something to do.
func (u *Uplink) Pending() bool {
	return len(u.pending)+len(u.returned)+len(u.discarded)+len(u.wanted) > 0 || u.exchange.pending() || u.refresh.active ||
		u.rows.look
}

// Advance gives the rack's workers the results that have arrived, and sends messages that waited for room. It reports whether it
// did anything.
func (u *Uplink) Advance() (worked bool) {
	worked = u.rows.advance()
	worked = u.sumPending() || worked
	if u.refresh.active {
		// No chunk is discarded meanwhile, because no rack recalls a sum of a refresh. Racks that are done may want chunks of the next
		// step, which the workers cannot send before their commit is answered. A later tick asks again.
		u.wanted = u.wanted[:0]
		return u.refresh.advance() || worked
	}
	if u.exchange.pending() {
		worked = u.exchange.advance() || worked
	}
	// None of these events hands up a chunk, so no list grows while it is read. Only Yield below may put a chunk on discarded.
	for _, index := range u.returned {
		u.cfg.Machine.Returned(u.cfg.Lane.Stamp, index)
		u.cfg.Shard.CarryOut()
		worked = true
	}
	u.returned = u.returned[:0]
	for _, index := range u.discarded {
		u.cfg.Machine.Recalled(u.cfg.Lane.Stamp, index)
		u.cfg.Shard.CarryOut()
		worked = true
	}
	u.discarded = u.discarded[:0]
	for _, index := range u.wanted {
		stuck := u.cfg.Machine.Follow(u.cfg.Lane.Stamp, index)
		u.cfg.Shard.CarryOut()
		// A worker whose slots all hold gradients that wait up here can send the chunk only when one of these is given up.
		if stuck {
			u.reducer.Yield()
			u.carryOut()
		}
	}
	u.wanted = u.wanted[:0]
	return worked
}

// idleTicks is the number of counted ticks without a chunk finished above the rack after which the rack's own workers count as
// stalled. By then the racks have requested missing sums from each other eight times (hierarchy/stall.go). Before that, workers
// lack slots only because sums are in flight.
const idleTicks = 32

// Tick looks for a stall among racks. It reports whether chunks are under way above the rack, and whether they make progress. It
// calls Advance, because the lane sleeps after its tick.
func (u *Uplink) Tick(counted bool) (open, moving bool) {
	u.reducer.Tick(counted)
	u.carryOut()
	u.Advance()
	u.missLeft()
	open = u.reducer.Open() > 0
	return open, open && u.reducer.Idle() < idleTicks
}
