package worker_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/rackweave/rackweave/cgo/fabric/simfabric"
	"github.com/rackweave/rackweave/cgo/worker"
	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/numa"
	"github.com/rackweave/rackweave/verbs"
)

const (
	orderWindow = 2
	orderChunks = 8
)

// orderPeer is the aggregator's end of a worker with one lane, played by the test.
type orderPeer struct {
	t   *testing.T
	sim *simfabric.World
	w   worker.Worker
	qp  *verbs.QP
	cq  *verbs.CQ

	fails bool // the worker may fail
}

// end is a host with a queue pair and registered memory.
func (p *orderPeer) end(name string, bytes int64) (*verbs.PD, *verbs.CQ, *verbs.QP, *numa.Arena, verbs.MR) {
	must := func(err error) {
		p.t.Helper()
		if err != nil {
			p.t.Fatal(err)
		}
	}
	d, err := verbs.Open(simfabric.Provider, name, p.sim.Options())
	must(err)
	pd, err := d.AllocPD()
	must(err)
	cq, err := d.CreateCQ(256)
	must(err)
	qp, err := pd.CreateQP(verbs.QPConfig{CQ: cq, MaxSendWR: 64, MaxRecvWR: 64})
	must(err)
	memory, err := numa.NewArena(numa.ArenaConfig{Name: name, Bytes: bytes, Node: numa.AnyNode})
	must(err)
	mr, err := pd.RegisterMR(memory.Addr(), uint64(memory.Len()), verbs.AccessLocalWrite|verbs.AccessRemoteWrite, memory.FD(), 0)
	must(err)
	must(qp.PostRecv(0, 64))
	p.t.Cleanup(func() {
		for _, close := range []func() error{
			qp.Close, cq.Close, func() error { return pd.DeregisterMR(mr) }, pd.Close, d.Close, memory.Close,
		} {
			if err := close(); err != nil {
				p.t.Error(err)
			}
		}
	})
	return pd, cq, qp, memory, mr
}

// connect connects the worker's queue pair to the aggregator's.
func (p *orderPeer) connect(worker *verbs.QP) {
	p.t.Helper()
	for _, c := range []struct {
		qp, peer *verbs.QP
		active   bool
	}{{p.qp, worker, false}, {worker, p.qp, true}} {
		end, err := c.peer.Endpoint()
		if err != nil {
			p.t.Fatal(err)
		}
		if err := c.qp.Connect(end, verbs.ConnectConfig{Active: c.active, Timeout: time.Second}); err != nil {
			p.t.Fatal(err)
		}
	}
}

