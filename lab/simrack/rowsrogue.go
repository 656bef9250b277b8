package simrack

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
	"unsafe"

	"github.com/rackweave/rackweave/aggregate"
	"github.com/rackweave/rackweave/cgo/worker"
	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/client/lanes"
	"github.com/rackweave/rackweave/codec"
	"github.com/rackweave/rackweave/verbs"
)

// Rogues of jobs with sparse tensors. Until rogueRowsChange, their messages are sent while none of the worker's is in flight.
const (
	rogueRowsHeader rogueKind = iota + rogueKinds // a header that its message's length belies
	rogueRowsFields                               // a header that no message can have
	rogueRowsRange                                // rows that do not follow the last ones, or are beyond the tensor's
	rogueRowsDense                                // a chunk of a sparse tensor
	rogueRowsFetch                                // a fetch of results without gradients
	rogueRowsPull                                 // a pull of rows that do not exist
	rogueRowsIDs                                  // rows that do not ascend, or are not in their range
	rogueRowsCount                                // a bitmap of more or fewer rows than the header says
	rogueRowsChange                               // messages that change after they were sent
	rogueRowsEnd
)

var rowsRogueNames = [...]string{
	"lengths of rows that lie", "headers of rows that lie", "rows out of turn", "a chunk of a sparse tensor", "a fetch of nothing",
	"a pull of rows that do not exist", "rows that do not ascend", "a bitmap that lies", "messages that change",
}

func (k rogueKind) String() string {
	if k >= rogueKinds {
		return rowsRogueNames[k-rogueKinds]
	}
	return rogueNames[k]
}

// mayPass reports whether nobody may notice the rogue: rows are looked at when the others' rows are there, too.
func (k rogueKind) mayPass() bool { return k >= rogueRowsIDs }

// misreport makes rogues of jobs with sparse tensors lie about rows.
func misreport(s *Schedule) {
	d, f := draw{rand.New(rand.NewPCG(s.Seed, 7))}, &s.Fault
	job := slices.IndexFunc(s.Jobs, func(j *JobSchedule) bool { return j.Widths != nil })
	if s.Failovers != nil || job < 0 || f.Kind == Rogue && (f.Job != job || f.Rogue != rogueTwice && d.chance(20)) {
		return
	}
	if f.Kind == NoFault && d.chance(50) {
		f.Kind, f.Job, f.Worker, f.Lane, f.After = Rogue, job, d.IntN(len(s.Jobs[job].Workers)), d.IntN(s.Lanes), d.IntN(20)
		f.Notice = d.duration(time.Millisecond, 500*time.Millisecond)
	}
	if f.Kind == Rogue {
		f.Rogue = rogueRowsHeader + rogueKind(d.IntN(int(rogueRowsEnd-rogueRowsHeader)))
	}
}

// pushesRows reports whether the member's rows are in flight.
func (m *member) pushesRows() bool {
	return slices.ContainsFunc(m.pending, func(op operation) bool { return op.rows != nil })
}

// target returns a sparse tensor and its rows in the fault's lane. If no sparse tensor has any there, rows is 0.
func (f forger) target() (tensor int, first, rows uint32) {
	plan := f.m.job.rack.Plan
	var some []int
	for t := range plan.NumTensors() {
		if plan.LaneRows(f.Fault.Lane, t) > 0 && plan.Tensor(t).Width > 0 {
			some = append(some, t)
		}
	}
	if some == nil {
		return 0, 0, 0
	}
	tensor = some[f.rng.IntN(len(some))]
	_, share, _ := plan.LaneTensor(f.Fault.Lane, tensor)
	return tensor, share.First, plan.LaneRows(f.Fault.Lane, tensor)
}

