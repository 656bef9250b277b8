package simfabric_test

import (
	"errors"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rackweave/rackweave/cgo/fabric/simfabric"
	"github.com/rackweave/rackweave/verbs"
	"github.com/rackweave/rackweave/verbs/verbstest"
)

// host is a simulated host: one device, one completion queue, one registered buffer.
type host struct {
	t   testing.TB
	dev *verbs.Device
	pd  *verbs.PD
	cq  *verbs.CQ
	buf verbstest.Buffer
	mr  verbs.MR
	wr  [1]verbs.SendWR
	wc  [64]verbs.WC
	got []verbs.WC
}

func newWorld(t testing.TB, seed uint64) *simfabric.World {
	t.Helper()
	w, err := simfabric.New(seed)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Close)
	return w
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func newHost(t testing.TB, w *simfabric.World, name string, cqe, bytes int) *host {
	t.Helper()
	h := &host{t: t, dev: must(verbs.Open(simfabric.Provider, name, w.Options()))}
	t.Cleanup(func() { h.check(h.dev.Close()) })
	h.pd = must(h.dev.AllocPD())
	t.Cleanup(func() { h.check(h.pd.Close()) })
	h.cq = must(h.dev.CreateCQ(cqe))
	t.Cleanup(func() { h.check(h.cq.Close()) })
	h.buf = verbstest.Private(t, bytes)
	h.mr = must(h.pd.RegisterMR(h.buf.Addr, uint64(bytes), verbs.AccessLocalWrite|verbs.AccessRemoteWrite, -1, 0))
	t.Cleanup(func() { h.check(h.pd.DeregisterMR(h.mr)) })
	return h
}

func (h *host) check(err error) {
	h.t.Helper()
	if err != nil {
		h.t.Error(err)
	}
}

func (h *host) poll() error {
	n, err := h.cq.Poll(h.wc[:])
	h.got = append(h.got, h.wc[:n]...)
	return err
}

// join connects two hosts by a queue pair that closes when the test ends.
func join(t testing.TB, a, b *host, depth int) (qa, qb *verbs.QP) {
	t.Helper()
	config := func(h *host) verbs.QPConfig {
		return verbs.QPConfig{CQ: h.cq, MaxSendWR: depth, MaxRecvWR: depth}
	}
	qa, qb = must(a.pd.CreateQP(config(a))), must(b.pd.CreateQP(config(b)))
	t.Cleanup(func() { a.check(qa.Close()); b.check(qb.Close()) })
	a.check(qb.Connect(must(qa.Endpoint()), verbs.ConnectConfig{}))
	a.check(qa.Connect(must(qb.Endpoint()), verbs.ConnectConfig{Active: true}))
	return qa, qb
}

// send posts n signaled writes of 8 bytes, numbered from 0.
func (h *host) send(qp *verbs.QP, to *host, n int) {
	h.t.Helper()
	for i := range n {
		h.wr[0] = verbs.SendWR{
			WRID: uint64(i), LAddr: h.mr.Addr, LKey: h.mr.LKey, RAddr: to.mr.Addr, RKey: to.mr.RKey, Length: 8, Imm: uint32(i),
			Opcode: verbs.OpWriteWithImm, Flags: verbs.SendSignaled,
		}
		_, err := qp.PostSend(h.wr[:])
		h.check(err)
	}
}

// settle steps until nothing is in flight, polling the hosts, and returns the virtual time it took.
func settle(t testing.TB, w *simfabric.World, hosts ...*host) time.Duration {
	t.Helper()
	start := w.Now()
	for range 100_000 {
		pending := w.Step()
		for _, h := range hosts {
			h.check(h.poll())
		}
		if pending == 0 {
			return w.Now() - start
		}
	}
	t.Fatal("still in flight after 100000 steps")
	return 0
}

func statuses(h *host) (s []verbs.Status) {
	for _, wc := range h.got {
		s = append(s, wc.Status)
	}
	return s
}

