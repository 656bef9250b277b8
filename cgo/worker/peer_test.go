package worker_test

import (
	"slices"
	"testing"
	"unsafe"

	"github.com/rackweave/rackweave/cgo/fabric/simfabric"
	"github.com/rackweave/rackweave/cgo/worker"
	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/numa"
	"github.com/rackweave/rackweave/verbs"
)

const peerWindow = 4

// peer is the aggregator's end of a worker with one lane, played by the test.
type peer struct {
	orderPeer
	slots, memory     *numa.Arena // behind the slots lies an answer, and behind the worker's staging buffers its tensors
	slotsMR, memoryMR verbs.MR
	free              []int // slots, oldest first
	spent             int   // bytes of memory
}

// message is one that came, and its slot.
type message struct {
	op      chunk.Op
	epoch   uint8
	index   uint32
	slot    int
	lane    int
	payload []byte
}

// newPeer makes a worker with these tensors, and so much memory for them.
func newPeer(t *testing.T, cfg worker.Config, bytes int, tensors ...worker.Tensor) *peer {
	t.Helper()
	sim, err := simfabric.New(1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(sim.Close)
	p := &peer{orderPeer: orderPeer{t: t, sim: sim}, free: []int{0, 1, 2, 3}}
	var workerPD *verbs.PD
	var workerCQ *verbs.CQ
	var workerQP *verbs.QP
	_, p.cq, p.qp, p.slots, p.slotsMR = p.end("aggregator", 2*peerWindow*chunk.MinChunkBytes)
	workerPD, workerCQ, workerQP, p.memory, p.memoryMR = p.end("worker", int64(peerWindow*chunk.MinChunkBytes+bytes))
	p.connect(workerQP)
	var rc int
	cfg.ChunkBytes, cfg.Window, cfg.SendDepth, cfg.Staging = chunk.MinChunkBytes, peerWindow, 64, peerWindow
	cfg.StagingAddr, cfg.ISA = p.memory.Addr(), 0
	p.w, rc = worker.Open(cfg, []worker.NIC{{PD: workerPD.Handle(), CQ: workerCQ.Handle()}}, 1)
	p.must(rc, "open")
	t.Cleanup(func() { worker.Close(p.w) })
	staging := p.memoryMR
	staging.Length = peerWindow * chunk.MinChunkBytes // and not of the tensors
	p.must(worker.Region(p.w, []verbs.MR{staging}), "region")
	lane := worker.Lane{QP: workerQP.Handle(), SlotAddr: p.slotsMR.Addr, SlotRKey: p.slotsMR.RKey, RecvDepth: 64}
	p.must(worker.Resume(p.w, 0, &lane, 0), "resume")
	chunks := uint64(0)
	for _, d := range tensors {
		chunks += (d.Elems*4-1)/chunk.MinChunkBytes + 1
	}
	p.must(worker.Add(p.w, tensors, make([]uint32, chunks)), "add")
	p.spent = peerWindow * chunk.MinChunkBytes
	return p
}

func (p *peer) must(rc int, what string) {
	p.t.Helper()
	if rc < 0 {
		_, text := worker.Failure(p.w)
		p.t.Fatalf("%s: %d: %s", what, rc, text)
	}
}

// alloc returns so many f32 of the worker's memory.
func (p *peer) alloc(elems int) []float32 {
	p.t.Helper()
	at := p.memory.Bytes()[p.spent:]
	if p.spent += 4 * elems; 4*elems > len(at) {
		p.t.Fatalf("%d elements: %d bytes are left", elems, len(at))
	}
	return unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(at))), elems)
}

// submit starts a pushpull.
func (p *peer) submit(tensor uint32, src, dst []float32) {
	p.t.Helper()
	p.start(worker.Op{Tensor: tensor, Kind: uint8(chunk.OpPushPull), Src: addr(src), Dst: addr(dst)})
}

func (p *peer) start(op worker.Op) {
	p.t.Helper()
	if rc := worker.Submit(p.w, []worker.Op{op}, make([]uint64, 1)); rc != 1 {
		p.t.Fatalf("submit: %d", rc)
	}
	p.settle()
}

func addr(x []float32) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(x))) }

// came returns the messages of chunks that came, and answers control records.
func (p *peer) came() (all []message) {
	p.t.Helper()
	for wc := make([]verbs.WC, 64); ; {
		n, err := p.cq.Poll(wc)
		if err != nil {
			p.t.Fatal(err)
		}
		if n == 0 {
			return all
		}
		for _, c := range wc[:n] {
			if c.Status != verbs.WCSuccess {
				p.t.Fatal(c.Status)
			}
			if c.WRID == 1 {
				continue
			}
			if err := p.qp.PostRecv(0, 1); err != nil {
				p.t.Fatal(err)
			}
			m := message{slot: p.free[0]}
			p.free = p.free[1:]
			m.op, m.epoch, m.index = chunk.Unpack(c.Imm)
			m.payload = slices.Clone(p.slots.Bytes()[m.slot*chunk.MinChunkBytes:][:c.ByteLen])
			if m.op == chunk.OpTensor {
				p.answer(m, nil)
			} else {
				all = append(all, m)
			}
		}
	}
}

// answer answers a message with these bytes, in the staging buffer of its slot.
func (p *peer) answer(m message, payload []byte) {
	p.t.Helper()
	at := peerWindow * chunk.MinChunkBytes
	copy(p.slots.Bytes()[at:], payload)
	p.send(verbs.SendWR{
		Imm:   chunk.Pack(m.op, m.epoch, m.index),
		LAddr: p.slotsMR.Addr + uint64(at), LKey: p.slotsMR.LKey, Length: uint32(len(payload)),
		RAddr: p.memoryMR.Addr + uint64(m.slot)*chunk.MinChunkBytes, RKey: p.memoryMR.RKey,
	}, m)
}

// nack drops a message.
func (p *peer) nack(m message) {
	p.t.Helper()
	p.send(verbs.SendWR{Imm: chunk.Pack(chunk.OpNotice, chunk.NoticeNACK, m.index)}, m)
}

func (p *peer) send(wr verbs.SendWR, m message) {
	p.t.Helper()
	wr.Opcode, wr.Flags, wr.WRID = verbs.OpWriteWithImm, verbs.SendSignaled, 1
	p.free = append(p.free, m.slot)
	if _, err := p.qp.PostSend([]verbs.SendWR{wr}); err != nil {
		p.t.Fatal(err)
	}
	p.settle()
}
