package verbstest

import (
	"slices"
	"testing"
	"time"

	"github.com/rackweave/rackweave/verbs"
)

// quick shortens the timeouts for which some failures wait.
var quick = verbs.ConnectConfig{AckTimeout: 200 * time.Millisecond}

func failFlushes(t *testing.T, p Provider) {
	r := newRig(t, p, shape{pairs: 1, connect: quick})
	a, b := r.a.qps[0], r.b.qps[0]
	r.recv(a, 77, 5)
	unsignaled := r.write(0, 0, 16, 3)
	unsignaled.Flags = 0
	r.post(a, r.write(0, 0, 16, 1), r.write(0, 0, 16, 2), unsignaled, r.write(0, 0, 16, 4)) // without a receive they wait
	r.must(a.Fail(), "fail the queue pair")
	r.expectState(a, verbs.StateErr)
	r.until("all is flushed", func() bool { return len(r.a.got) >= 9 })
	var sends []uint64
	recvs := 0
	for _, wc := range r.a.got {
		r.expect(wc, wc.WRID, a, verbs.WCFlushErr)
		if wc.WRID == 77 {
			recvs++
		} else {
			sends = append(sends, wc.WRID)
		}
	}
	if recvs != 5 || !slices.Equal(sends, []uint64{1, 2, 3, 4}) {
		t.Errorf("flushed %d receives and sends %v, expected 5 and 1 to 4 in order", recvs, sends)
	}
	r.post(b, write(r.b, r.a, 0, 0, 16, 9))
	r.until("the peer's send ended", func() bool { return len(r.b.got) >= 1 })
	if wc := r.b.got[0]; wc.WRID != 9 || wc.Status == verbs.WCSuccess {
		t.Errorf("the peer's send: %+v, expected an error", wc)
	}
	r.until("the peer is in error", func() bool { return b.State() == verbs.StateErr })
	r.must(a.Fail(), "fail the queue pair again")
}

func errorFlushesPosts(t *testing.T, p Provider) {
	r := newRig(t, p, shape{pairs: 1, connect: quick})
	a := r.a.qps[0]
	r.must(a.Fail(), "fail the queue pair")
	unsignaled := r.write(0, 0, 16, 2)
	unsignaled.Flags = 0
	r.post(a, r.write(0, 0, 16, 1), unsignaled, r.write(0, 0, 16, 3))
	r.recv(a, 9, 2)
	r.until("all is flushed", func() bool { return len(r.a.got) >= 5 })
	ids := []uint64{}
	for _, wc := range r.a.got {
		r.expect(wc, wc.WRID, a, verbs.WCFlushErr)
		ids = append(ids, wc.WRID)
	}
	slices.Sort(ids)
	if !slices.Equal(ids, []uint64{1, 2, 3, 9, 9}) {
		t.Errorf("flushed %v", ids)
	}
}

func neighboursGoOn(t *testing.T, p Provider) {
	const rounds = 20
	r := newRig(t, p, shape{pairs: 3, connect: quick})
	bad := r.write(0, 0, 16, 1000)
	bad.RKey = 0
	good := 0
	for round := range rounds {
		if round == rounds/2 {
			r.recv(r.b.qps[1], 1, 1)
			r.post(r.a.qps[1], bad)
		}
		for _, i := range []int{0, 2} {
			r.recv(r.b.qps[i], 2, 1)
			r.post(r.a.qps[i], r.write(0, 0, 100, uint32(round)))
			good++
		}
		r.until("the neighbours' messages arrived", func() bool {
			arrived := 0
			for _, wc := range r.b.got {
				if wc.Status == verbs.WCSuccess {
					arrived++
				}
			}
			return arrived >= good
		})
	}
	r.until("the bad write failed", func() bool { return r.a.qps[1].State() == verbs.StateErr })
	r.until("every send ended", func() bool { return len(r.a.got) >= good+1 })
	for _, wc := range r.a.got {
		if ok := wc.Status == verbs.WCSuccess; ok != (wc.QPNum != r.a.qps[1].Num()) {
			t.Errorf("queue pair 0x%x: %s", wc.QPNum, wc.Status)
		}
	}
	for _, i := range []int{0, 2} {
		r.expectState(r.a.qps[i], verbs.StateRTS)
		r.expectState(r.b.qps[i], verbs.StateRTS)
	}
}

