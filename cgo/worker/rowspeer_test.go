package worker_test

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/rackweave/rackweave/cgo/fabric/simfabric"
	"github.com/rackweave/rackweave/cgo/worker"
	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/numa"
	"github.com/rackweave/rackweave/verbs"
)

// These are the kinds of messages of rows, and the length of their header.
const (
	rowsGradient = iota
	rowsWanted
	rowsFetch
	rowsPull
	rowsBlock
	rowsHeader = 16
)

// table is a sparse tensor as the aggregator sees it in plain Go.
type table struct {
	rows, width  int
	wire, memory chunk.DType
	lanes        []uint32 // of its chunks
	first        []uint32 // by lane: the index of its first chunk there
	global       [][]int  // by lane: the numbers of the lane's rows in the tensor
	values       []byte   // parameters on the wire
	streams      []stream // by lane
	epoch        uint8    // of the next gradient
}

// stream is one operation's in one lane.
type stream struct {
	sent    uint32         // lane rows that gradients covered
	got     map[int][]byte // rows of the tensor that came
	results []int          // lane rows that are results, ascending
	reached uint32         // by blocks
	ended   bool           // the last block was sent
}

func (b *table) rowBytes() int { return b.width * b.wire.Size() }

// rowsLane is the aggregator's end of one lane.
type rowsLane struct {
	orderPeer
	slots   *numa.Arena // behind the slots lies an answer
	slotsMR verbs.MR
	staging verbs.MR     // the lane's NIC at the worker
	pds     [2]*verbs.PD // the aggregator's and the worker's
	cqs     [2]*verbs.CQ
	free    []int // slots, oldest first
	held    []message
	busy    int // most messages that were in flight
	came    uint64
}

// rowsPeer is the aggregator's end of a worker with a NIC for each lane.
type rowsPeer struct {
	t      *testing.T
	r      *rand.Rand
	sim    *simfabric.World
	w      worker.Worker
	window int
	lanes  []*rowsLane
	tables []*table
	whole  []message // messages of chunks that came
	polled []verbs.WC
}

// newRowsPeer makes a worker with these sparse tensors, whose chunks are dealt to the lanes at random.
func newRowsPeer(t *testing.T, seed uint64, lanes, window int, tables ...*table) *rowsPeer {
	t.Helper()
	sim, err := simfabric.New(1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(sim.Close)
	p := &rowsPeer{
		t: t, r: rand.New(rand.NewPCG(seed, 1)), sim: sim, window: window, tables: tables,
		lanes: make([]*rowsLane, lanes), polled: make([]verbs.WC, 64),
	}
	bytes := int64(lanes * window * chunk.MinChunkBytes)
	staging, err := numa.NewArena(numa.ArenaConfig{Name: "staging", Bytes: bytes, Node: numa.AnyNode})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = staging.Close() })
	nics, mrs := make([]worker.NIC, lanes), make([]verbs.MR, lanes)
	for i := range p.lanes {
		l := &rowsLane{orderPeer: orderPeer{t: t, sim: sim}}
		p.lanes[i] = l
		l.pds[0], l.cqs[0], _, l.slots, l.slotsMR = l.end(fmt.Sprint("aggregator", i), int64((window+1)*chunk.MinChunkBytes))
		l.pds[1], l.cqs[1], _, _, _ = l.end(fmt.Sprint("worker", i), 4096)
		pd := l.pds[1]
		const access = verbs.AccessLocalWrite | verbs.AccessRemoteWrite
		mrs[i], err = pd.RegisterMR(staging.Addr(), uint64(bytes), access, staging.FD(), 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := pd.DeregisterMR(mrs[i]); err != nil {
				t.Error(err)
			}
		})
		l.staging = mrs[i]
		nics[i] = worker.NIC{PD: pd.Handle(), CQ: l.cqs[1].Handle()}
		for s := range window {
			l.free = append(l.free, s)
		}
	}
	cfg := worker.Config{
		ChunkBytes: chunk.MinChunkBytes, Window: uint32(window), SendDepth: 64, Staging: uint32(window), StagingAddr: staging.Addr(),
		Resumable: true,
	}
	var rc int
	p.w, rc = worker.Open(cfg, nics, lanes)
	p.must(rc, "open")
	t.Cleanup(func() { worker.Close(p.w) })
	p.must(worker.Region(p.w, mrs), "region")
	for i := range p.lanes {
		p.attach(i, 0)
	}
	p.add()
	return p
}

// attach lets a lane begin or go on over new queue pairs.
func (p *rowsPeer) attach(lane int, received uint64) {
	p.t.Helper()
	l := p.lanes[lane]
	var qps [2]*verbs.QP
	for i, pd := range l.pds {
		qp, err := pd.CreateQP(verbs.QPConfig{CQ: l.cqs[i], MaxSendWR: 64, MaxRecvWR: 64})
		if err != nil {
			p.t.Fatal(err)
		}
		p.t.Cleanup(func() {
			if err := qp.Close(); err != nil {
				p.t.Error(err)
			}
		})
		if err := qp.PostRecv(uint64(lane*i), 64); err != nil {
			p.t.Fatal(err)
		}
		qps[i] = qp
	}
	l.qp = qps[0]
	l.connect(qps[1])
	with := worker.Lane{QP: qps[1].Handle(), SlotAddr: l.slotsMR.Addr, SlotRKey: l.slotsMR.RKey, NIC: uint32(lane), RecvDepth: 64}
	p.must(worker.Claim(p.w), "claim")
	rc := worker.Resume(p.w, lane, &with, received)
	worker.Release(p.w)
	p.must(rc, "resume")
}