// pair is two hosts with one queue pair, receives posted.
type pair struct {
	w      *simfabric.World
	a, b   *host
	qa, qb *verbs.QP
}

func newPair(t testing.TB, seed uint64) *pair {
	t.Helper()
	w := newWorld(t, seed)
	p := &pair{w: w, a: newHost(t, w, "a", 64, 4096), b: newHost(t, w, "b", 64, 4096)}
	p.qa, p.qb = join(t, p.a, p.b, 16)
	p.b.check(p.qb.PostRecv(9, 8))
	return p
}

const always = 65536

func TestFaultsStrikeAsPlanned(t *testing.T) {
	const ok, flush, fatal = verbs.WCSuccess, verbs.WCFlushErr, verbs.WCFatalErr
	for _, c := range []struct {
		name        string
		strike      func(*pair)
		sends, recv []verbs.Status // of three messages
		least, most time.Duration
	}{
		{"nothing", func(*pair) {}, []verbs.Status{ok, ok, ok}, []verbs.Status{ok, ok, ok}, 0, time.Millisecond},
		{"one delay", func(p *pair) {
			p.w.SetNetwork(simfabric.Network{DelayMax: time.Millisecond})
			simfabric.Trigger(p.qa, simfabric.Delay)
		}, []verbs.Status{ok, ok, ok}, []verbs.Status{ok, ok, ok}, time.Microsecond, 2 * time.Millisecond},
		{"one drop: sent again after an eighth of the ack timeout", func(p *pair) {
			simfabric.Trigger(p.qa, simfabric.Drop)
		}, []verbs.Status{ok, ok, ok}, []verbs.Status{ok, ok, ok}, 125 * time.Millisecond, 130 * time.Millisecond},
		{"every drop: the ack timeout passes", func(p *pair) { p.w.SetNetwork(simfabric.Network{Drop: always}) },
			[]verbs.Status{verbs.WCRetryExcErr, flush, flush}, nil, time.Second, 1010 * time.Millisecond},
		{"one receiver not ready", func(p *pair) { simfabric.Trigger(p.qa, simfabric.RNR) },
			[]verbs.Status{ok, ok, ok}, []verbs.Status{ok, ok, ok}, time.Millisecond, 3 * time.Millisecond},
		{"never ready: the timeout passes", func(p *pair) { p.w.SetNetwork(simfabric.Network{RNR: always}) },
			[]verbs.Status{verbs.WCRNRRetryExcErr, flush, flush}, nil, time.Second, 1010 * time.Millisecond},
		{"a stale key", func(p *pair) { simfabric.Trigger(p.qa, simfabric.StaleKey) },
			[]verbs.Status{verbs.WCRemAccessErr, flush, flush}, nil, 0, time.Millisecond},
		{"a queue pair that fails", func(p *pair) { simfabric.Trigger(p.qa, simfabric.QPFail) },
			[]verbs.Status{fatal, flush, flush}, nil, 0, time.Millisecond},
		{"the receiver's host dies", func(p *pair) { simfabric.Kill(p.b.dev) },
			[]verbs.Status{verbs.WCRetryExcErr, flush, flush}, nil, time.Second, 1010 * time.Millisecond},
		{"the sender's host dies", func(p *pair) { simfabric.Kill(p.a.dev) }, nil, nil, 0, 2 * time.Millisecond},
		{"the link is down for good", func(p *pair) { simfabric.Link(p.b.dev, false) },
			[]verbs.Status{verbs.WCRetryExcErr, flush, flush}, nil, time.Second, 1010 * time.Millisecond},
		{"the sender's completion queue shrinks", func(p *pair) { simfabric.ShrinkCQ(p.a.cq, 0) },
			[]verbs.Status{}, []verbs.Status{ok}, 0, time.Millisecond},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newPair(t, 1)
			c.strike(p)
			p.a.send(p.qa, p.b, 3)
			start := p.w.Now()
			var overrun error
			for p.w.Step() > 0 && overrun == nil {
				overrun = p.a.poll()
				p.b.check(p.b.poll())
			}
			took := p.w.Now() - start
			if errors.Is(p.a.poll(), syscall.EOVERFLOW) != (c.sends != nil && len(c.sends) == 0) {
				t.Errorf("the sender's queue: %v", p.a.poll())
			}
			p.b.check(p.b.poll())
			delivered := p.b.got
			for len(delivered) > 0 && delivered[len(delivered)-1].Status == flush {
				delivered = delivered[:len(delivered)-1]
			}
			if got := statuses(p.a); !equal(got, c.sends) {
				t.Errorf("the sends ended in %v, expected %v", got, c.sends)
			}
			if got := statuses(&host{got: delivered}); !equal(got, c.recv) && len(c.sends) > 0 {
				t.Errorf("the receives ended in %v, expected %v", got, c.recv)
			}
			if took < c.least || took > c.most {
				t.Errorf("it took %v, expected %v to %v", took, c.least, c.most)
			}
		})
	}
}