// misreport sends one message that lies about rows.
func (f forger) misreport() error {
	t, first, rows := f.target()
	for tries := 1; rows == 0; tries++ {
		if tries == f.Lanes {
			return nil
		}
		f.Fault.Lane = (f.Fault.Lane + 1) % f.Lanes
		t, first, rows = f.target()
	}
	m, lane := f.m, f.Fault.Lane
	m.rogue = f.Fault.Rogue.mayPass()
	m.job.doubtful = m.rogue
	// What waits for the rogue's rows ends by its deadline.
	f.later(2*time.Second, func() error {
		if !m.over() && !m.job.closed {
			worker.Abort(m.w.C, "no answer in time")
		}
		return nil
	})
	memory, err := m.w.Allocate("rogue", (f.Window+1)*chunkBytes)
	if err != nil {
		return err
	}
	if f.Fault.Rogue == rogueRowsChange {
		for i := range 1 + f.rng.IntN(12) {
			after := time.Duration(i) * time.Duration(f.rng.Int64N(int64(20*time.Microsecond)))
			f.later(after, func() error { return f.change(memory, rows) })
		}
		f.rogueSent = true
		return nil
	}
	msg, payload := f.lie(t, first, rows)
	for slot := range f.Window + 1 {
		copy(memory.Bytes()[slot*chunkBytes:], payload)
	}
	mr, qp, peer := memory.MRs[0], m.w.QPs[lane], &m.w.Peers[lane]
	wr := []verbs.SendWR{{
		WRID: uint64(lane), Opcode: verbs.OpWriteWithImm, Imm: chunk.Pack(msg.op, uint8(msg.epoch), uint32(msg.index)),
		LAddr: mr.Addr, LKey: mr.LKey, Length: uint32(msg.bytes), RAddr: peer.SlotAddr, RKey: peer.SlotRKey,
	}}
	if !f.ByReference { // whichever slot's turn it is
		all := wr[0]
		all.Opcode, all.Length = verbs.OpWrite, uint32(f.Window*chunkBytes)
		wr = slices.Insert(wr, 0, all)
	}
	if n, err := qp.PostSend(wr); err != nil || n < len(wr) {
		return nil // its send queue is full
	}
	f.rogueSent = qp.State() == verbs.StateRTS
	f.trace("rogue: %v sends %+v: % x", m, msg, payload[:min(len(payload), 24)])
	return nil
}

// lie returns a message about rows, and its payload.
func (f forger) lie(t int, first, rows uint32) (msg message, payload []byte) {
	plan, m := f.m.job.rack.Plan, f.m
	width := int(plan.Tensor(t).Width)
	each := width * m.job.Wire.Size()
	msg = message{op: chunk.OpPush, index: int(first), epoch: m.pushes[t] + 1}
	n := min(uint32(f.rng.IntN(3)), rows, uint32((chunkBytes-codec.RowsHeader)/(4+each)))
	var ids []uint32
	for i := range n {
		ids = append(ids, i)
	}
	kind := codec.RowsGradient
	if m.job.Mode != aggregate.TwoPhase && m.job.Mode != aggregate.Stream && f.rng.IntN(2) == 0 {
		kind = codec.RowsWanted
	}
	payload = codec.AppendRows(nil, kind, 0, rows, ids, make([]byte, int(n)*each))
	word := func(i int, x uint32) { binary.LittleEndian.PutUint32(payload[4*i:], x) }
	odd := []uint32{1, rows, rows + 1, math.MaxInt32, math.MaxUint32, uint32(f.rng.IntN(1 << 16))}[f.rng.IntN(6)]
	switch f.Fault.Rogue {
	case rogueRowsHeader:
		// What follows the message's ids, or its rows, could be the ids that it lacks.
		payload = codec.Rows{Kind: kind, To: rows, Count: n + 1 + odd%3}.Append(nil)
		for i := range (4*n + n*uint32(each)) / 4 {
			payload = binary.LittleEndian.AppendUint32(payload, i)
		}
	case rogueRowsFields:
		switch f.rng.IntN(4) {
		case 0:
			payload[12] = 4 + byte(odd%200) // the kind
		case 1:
			payload[13] = 2 + byte(odd%200) // the form
		case 2:
			payload[14+f.rng.IntN(2)] = 1 + byte(odd%200)
		case 3:
			word(0, rows) // an empty range
		}
	case rogueRowsRange:
		if rows > 2 && f.rng.IntN(2) == 0 {
			from := 1 + f.rng.Uint32N(rows-2)
			payload = codec.Rows{From: from, To: from + 1}.Append(nil)
		} else {
			payload = codec.Rows{To: rows + 1 + odd%math.MaxInt16}.Append(nil)
		}
	case rogueRowsDense:
		_, share, _ := plan.LaneTensor(f.Fault.Lane, t)
		msg.index += f.rng.IntN(int(share.Chunks))
		if msg.op = chunk.OpPushPull; msg.index != int(first) && f.rng.IntN(2) == 0 {
			msg.op = chunk.OpPush
		}
	case rogueRowsFetch:
		payload = codec.Rows{Kind: codec.RowsFetch}.Append(nil)
	case rogueRowsPull:
		payload = binary.LittleEndian.AppendUint32(codec.Rows{Kind: codec.RowsPull, Count: 1}.Append(nil), max(odd, rows))
		msg.epoch--
	case rogueRowsIDs:
		payload = codec.Rows{To: rows, Count: 2}.Append(nil)
		if rows < 2 {
			payload = codec.Rows{To: rows, Count: 1}.Append(nil)
		}
		for range min(rows, 2) {
			payload = binary.LittleEndian.AppendUint32(payload, []uint32{0, odd, rows}[f.rng.IntN(3)])
		}
		payload = append(payload, make([]byte, int(min(rows, 2))*each)...)
	case rogueRowsCount:
		h := codec.Rows{To: rows, Count: uint32(f.rng.IntN(int(min(rows, 8)) + 1)), Bitmap: true}
		payload = h.Append(nil)
		for range (rows + 31) / 32 {
			payload = binary.LittleEndian.AppendUint32(payload, f.rng.Uint32()&f.rng.Uint32())
		}
		payload = append(payload, make([]byte, int(h.Count)*each)...)
	}
	payload = payload[:min(len(payload), chunkBytes)]
	msg.bytes = len(payload)
	return msg, payload
}

