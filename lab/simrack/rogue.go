package simrack

import (
	"fmt"
	"strings"

	"github.com/rackweave/rackweave/aggregate"
	"github.com/rackweave/rackweave/cgo/worker"
	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/verbs"
)

// rogueKind is the kind of message that a misbehaving worker sends beside its C worker's messages, on the same queue pair.
type rogueKind int

const (
	rogueEpoch        rogueKind = iota // a gradient of a later epoch
	rogueLate                          // a gradient of the last epoch
	rogueSize                          // a gradient of the right epoch, too short
	rogueChunk                         // a gradient of an unknown chunk
	rogueRecord                        // a broken control record
	rogueTensor                        // a record of an unknown tensor
	rogueAggregatorOp                  // a message that only the aggregator sends
	rogueMode                          // an operation of another mode
	rogueKey                           // a write with an unknown key
	rogueBounds                        // a write past its slots
	rogueForeign                       // a write into another job's slots
	rogueHyper                         // other hyper-parameters than the others'
	rogueCommit                        // a commit with other values
	rogueTwice                         // a second gradient of a chunk
	rogueFlood                         // more messages than its window
	rogueTarget                        // a record that aims answers at foreign memory
	rogueNoise                         // any immediate, any size
	rogueKinds
)

var rogueNames = [...]string{
	"future epoch", "late duplicate", "wrong size", "unknown chunk", "broken record", "unknown tensor", "aggregator's operation",
	"operation of another mode", "unknown key", "beyond its slots", "another job's slots",
	"other hyper-parameters", "another commit", "duplicate of what is there", "flood",
	"answers to foreign memory", "noise",
}

// rejected reports whether the aggregator must refuse the message itself, so that all results stay right. Otherwise the message may
// change the worker's own part of a sum.
func (k rogueKind) rejected() bool { return k < rogueTwice || k >= rogueKinds && k < rogueRowsChange }

// answered reports whether the aggregator may answer the message instead of refusing it: a record of a tensor without further
// answers, or pulls of which each is answered before the next arrives. The worker then gets an answer that it did not ask for.
func (k rogueKind) answered() bool { return k == rogueTarget || k == rogueFlood }

// message is a raw message from the start of the rogue's memory.
type message struct {
	op    chunk.Op
	epoch int
	index int
	bytes int
}

// misbehave carries out the schedule's rogue.
func (r *run) misbehave(m *member) error {
	j, lane, kind := m.job, r.Fault.Lane, r.Fault.Rogue
	switch kind {
	case rogueHyper:
		if j.Mode == aggregate.Eager && len(j.members) > 1 {
			h := j.Hyper
			h.LR *= 3
			record := j.Rule.Record(h)
			worker.Hyper(m.w.C, uint32(r.rng.IntN(j.rack.Plan.NumTensors())), &record)
		}
		return nil
	case rogueCommit:
		m.contrary = len(j.members) > 1
		return nil
	}
	if kind >= rogueKinds {
		return forger{r, m}.misreport()
	}
	memory, err := m.w.Allocate("rogue", 2*chunkBytes)
	if err != nil {
		return err
	}
	mr := memory.MRs[0]
	for i := range memory.Bytes() {
		memory.Bytes()[i] = byte(i * 7)
	}
	if kind == rogueTarget {
		record := chunk.TensorRecord{LR: 0.1, Scale: 1, DstAddr: mr.Addr, DstRKey: mr.RKey + 2<<13, Flags: chunk.RecordHasDst}
		record.Encode(memory.Bytes())
	}
	m.rogue = !kind.rejected()
	j.doubtful = m.rogue
	f := forger{r, m}
	addr, rkey := f.aim()
	qp := m.w.QPs[lane]
	for _, msg := range f.forge() {
		if kind.misses() {
			msg.bytes = max(msg.bytes, 1) // without bytes the key does not matter
		}
		_, err := qp.PostSend([]verbs.SendWR{{
			WRID: uint64(lane), Opcode: verbs.OpWriteWithImm, Imm: chunk.Pack(msg.op, uint8(msg.epoch), uint32(msg.index)),
			LAddr: mr.Addr, LKey: mr.LKey, Length: uint32(msg.bytes), RAddr: addr, RKey: rkey,
		}})
		if err != nil {
			break // its send queue is full
		}
		r.rogueSent = qp.State() == verbs.StateRTS
		r.trace("rogue: %v sends %+v", m, msg)
	}
	return nil
}