func equal(a, b []verbs.Status) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}

func TestLinkThatComesBackCarriesOn(t *testing.T) {
	p := newPair(t, 1)
	simfabric.Link(p.b.dev, false)
	p.a.send(p.qa, p.b, 3)
	for p.w.Now() < 300*time.Millisecond {
		p.w.Step()
	}
	simfabric.Link(p.b.dev, true)
	settle(t, p.w, p.a, p.b)
	if got := statuses(p.a); !equal(got, []verbs.Status{0, 0, 0}) {
		t.Errorf("the sends ended in %v", got)
	}
	simfabric.Link(p.a.dev, false)
	for _, c := range []struct {
		h    *host
		want verbs.EventType
	}{{p.b, verbs.EventPortActive}, {p.a, verbs.EventPortErr}} {
		ev, ok, err := c.h.dev.AsyncEvent(0)
		if !ok || err != nil || ev.Type != c.want {
			t.Errorf("event %v, %v, error %v; expected %v", ev, ok, err, c.want)
		}
	}
}

// An idle peer of a host that fails its queue pair is told, unless the close is silent or the host dies.
func TestIdlePeersHearOfACloseButNotOfADeath(t *testing.T) {
	for _, c := range []struct {
		name string
		end  func(*pair)
		told bool
	}{
		{"fail", func(p *pair) { p.a.check(p.qa.Fail()) }, true},
		{"silent fail", func(p *pair) {
			p.w.SetNetwork(simfabric.Network{SilentClose: always})
			p.a.check(p.qa.Fail())
		}, false},
		{"death", func(p *pair) { simfabric.Kill(p.a.dev) }, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newPair(t, 1)
			c.end(p)
			for range 100 {
				p.w.Step()
			}
			p.b.check(p.b.poll())
			if told := len(p.b.got) == 8 && p.qb.State() == verbs.StateErr; told != c.told {
				t.Errorf("told: %v, expected %v; %d receives flushed, in %v", told, c.told, len(p.b.got), p.qb.State())
			}
		})
	}
}

// Both orders of two queue pairs' messages, and a reply before the completion of what it answers, must be reachable.
// A queue pair can be made on a completion queue that has overrun, by an owner that has not polled it since. What arrives there
// is not lost in silence: the sender learns of it.
func TestQueuePairsOnAQueueThatOverranFail(t *testing.T) {
	p := newPair(t, 1)
	simfabric.ShrinkCQ(p.b.cq, 0)
	p.a.send(p.qa, p.b, 1)
	settle(t, p.w, p.a)
	late, lateB := join(t, p.a, p.b, 16)
	p.b.check(lateB.PostRecv(9, 8))
	p.a.got = nil
	p.a.send(late, p.b, 2)
	settle(t, p.w, p.a)
	if got := statuses(p.a); !equal(got, []verbs.Status{verbs.WCRetryExcErr, verbs.WCFlushErr}) || lateB.State() != verbs.StateErr {
		t.Errorf("the sends ended in %v, the receiver is in %v", got, lateB.State())
	}
}