func (p *rowsPeer) must(rc int, what string) {
	p.t.Helper()
	if rc < 0 {
		_, text := worker.Failure(p.w)
		p.t.Fatalf("%s: %d: %s", what, rc, text)
	}
}

// add adds the tables, and finds by itself which rows are in which lane.
func (p *rowsPeer) add() {
	p.t.Helper()
	next := make([]uint32, len(p.lanes))
	var descs []worker.Tensor
	var all []uint32
	for _, b := range p.tables {
		b.first, b.global = make([]uint32, len(p.lanes)), make([][]int, len(p.lanes))
		copy(b.first, next)
		for row, each := 0, chunk.MinChunkBytes/b.rowBytes(); row < b.rows; row += each {
			lane := p.r.IntN(len(p.lanes))
			b.lanes = append(b.lanes, uint32(lane))
			for i := row; i < min(row+each, b.rows); i++ {
				b.global[lane] = append(b.global[lane], i)
			}
			next[lane]++
		}
		b.values = make([]byte, b.rows*b.rowBytes())
		b.streams = make([]stream, len(p.lanes))
		all = append(all, b.lanes...)
		descs = append(descs, worker.Tensor{
			Elems: uint64(b.rows * b.width), Width: uint32(b.width), WireType: uint8(b.wire), MemoryType: uint8(b.memory),
		})
	}
	p.must(worker.Add(p.w, descs, all), "add")
}

// gather takes what came, and returns the number of messages.
func (p *rowsPeer) gather() (n int) {
	p.t.Helper()
	p.lanes[0].settleOf(p.w)
	for lane, l := range p.lanes {
		for {
			got, err := l.cqs[0].Poll(p.polled)
			if err != nil {
				p.t.Fatal(err)
			}
			if got == 0 {
				break
			}
			for _, c := range p.polled[:got] {
				if c.Status == verbs.WCSuccess && c.WRID != 1 {
					p.receive(lane, c)
					n++
				}
			}
		}
		l.busy = max(l.busy, len(l.held))
	}
	return n
}

func (l *rowsLane) settleOf(w worker.Worker) {
	l.w = w
	l.settle()
}

func (p *rowsPeer) receive(lane int, c verbs.WC) {
	p.t.Helper()
	l := p.lanes[lane]
	if err := l.qp.PostRecv(0, 1); err != nil {
		p.t.Fatal(err)
	}
	m := message{slot: l.free[0]}
	l.free, l.came = l.free[1:], l.came+1
	m.op, m.epoch, m.index = chunk.Unpack(c.Imm)
	m.payload = l.slots.Bytes()[m.slot*chunk.MinChunkBytes:][:c.ByteLen]
	switch m.op {
	case chunk.OpTensor:
		p.answer(lane, m, nil)
	case chunk.OpPush:
		p.check(lane, &m)
		l.held = append(l.held, m)
	default:
		m.payload, m.lane = nil, lane
		p.whole = append(p.whole, m)
	}
}

// tableOf returns the table of a lane's index.
func (p *rowsPeer) tableOf(lane int, index uint32) *table {
	p.t.Helper()
	for _, b := range p.tables {
		if len(b.global[lane]) > 0 && b.first[lane] == index {
			return b
		}
	}
	p.t.Fatalf("lane %d: no table begins at chunk %d", lane, index)
	return nil
}

