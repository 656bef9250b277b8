package lanes_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rackweave/rackweave/cgo/fabric/simfabric"
	cworker "github.com/rackweave/rackweave/cgo/worker"
	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/client/failover"
	"github.com/rackweave/rackweave/client/lanes"
	"github.com/rackweave/rackweave/numa"
	"github.com/rackweave/rackweave/verbs"
)

const (
	chunkBytes  = 4096
	window      = 4
	depth       = window + 32
	linkTimeout = 5 * time.Second
)

// peer is an aggregator that connects and sends nothing.
type peer struct {
	t       *testing.T
	nics    []lanes.NIC
	memory  *numa.Arena
	slots   []verbs.MR  // by NIC
	qps     []*verbs.QP // by lane
	resumes []chunk.Resume
	refuse  func(chunk.Resume) error
	answers int // lanes that it leaves out of its answer to Attach
}

func (p *peer) connect(nic int, endpoint []byte) (*verbs.QP, chunk.AggregatorLane, error) {
	n := &p.nics[nic]
	qp, err := n.PD.CreateQP(verbs.QPConfig{CQ: n.CQ, MaxSendWR: depth, MaxRecvWR: depth})
	if err != nil {
		return nil, chunk.AggregatorLane{}, err
	}
	if err := qp.Connect(endpoint, verbs.ConnectConfig{Timeout: time.Second}); err != nil {
		return nil, chunk.AggregatorLane{}, errors.Join(err, qp.Close())
	}
	own, err := qp.Endpoint()
	return qp, chunk.AggregatorLane{Endpoint: own, SlotAddr: p.slots[nic].Addr, SlotRKey: p.slots[nic].RKey}, err
}

func (p *peer) Attach(_ context.Context, ends []chunk.WorkerLane) (out []chunk.AggregatorLane, err error) {
	p.qps = make([]*verbs.QP, len(ends))
	for i, e := range ends[:len(ends)-p.answers] {
		var l chunk.AggregatorLane
		if p.qps[i], l, err = p.connect(i%len(p.nics), e.Endpoint); err != nil {
			return nil, err
		}
		out = append(out, l)
	}
	return out, nil
}

func (p *peer) Resume(_ context.Context, r chunk.Resume) (out chunk.Resumed, err error) {
	p.resumes = append(p.resumes, r)
	if p.refuse != nil {
		if err := p.refuse(r); err != nil {
			return out, err
		}
	}
	if err := p.qps[r.Lane].Close(); err != nil {
		return out, err
	}
	p.qps[r.Lane], out.AggregatorLane, err = p.connect(r.NIC, r.Endpoint)
	return out, err
}

// rig is a session of two lanes and two NICs, connected to a peer's two, on virtual time.
type rig struct {
	*lanes.Session
	t    *testing.T
	peer *peer
	now  int64
}

func must[T any](t *testing.T) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func newRig(t *testing.T, answers int) (*rig, error) {
	t.Helper()
	sim := must[*simfabric.World](t)(simfabric.New(1))
	p := &peer{t: t, answers: answers, memory: must[*numa.Arena](t)(numa.NewArena(numa.ArenaConfig{
		Name: "slots", Bytes: window * chunkBytes, Node: numa.AnyNode,
	}))}
	open := func(name string) *verbs.Device {
		return must[*verbs.Device](t)(verbs.Open(simfabric.Provider, name, sim.Options()+",link=1"))
	}
	var devices []*verbs.Device
	for _, name := range []string{"a0", "a1"} {
		d := open(name)
		n := lanes.NIC{Device: d, PD: must[*verbs.PD](t)(d.AllocPD()), CQ: must[*verbs.CQ](t)(d.CreateCQ(4 * depth))}
		p.nics = append(p.nics, n)
		p.slots = append(p.slots, must[verbs.MR](t)(n.PD.RegisterMR(
			p.memory.Addr(), uint64(p.memory.Len()), verbs.AccessLocalWrite|verbs.AccessRemoteWrite, p.memory.FD(), 0)))
		devices = append(devices, open("w"+name[1:]))
	}
	r := &rig{t: t, peer: p}
	s, err := lanes.Open(lanes.Config{
		Name: "test", Control: p, Devices: devices, Lanes: []int{0, 1},
		Worker:    cworker.Config{ChunkBytes: chunkBytes, Window: window, Staging: window},
		SendDepth: depth, RecvDepth: depth, AckTimeout: time.Second, LinkTimeout: linkTimeout, ReconnectTimeout: 10 * time.Millisecond,
		Now: func() int64 { return r.now }, Log: t.Logf,
	})
	if err != nil {
		t.Fatal(err)
	}
	r.Session = s
	t.Cleanup(func() {
		errs := []error{s.Close()}
		for _, qp := range p.qps {
			if qp != nil {
				errs = append(errs, qp.Close())
			}
		}
		for i, n := range p.nics {
			errs = append(errs, n.CQ.Close(), n.PD.DeregisterMR(p.slots[i]), n.PD.Close(), n.Device.Close(), devices[i].Close())
		}
		if err := errors.Join(append(errs, p.memory.Close())...); err != nil {
			t.Error(err)
		}
		sim.Close()
	})
	return r, s.Attach(t.Context(), time.Second)
}