func TestSchedulesReorderAcrossQueuePairs(t *testing.T) {
	firsts, overtaken := map[uint32]bool{}, false
	for seed := range uint64(50) {
		w := newWorld(t, seed)
		a, b := newHost(t, w, "a", 64, 4096), newHost(t, w, "b", 64, 4096)
		var qa, qb [2]*verbs.QP
		for i := range qa {
			qa[i], qb[i] = join(t, a, b, 8)
			b.check(qb[i].PostRecv(uint64(i), 4))
			a.check(qa[i].PostRecv(uint64(i), 4))
			a.send(qa[i], b, 2)
		}
		for len(b.got) == 0 {
			w.Step()
			b.check(b.poll())
		}
		first := b.got[0]
		firsts[first.QPNum] = true
		b.send(qb[first.WRID], a, 1)
		settle(t, w, a, b)
		if a.got[0].Opcode == verbs.WCRecvImm {
			overtaken = true
		}
	}
	if len(firsts) < 2 || !overtaken {
		t.Errorf("of 50 seeds, %d of 2 queue pairs were ever first; a reply overtook its completion: %v", len(firsts), overtaken)
	}
}

func TestStepsAllocateNothing(t *testing.T) {
	p := newPair(t, 1)
	p.w.SetNetwork(simfabric.Network{Drop: 1000, RNR: 1000, Delay: 1000, DelayMax: time.Millisecond})
	allocs := testing.AllocsPerRun(100, func() {
		p.a.got, p.b.got = p.a.got[:0], p.b.got[:0]
		p.a.check(p.qb.PostRecv(9, 4))
		p.a.send(p.qa, p.b, 4)
		settle(t, p.w, p.a, p.b)
	})
	if allocs != 0 {
		t.Errorf("%v allocations", allocs)
	}
}

func TestTraceTellsWhatHappened(t *testing.T) {
	r, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	p := newPair(t, 1)
	p.w.Trace(int(out.Fd()))
	p.a.send(p.qa, p.b, 1)
	settle(t, p.w, p.a, p.b)
	p.w.Trace(-1)
	out.Close()
	text := make([]byte, 4096)
	n, _ := r.Read(text)
	r.Close()
	lines := strings.Split(strings.TrimSpace(string(text[:n])), "\n")
	if len(lines) != 2 || !strings.Contains(lines[0], "deliver") || !strings.Contains(lines[1], "acknowledge") {
		t.Errorf("the trace of one message is %q", lines)
	}
}

func TestOpenRefusesWhatMakesNoWorld(t *testing.T) {
	w := newWorld(t, 1)
	newHost(t, w, "stepped", 8, 4096)
	for _, c := range []struct{ options, want string }{
		{"world=1023", "unknown world 1023"},
		{"world=99999", "unknown world"},
		{"world=99999999999", "not a number"},
		{"world=0", "not a number"},
		{"world=x", "world=x is not a number"},
		{"link=", "not a number"},
		{"speed=9", `"speed"`},
	} {
		d, err := verbs.Open(simfabric.Provider, "", c.options)
		if err == nil {
			d.Close()
		}
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("open with %q: error %v, expected one with %q", c.options, err, c.want)
		}
	}
}

func TestWorldOutlivesItsOwnerWhileDevicesAreOpen(t *testing.T) {
	w := must(simfabric.New(1))
	d := must(verbs.Open(simfabric.Provider, "a", w.Options()))
	w.Close()
	pd := must(d.AllocPD())
	if err := errors.Join(pd.Close(), d.Close()); err != nil {
		t.Error(err)
	}
}