func destroyIsClean(t *testing.T, p Provider) {
	r := newRig(t, p, shape{pairs: 2, connect: quick})
	r.recv(r.a.qps[0], 1, 5)
	r.post(r.a.qps[0], r.write(0, 0, 16, 1), r.write(0, 0, 16, 2))
	r.recv(r.b.qps[1], 2, 8)
	r.post(r.a.qps[1], slices.Repeat([]verbs.SendWR{r.write(0, 0, 16, 3)}, 4)...)
	for end := r.now() + 10*time.Millisecond; r.now() < end; r.rest(0) { // the second pair's completions lie unpolled
		r.must(r.progress(r.a), "make progress")
		r.must(r.progress(r.b), "make progress")
	}
	for _, e := range []*side{r.a, r.b} {
		for len(e.qps) > 0 {
			r.destroy(e, e.qps[0])
		}
	}
	r.pass(10 * time.Millisecond)
	r.collect(0, 0)
	a, b := r.connect(shape{})
	r.recv(b, 9, 1)
	r.post(a, r.write(0, 0, 16, 9))
	r.collect(1, 1)
	r.expectRecv(r.b.got[0], 9, b, 9, 16)
}

func destroyedPeerFailsSender(t *testing.T, p Provider) {
	r := newRig(t, p, shape{pairs: 1, connect: quick})
	r.destroy(r.b, r.b.qps[0])
	r.post(r.a.qps[0], r.write(0, 0, 16, 1), r.write(0, 0, 16, 2))
	r.until("both sends ended", func() bool { return len(r.a.got) >= 2 })
	if wc := r.a.got[0]; wc.WRID != 1 || wc.Status == verbs.WCSuccess {
		t.Errorf("the first send: %+v, expected an error", wc)
	}
	r.expect(r.a.got[1], 2, r.a.qps[0], verbs.WCFlushErr)
	r.expectState(r.a.qps[0], verbs.StateErr)
}

// expectSoon checks a wait against its deadline, with room for a loaded machine.
func (r *rig) expectSoon(took, deadline time.Duration) {
	r.t.Helper()
	if took > deadline+2*time.Second {
		r.t.Errorf("it took %v, the deadline was %v", took, deadline)
	}
}

func nobodyThere(t *testing.T, p Provider) {
	const timeout = 200 * time.Millisecond
	r := newRig(t, p, shape{})
	gone := r.create(r.b, shape{})
	endpoint := r.endpoint(gone)
	r.destroy(r.b, gone)
	a := r.create(r.a, shape{})
	start := r.now()
	if err := a.Connect(endpoint, verbs.ConnectConfig{Active: true, Timeout: timeout}); err == nil {
		t.Error("connecting to a queue pair that is gone: no error")
	}
	r.expectSoon(r.now()-start, timeout)

	deaf := r.create(r.b, shape{})
	start = r.now()
	if err := r.create(r.a, shape{}).Connect(r.endpoint(deaf), verbs.ConnectConfig{Active: true, Timeout: timeout}); err == nil {
		t.Error("connecting to a queue pair that does not wait for it: no error")
	}
	r.expectSoon(r.now()-start, timeout)
}

func cancelled(t *testing.T, p Provider) {
	r := newRig(t, p, shape{})
	deaf, cancel := r.create(r.b, shape{}), make(chan struct{})
	time.AfterFunc(50*time.Millisecond, func() { close(cancel) })
	start := time.Now()
	if err := r.create(r.a, shape{}).Connect(r.endpoint(deaf),
		verbs.ConnectConfig{Active: true, Timeout: deadline, Cancel: cancel}); err == nil {
		t.Error("connecting to a queue pair that does not wait for it: no error")
	}
	if took := time.Since(start); took > deadline/2 {
		t.Errorf("the connect that was cancelled after 50 ms took %v", took)
	}
	a, b := r.create(r.a, shape{}), r.create(r.b, shape{})
	r.join(a, b, verbs.ConnectConfig{Cancel: make(chan struct{})})
}