// change writes something to a message of the worker that may be in flight.
func (f forger) change(memory *lanes.Memory, rows uint32) error {
	m, lane := f.m, f.Fault.Lane
	if m.job.closed || m.dead {
		return nil
	}
	at := 4 * f.rng.IntN(4)
	if f.rng.IntN(2) == 0 {
		at = 4 * f.rng.IntN(64)
	}
	x := []uint32{0, 1, rows - 1, rows, math.MaxUint32, f.rng.Uint32(), f.rng.Uint32N(rows)}[f.rng.IntN(7)]
	f.trace("rogue: %v changes the bytes at %d of a message to %#x", m, at, x)
	if f.ByReference {
		at += f.rng.IntN(f.Staging) * chunkBytes
		staging := *(**byte)(unsafe.Pointer(&m.w.Staging[lane]))
		binary.LittleEndian.PutUint32(unsafe.Slice(staging, f.Staging*chunkBytes)[at:], x)
		return nil
	}
	mr, qp, peer := memory.MRs[0], m.w.QPs[lane], &m.w.Peers[lane]
	if qp == nil {
		return nil
	}
	binary.LittleEndian.PutUint32(memory.Bytes(), x)
	at += f.rng.IntN(f.Window) * chunkBytes
	_, err := qp.PostSend([]verbs.SendWR{{
		WRID: uint64(lane), Opcode: verbs.OpWrite, LAddr: mr.Addr, LKey: mr.LKey, Length: 4,
		RAddr: peer.SlotAddr + uint64(at), RKey: peer.SlotRKey,
	}})
	if err != nil {
		f.trace("rogue: %v: %v", m, err)
	}
	return nil
}

// checkRowsRogue checks that a job that ended because of a lie about rows names the tensor.
func checkRowsRogue(of *Fault, j *job) error {
	if f := j.rack.Job.Failure(); f != nil && of.Rogue.rejected() && !strings.Contains(f.Err.Error(), "tensor \"t") {
		return fmt.Errorf("%s failed after worker %d sent %v, and names no tensor: %w", j.Name, of.Worker, of.Rogue, f.Err)
	}
	return nil
}