func connected(t *testing.T) *rig {
	t.Helper()
	r, err := newRig(t, 0)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// settle takes all steps that a lane has to take now, and returns where it is or was last.
func (r *rig) settle(lane int) (failover.Path, error) {
	for {
		more, err := r.Advance(r.t.Context(), lane)
		if err != nil || !more {
			return r.Path(lane), err
		}
	}
}

func (r *rig) want(lane, aggregator, worker int) {
	r.t.Helper()
	got, err := r.settle(lane)
	if want := (failover.Path{Aggregator: aggregator, Worker: worker}); err != nil || got != want {
		r.t.Fatalf("lane %d is on %v, %v; want %v", lane, got, err, want)
	}
}

func TestALaneLeavesANICWithoutALinkAndReturns(t *testing.T) {
	r := connected(t)
	memory := must[*lanes.Memory](t)(r.Allocate("tensors", 4096))
	r.want(0, 0, 0)
	r.WorkerLink(0, false)
	r.want(0, 1, 1)
	r.want(1, 1, 1)
	asked := r.peer.resumes[0]
	if asked.Attempt != 1 || asked.AckTimeout != time.Second && asked.AckTimeout != linkTimeout {
		t.Errorf("asked for %+v", asked)
	}
	if !slices.ContainsFunc(asked.Regions,
		func(m chunk.Region) bool { return m.Addr == memory.MRs[1].Addr && m.RKey == memory.MRs[1].RKey }) {
		t.Errorf("the aggregator was given %+v, without memory %+v as NIC 1 knows it", asked.Regions, memory.MRs[1])
	}
	r.WorkerLink(0, true)
	r.want(0, 1, 1)
	r.now += int64(verbs.LinkSettles)
	r.want(0, 0, 0)
	if n := r.Failovers(); n != 2 {
		t.Errorf("%d failovers", n)
	}
}

func TestALaneIsTriedOverAnotherPathWhenTheAggregatorRefuses(t *testing.T) {
	r := connected(t)
	r.peer.refuse = func(a chunk.Resume) error {
		if a.NIC == 0 {
			return errors.New("out of order")
		}
		return nil
	}
	r.WorkerLink(1, false)
	r.want(1, 1, 0) // after (0,0), which is better
	if len(r.peer.resumes) != 2 || r.QPs[1] == nil {
		t.Errorf("%d attempts", len(r.peer.resumes))
	}
}

func TestOnlyBreaksOfTheConnectionThereIsCount(t *testing.T) {
	r := connected(t)
	r.Broke(0, 7)
	r.Broke(99, 0)
	r.want(0, 0, 0)
	r.Broke(0, 0)
	r.want(0, 1, 1)
	if r.Attempt(0) != 1 {
		t.Fatalf("%d attempts", r.Attempt(0))
	}
	r.Broke(0, 0) // told late
	r.want(0, 1, 1)
	r.Broke(0, 1)
	r.want(0, 0, 1) // both that were used failed lately
}

func TestALaneWithoutAPathIsGivenUpAndSaysWhatItTriedLast(t *testing.T) {
	r := connected(t)
	r.peer.refuse = func(chunk.Resume) error { return errors.New("out of order") }
	r.Broke(0, 0)
	var err error
	for ; err == nil && r.now < int64(2*linkTimeout); r.now += int64(10 * time.Millisecond) {
		_, err = r.settle(0)
	}
	if text := fmt.Sprint(err); !errors.Is(err, lanes.ErrNoPath) || !strings.Contains(text, "for 5s; the last attempt, to (") ||
		!strings.Contains(text, "out of order") {
		t.Errorf("after %v: %v", time.Duration(r.now), err)
	}
	if took := time.Duration(r.now); took < linkTimeout || took > linkTimeout+100*time.Millisecond {
		t.Errorf("given up after %v", took)
	}
}

func TestAQueuePairThatFailsHereIsSeen(t *testing.T) {
	r := connected(t)
	if err := r.QPs[0].Fail(); err != nil {
		t.Fatal(err)
	}
	for range 10 { // the C worker takes what the queue pair gives up
		if rc := cworker.Progress(r.C); rc < 0 {
			t.Fatal(rc)
		}
	}
	r.Look()
	r.want(0, 1, 1)
	r.want(1, 1, 1)
}

func TestAnAnswerForOtherLanesIsRefused(t *testing.T) {
	if _, err := newRig(t, 1); err == nil || !strings.Contains(err.Error(), "for 1 lanes of 2") {
		t.Error(err)
	}
}

func TestMemoryOfTheSessionIsKnown(t *testing.T) {
	r := connected(t)
	m := must[*lanes.Memory](t)(r.Allocate("tensors", 8192))
	b := m.Bytes()
	if !r.Holds(b) || !r.Holds(b[100:200]) || !r.Holds(b[len(b):]) {
		t.Error("memory of its own is unknown")
	}
	if r.Holds(make([]byte, 10)) {
		t.Error("other memory is known")
	}
}