// check decodes a message in plain Go.
func (p *rowsPeer) check(lane int, m *message) {
	p.t.Helper()
	b, h := p.tableOf(lane, m.index), m.payload
	s := &b.streams[lane]
	word := func(i int) uint32 { return binary.LittleEndian.Uint32(h[4*i:]) }
	from, to, count, kind, form := word(0), word(1), word(2), h[12], h[13]
	if m.epoch != b.epoch || h[14] != 0 || h[15] != 0 {
		p.t.Fatalf("lane %d: epoch %d, expected %d; header %x", lane, m.epoch, b.epoch, h[:rowsHeader])
	}
	if kind == rowsFetch {
		if len(h) != rowsHeader || from|to|count != 0 || form != 0 || s.sent == 0 {
			p.t.Fatalf("lane %d: a fetch with header %x", lane, h)
		}
		return
	}
	list := h[rowsHeader:]
	if kind == rowsPull {
		if from|to != 0 || form != 0 || count == 0 || len(list) != int(4*count) || int(count)*b.rowBytes() > chunk.MinChunkBytes {
			p.t.Fatalf("lane %d: a pull of %d bytes with header %x", lane, len(h), h[:rowsHeader])
		}
		return
	}
	rows := uint32(len(b.global[lane]))
	if kind > rowsWanted || from != s.sent || to <= from || to > rows {
		p.t.Fatalf("lane %d: a gradient with header %x behind row %d of %d", lane, h[:rowsHeader], s.sent, rows)
	}
	var ids []uint32
	words := int(count)
	if form == 1 {
		words = int(to-from+31) / 32
		for i := range uint32(32 * words) {
			if list[i/8]>>(i%8)&1 != 0 {
				ids = append(ids, from+i)
			}
		}
	} else {
		for i := range int(count) {
			ids = append(ids, word(4+i))
		}
	}
	values := list[4*words:]
	if len(ids) != int(count) || len(values) != len(ids)*b.rowBytes() {
		p.t.Fatalf("lane %d: %d ids and %d bytes of rows, header %x", lane, len(ids), len(values), h[:rowsHeader])
	}
	if shorter := int(to-from+31) / 32; form == 0 && shorter < words {
		p.t.Fatalf("lane %d: %d ids for rows %d to %d", lane, words, from, to)
	}
	if room := chunk.MinChunkBytes - len(h); form == 0 && to < rows && room >= 4+b.rowBytes() {
		p.t.Fatalf("lane %d: a message of %d bytes that others follow", lane, len(h))
	}
	next := from
	for i, id := range ids {
		if id < next || id >= to {
			p.t.Fatalf("lane %d: row %d behind row %d in [%d, %d)", lane, id, next, from, to)
		}
		next = id + 1
		s.got[b.global[lane][id]] = slices.Clone(values[i*b.rowBytes():][:b.rowBytes()])
	}
	s.sent = to
}

// answer answers a message over its lane.
func (p *rowsPeer) answer(lane int, m message, payload []byte) {
	p.t.Helper()
	l := p.lanes[lane]
	at := p.window * chunk.MinChunkBytes
	copy(l.slots.Bytes()[at:], payload)
	l.free = append(l.free, m.slot)
	_, err := l.qp.PostSend([]verbs.SendWR{{
		Opcode: verbs.OpWriteWithImm, Flags: verbs.SendSignaled, WRID: 1, Imm: chunk.Pack(m.op, m.epoch, m.index),
		LAddr: l.slotsMR.Addr + uint64(at), LKey: l.slotsMR.LKey, Length: uint32(len(payload)),
		RAddr: l.staging.Addr + uint64((lane*p.window+m.slot)*chunk.MinChunkBytes), RKey: l.staging.RKey,
	}})
	if err != nil {
		p.t.Fatal(err)
	}
	for range 3 { // the answer's memory is written anew by the next one
		l.settleOf(p.w)
	}
}

// kindOf returns the kind of a message that is held.
func kindOf(m message) byte { return m.payload[12] }

// respond answers the oldest gradient, fetch or pull of a lane, drawn at random, and reports whether it could.
func (p *rowsPeer) respond(lane int) bool {
	p.t.Helper()
	l := p.lanes[lane]
	for _, i := range p.r.Perm(len(l.held)) {
		m := l.held[i]
		older := slices.ContainsFunc(l.held[:i], func(o message) bool {
			return o.index == m.index && (kindOf(o) == rowsFetch) == (kindOf(m) == rowsFetch)
		})
		if older {
			continue
		}
		b := p.tableOf(lane, m.index)
		var payload []byte
		switch kindOf(m) {
		case rowsFetch:
			if payload = p.block(lane, b); payload == nil {
				continue
			}
		case rowsPull:
			for at := rowsHeader; at < len(m.payload); at += 4 {
				row := b.global[lane][binary.LittleEndian.Uint32(m.payload[at:])]
				payload = append(payload, b.values[row*b.rowBytes():][:b.rowBytes()]...)
			}
		}
		l.held = slices.Delete(l.held, i, i+1)
		p.answer(lane, m, payload)
		return true
	}
	return false
}

// block returns the next block of results, of a length drawn at random, or nil if none is ready.
func (p *rowsPeer) block(lane int, b *table) []byte {
	s := &b.streams[lane]
	rows := uint32(len(b.global[lane]))
	most := (chunk.MinChunkBytes - rowsHeader) / (4 + b.rowBytes())
	n := min(p.r.IntN(most+1), len(s.results))
	to := rows
	if n < len(s.results) {
		to = uint32(s.results[n])
		if to > s.sent {
			return nil // the gradients have not come so far
		}
	} else if s.sent < rows {
		return nil
	}
	ids := s.results[:n]
	s.results, s.reached, s.ended = s.results[n:], to, to == rows
	out := binary.LittleEndian.AppendUint32(make([]byte, 4), to)
	out = append(binary.LittleEndian.AppendUint32(out, uint32(n)), rowsBlock, 0, 0, 0)
	if n == 0 {
		return out
	}
	for i := range most {
		id := 0xabababab // behind the ids lies what lies there
		if i < n {
			id = ids[i]
		}
		out = binary.LittleEndian.AppendUint32(out, uint32(id))
	}
	for _, id := range ids {
		out = append(out, b.values[b.global[lane][id]*b.rowBytes():][:b.rowBytes()]...)
	}
	return out
}