// misses reports whether the rogue writes to memory that it may not write.
func (k rogueKind) misses() bool { return k == rogueKey || k == rogueBounds || k == rogueForeign }

// forger makes the messages of a misbehaving worker.
type forger struct {
	*run
	m *member
}

// aim returns the address and the key of the rogue's write.
func (f forger) aim() (addr uint64, rkey uint32) {
	lane := f.Fault.Lane
	addr, rkey = f.m.w.Peers[lane].SlotAddr, f.m.w.Peers[lane].SlotRKey
	switch f.Fault.Rogue {
	case rogueKey:
		rkey ^= 0xabcd << 14
	case rogueBounds:
		addr += uint64(f.Window * chunkBytes)
	case rogueForeign:
		other := f.jobs[len(f.jobs)-1-f.m.job.index]
		if other == f.m.job || other.rack == nil || other.closed {
			return addr, rkey + 1
		}
		return other.members[0].w.Peers[lane].SlotAddr, other.members[0].w.Peers[lane].SlotRKey
	}
	return addr, rkey
}

// gradient returns the worker's last message of a chunk of the lane, and whether its operation is done. If the lane has no such
// chunk, the message is for an unknown one.
func (f forger) gradient(index int) (msg message, done bool) {
	msg = message{op: chunk.OpPushPull, index: index}
	if f.m.job.Mode == aggregate.TwoPhase {
		msg.op = chunk.OpPush
	}
	plan := f.m.job.rack.Plan
	if ids := plan.LaneChunks(f.Fault.Lane); index < len(ids) {
		c := plan.Chunk(int(ids[index]))
		msg.bytes, msg.epoch = c.Elems*f.m.job.Wire.Size(), f.m.pushes[c.Tensor]
		done = !f.m.active[c.Tensor]
	}
	return msg, done
}

// forge returns the rogue's messages.
func (f forger) forge() (out []message) {
	chunks := len(f.m.job.rack.Plan.LaneChunks(f.Fault.Lane))
	some := f.rng.IntN(chunks + 1)
	msg, done := f.gradient(some)
	switch f.Fault.Rogue {
	case rogueEpoch:
		msg.epoch += 40
	case rogueLate:
		if !done {
			msg.epoch--
		}
	case rogueSize:
		if done {
			msg.epoch++
		}
		msg.bytes = max(msg.bytes/2-1, 0)
	case rogueChunk:
		msg.index = chunks + some
	case rogueRecord:
		// Of the right length it would be read from the slot whose turn it is, where an earlier record may lie, which is whole.
		msg = message{op: chunk.OpTensor, bytes: chunk.RecordBytes - 4<<f.rng.IntN(4)}
	case rogueTensor:
		msg = message{op: chunk.OpTensor, index: 1 << 20, bytes: chunk.RecordBytes}
	case rogueAggregatorOp:
		msg.op = chunk.OpNotice + chunk.Op(f.rng.IntN(2))
	case rogueMode:
		msg = f.ofAnotherMode(msg)
	case rogueTarget:
		msg = message{op: chunk.OpTensor, bytes: chunk.RecordBytes}
	case rogueTwice:
		msg, _ = f.gradient(f.waiting())
	case rogueFlood:
		if msg.op = chunk.OpPull; f.m.job.Mode == aggregate.Aggregate {
			msg.op = chunk.OpPushPull
		}
		msg.bytes = 0
		for range f.Window + 3 {
			out = append(out, msg)
		}
		return out
	case rogueNoise:
		for range 1 + f.rng.IntN(4) {
			out = append(out, message{chunk.Op(f.rng.IntN(8)), f.rng.IntN(128), f.rng.IntN(chunks + 2), f.rng.IntN(chunkBytes)})
		}
		return out
	}
	return []message{msg}
}