// newOrderPeer makes a worker that has submitted one tensor of orderChunks chunks, and not another of one.
func newOrderPeer(t *testing.T) *orderPeer {
	t.Helper()
	sim, err := simfabric.New(1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(sim.Close)
	p := &orderPeer{t: t, sim: sim}
	const size, elems = chunk.MinChunkBytes, chunk.MinChunkBytes / 4
	_, cq, aggregator, _, slots := p.end("aggregator", orderWindow*size)
	pd, workerCQ, qp, memory, mr := p.end("worker", (orderWindow+2*orderChunks)*size)
	p.cq, p.qp = cq, aggregator
	p.connect(qp)
	var rc int
	p.w, rc = worker.Open(
		worker.Config{ChunkBytes: size, Window: orderWindow, SendDepth: 64, Staging: orderWindow, StagingAddr: memory.Addr()},
		[]worker.NIC{{PD: pd.Handle(), CQ: workerCQ.Handle()}}, 1)
	if rc < 0 {
		t.Fatalf("open: %d", rc)
	}
	t.Cleanup(func() { worker.Close(p.w) })
	mr.Length = orderWindow * size // of the staging buffers, and not of the tensor
	if rc := worker.Region(p.w, []verbs.MR{mr}); rc < 0 {
		t.Fatalf("region: %d", rc)
	}
	lane := worker.Lane{QP: qp.Handle(), SlotAddr: slots.Addr, SlotRKey: slots.RKey, RecvDepth: 64}
	if rc := worker.Resume(p.w, 0, &lane, 0); rc < 0 {
		t.Fatalf("resume: %d", rc)
	}
	desc := []worker.Tensor{
		{Elems: orderChunks * elems, WireType: uint8(chunk.F32), MemoryType: uint8(chunk.F32)},
		{Elems: elems, WireType: uint8(chunk.F32), MemoryType: uint8(chunk.F32)},
	}
	if rc := worker.Add(p.w, desc, make([]uint32, orderChunks+1)); rc < 0 {
		t.Fatalf("add: %d", rc)
	}
	src := uintptr(unsafe.Add(memory.Addr(), orderWindow*size))
	op := worker.Op{Src: src, Dst: src + orderChunks*size, Kind: uint8(chunk.OpPushPull)}
	if rc := worker.Submit(p.w, []worker.Op{op}, make([]uint64, 1)); rc != 1 {
		t.Fatalf("submit: %d", rc)
	}
	return p
}

// notice tells the worker that a chunk is NACKed or requested.
func (p *orderPeer) notice(what uint8, index uint32) {
	p.t.Helper()
	wr := verbs.SendWR{Opcode: verbs.OpWriteWithImm, Imm: chunk.Pack(chunk.OpNotice, what, index), Flags: verbs.SendSignaled, WRID: 1}
	if _, err := p.qp.PostSend([]verbs.SendWR{wr}); err != nil {
		p.t.Fatal(err)
	}
	p.settle()
}

// settle delivers what is under way.
func (p *orderPeer) settle() {
	p.t.Helper()
	for range 200 {
		p.sim.Step()
		if rc := worker.Progress(p.w); rc < 0 && !p.fails {
			_, text := worker.Failure(p.w)
			p.t.Fatalf("progress: %d: %s", rc, text)
		}
	}
}

// arrived takes the chunks that came.
func (p *orderPeer) arrived() (chunks []uint32) {
	p.t.Helper()
	wc := make([]verbs.WC, 16)
	n, err := p.cq.Poll(wc)
	if err != nil {
		p.t.Fatal(err)
	}
	for _, c := range wc[:n] {
		if c.Status != verbs.WCSuccess {
			p.t.Fatal(c.Status)
		}
		if c.WRID == 1 {
			continue
		}
		if op, _, index := chunk.Unpack(c.Imm); op == chunk.OpPushPull {
			chunks = append(chunks, index)
		}
		if err := p.qp.PostRecv(0, 1); err != nil {
			p.t.Fatal(err)
		}
	}
	return chunks
}

// The aggregator NACKs every chunk as it comes, so that the order in which they come is the worker's.
func TestChunksGoOutInTheOrderThatTheAggregatorAsksFor(t *testing.T) {
	for _, tc := range []struct {
		name     string
		requests []uint32
		order    []uint32
	}{
		{"what was NACKed goes behind all else", nil, []uint32{0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2}},
		{"also while the last slot is kept for what was not submitted", []uint32{orderChunks}, []uint32{0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2}},
		{"what was requested goes before all else", []uint32{5}, []uint32{0, 1, 5, 2, 3, 4}},
		{"what was requested last goes first", []uint32{5, 6, 7}, []uint32{0, 1, 7}},
		{"also when it was requested before", []uint32{5, 6, 7, 5}, []uint32{0, 1, 5}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := newOrderPeer(t)
			p.settle()
			for _, c := range tc.requests {
				p.notice(chunk.NoticeRequest, c)
			}
			var order, held []uint32
			for range 4 * orderChunks {
				came := p.arrived()
				order, held = append(order, came...), append(held, came...)
				if len(order) >= len(tc.order) {
					break
				}
				if len(held) > 0 {
					p.notice(chunk.NoticeNACK, held[0])
					held = held[1:]
				}
			}
			if len(order) < len(tc.order) || !slices.Equal(order[:len(tc.order)], tc.order) {
				t.Fatalf("the chunks came as %v, expected %v first", order, tc.order)
			}
		})
	}
}

func TestANoticeThatIsWrongFailsTheWorkerByName(t *testing.T) {
	for _, c := range []struct {
		what  uint8
		index uint32
		want  string
	}{
		{chunk.NoticeRequest + 1, 0, "notice 2 about chunk 0 of"},
		{chunk.NoticeRequest, chunk.MaxLaneChunks, fmt.Sprintf("notice 1 about chunk %d of", chunk.MaxLaneChunks)},
	} {
		p := newOrderPeer(t)
		p.fails = true
		p.notice(c.what, c.index)
		if rc, text := worker.Failure(p.w); rc >= 0 || !strings.Contains(text, c.want) {
			t.Errorf("the worker failed with %d, %q, want %q", rc, text, c.want)
		}
	}
}