func nobodyComes(t *testing.T, p Provider) {
	const timeout = 100 * time.Millisecond
	r := newRig(t, p, shape{})
	a, b := r.create(r.a, shape{}), r.create(r.b, shape{})
	start := r.now()
	r.must(b.Connect(r.endpoint(a), verbs.ConnectConfig{Timeout: timeout}), "connect the passive queue pair")
	r.recv(b, 3, 2)
	r.until("the queue pair failed", func() bool { return b.State() == verbs.StateErr && len(r.b.got) >= 2 })
	took := r.now() - start
	r.expectSoon(took, timeout)
	if took < timeout/2 {
		t.Errorf("it gave up after %v, the timeout is %v", took, timeout)
	}
	r.expect(r.b.got[0], 3, b, verbs.WCFlushErr)
}

func garbageEndpoint(t *testing.T, p Provider) {
	r := newRig(t, p, shape{})
	good := r.endpoint(r.create(r.b, shape{}))
	ones := slices.Repeat([]byte{0xff}, 256)
	for _, active := range []bool{true, false} {
		for name, blob := range map[string][]byte{
			"empty": {}, "one byte": {1}, "zeros": make([]byte, len(good)), "ones": ones[:len(good)], "long ones": ones,
			"cut short": good[:len(good)-1], "too long": append(slices.Clone(good), 0),
			"its head damaged": append([]byte{^good[0]}, good[1:]...),
		} {
			qp := r.create(r.a, shape{})
			err := qp.Connect(blob, verbs.ConnectConfig{Active: active, Timeout: 50 * time.Millisecond})
			if err == nil {
				t.Errorf("active %v, endpoint %s: no error", active, name)
			}
			r.destroy(r.a, qp)
		}
	}
}

func arrivalIsReported(t *testing.T, p Provider) {
	r := newRig(t, p, shape{pairs: 3})
	for _, qp := range r.b.qps {
		want := verbs.AsyncEvent{Type: verbs.EventQPEstablished, QPNum: qp.Num()}
		r.until(want.Type.String(), func() bool {
			return r.pump.saw(r.b.dev, func(ev verbs.AsyncEvent) bool { return ev == want })
		})
	}
}

// passiveSends posts as soon as the peer's Connect returns, which may be before the provider's own thread has finished.
func passiveSends(t *testing.T, p Provider) {
	r := newRig(t, p, shape{})
	for i := range 100 {
		a, b := r.create(r.a, shape{}), r.create(r.b, shape{})
		r.must(b.Connect(r.endpoint(a), verbs.ConnectConfig{Timeout: deadline}), "connect the passive queue pair")
		r.recv(a, 1, 1)
		r.must(a.Connect(r.endpoint(b), verbs.ConnectConfig{Active: true, Timeout: deadline}), "connect the active queue pair")
		r.post(b, verbs.SendWR{WRID: 2, Imm: uint32(i), Opcode: verbs.OpWriteWithImm, Flags: verbs.SendSignaled})
		r.collect(i+1, i+1)
		r.destroy(r.a, a)
		r.destroy(r.b, b)
	}
}

func linkIsReported(t *testing.T, p Provider) {
	r := newRig(t, p, shape{})
	d := r.a.dev
	attr := d.Attr()
	if attr.Has(verbs.DevLink) && (attr.Has(verbs.DevByReference) || attr.Has(verbs.DevCopiesAtPost)) {
		t.Errorf("flags 0x%x: what is on its way over a link must stay where it is until it has arrived", attr.Flags)
	}
	if p.Link == nil {
		return
	}
	if !attr.Has(verbs.DevLink) {
		t.Fatalf("%s has a link and does not say so: flags 0x%x", attr.Name, attr.Flags)
	}
	for _, c := range []struct {
		up   bool
		want verbs.EventType
	}{{false, verbs.EventPortErr}, {true, verbs.EventPortActive}} {
		p.Link(t, d, c.up)
		r.until(c.want.String(), func() bool {
			return r.pump.saw(d, func(ev verbs.AsyncEvent) bool { return ev.Type == c.want })
		})
	}
	s := shape{connect: verbs.ConnectConfig{Timeout: deadline}}
	a, b := r.connect(s)
	r.recv(b, 1, 1)
	r.post(a, r.write(0, 0, 64, 7))
	r.collect(1, 1)
	r.expectRecv(r.b.got[0], 1, b, 7, 64)
}