// waiting returns a chunk of the fault's lane whose gradient the aggregator has, but cannot sum because another worker has not
// submitted its own. It returns -1 if the lane has none. The aggregator must have taken all messages that the worker submitted,
// because a duplicate overwrites a slot, which might hold a message that was not taken, such as a control record.
func (f forger) waiting() int {
	if f.m.job.Widths != nil {
		return -1 // streams have messages that only the two ends count
	}
	var st worker.Stats
	worker.StatsOf(f.m.w.C, &st)
	submitted, gradients := f.m.chunks, f.m.gradients
	for _, op := range f.m.pending {
		if op.tensor < 0 {
			return -1
		}
		n := f.m.job.oracle.chunks(op.tensor)
		submitted += n
		if f.m.job.Phases[op.phase].kind != phasePull {
			gradients += n
		}
	}
	if st.SentChunks-st.NACKs != submitted || st.SentChunks-st.NACKs-st.ReceivedChunks >= uint64(f.Window) {
		return -1
	}
	for _, l := range f.engine.Lanes() {
		l.Counters() // publishes the workers' counters
	}
	if f.m.job.rack.Job.WorkerCounters()[f.m.rank].Chunks != gradients {
		return -1
	}
	for _, op := range f.m.pending {
		if kind := f.m.job.Phases[op.phase].kind; kind != phasePush && kind != phasePushPull {
			continue
		}
		for _, other := range f.m.job.members {
			if other.pushes[op.tensor] >= f.m.pushes[op.tensor] {
				continue
			}
			for i, id := range f.m.job.rack.Plan.LaneChunks(f.Fault.Lane) {
				if int(f.m.job.rack.Plan.Chunk(int(id)).Tensor) == op.tensor {
					return i
				}
			}
		}
	}
	return -1
}

// ofAnotherMode returns a message that only a job in another mode takes.
func (f forger) ofAnotherMode(msg message) message {
	switch f.m.job.Mode {
	case aggregate.Aggregate:
		if f.rng.IntN(2) == 0 {
			return message{op: chunk.OpPull, index: msg.index, epoch: msg.epoch}
		}
		return message{op: chunk.OpCommit, epoch: 1, bytes: chunk.RecordBytes}
	case aggregate.Eager:
		return message{op: chunk.OpCommit, epoch: 1, bytes: chunk.RecordBytes}
	case aggregate.Stream: // accepts it as the end of a later step
		return message{op: chunk.OpCommit, epoch: 40, bytes: chunk.RecordBytes}
	}
	msg.op = chunk.OpPushPull
	msg.epoch++
	return msg
}

// late reports whether text is an error for a late message, with which a duplicate may be refused.
func late(text string) bool {
	return strings.HasSuffix(text, "twice") || strings.Contains(text, "for epoch")
}

// checkRogue checks that a job's rogue was detected, after all messages are delivered.
func (r *run) checkRogue(j *job) error {
	if r.Fault.Kind != Rogue || r.Fault.Job != j.index || !r.rogueSent || r.Fault.Rogue == rogueNoise || r.Fault.Rogue.mayPass() {
		return nil
	}
	m := j.members[r.Fault.Worker]
	own, _ := worker.Failure(m.w.C)
	switch {
	case m.left:
		return nil
	case j.failed == 0 && own < 0 && r.Fault.Rogue.answered():
		return nil
	case j.failed == 0 && m.lost != 0 && (r.Fault.Rogue.misses() || r.Fault.Rogue.answered()):
		return nil // what its network refuses, or what it did not ask for, ends the worker alone
	case j.failed == 0:
		return fmt.Errorf("%s: nobody noticed that worker %d sent %s", j.Name, m.rank, r.Fault.Rogue)
	case r.Fault.Rogue >= rogueKinds:
		return checkRowsRogue(&r.Fault, j)
	case r.Fault.Rogue != rogueTwice:
		return nil
	}
	// The window has room for a duplicate. It is refused as a duplicate, or as late if the result overtook it. If it were taken, its
	// slot would be lost and the window would end early. But if the chunk was NACKed meanwhile, the duplicate arrives first, and the
	// worker's repetition is one too many.
	var st worker.Stats
	worker.StatsOf(m.w.C, &st)
	if text := j.reason().Error(); st.NACKs == 0 && !late(text) {
		return fmt.Errorf("%s failed after worker %d sent a duplicate, but not of that: %s", j.Name, m.rank, text)
	}
	return nil
}
