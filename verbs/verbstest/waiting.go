package verbstest

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rackweave/rackweave/verbs"
)

// background polls a side from a goroutine of its own until stop. Until then that goroutine is the owner, and nobody else may post.
func (r *rig) background(e *side) (stop func()) {
	var wg sync.WaitGroup
	quit := make(chan struct{})
	wg.Go(func() {
		for {
			select {
			case <-quit:
				return
			default:
			}
			if _, err := e.cq.Poll(e.wc[:]); err != nil {
				r.t.Errorf("poll: %v", err)
				return
			}
			time.Sleep(20 * time.Microsecond)
		}
	})
	return func() { close(quit); wg.Wait() }
}

func waitEndsOnTime(t *testing.T, p Provider) {
	r := newRig(t, p, shape{pairs: 1})
	for _, timeout := range []time.Duration{0, 50 * time.Millisecond} {
		r.must(r.a.cq.Arm(1), "arm")
		start := time.Now()
		ok, err := r.a.cq.Wait(timeout)
		took := time.Since(start)
		r.must(err, "wait")
		if ok {
			t.Error("a wait with nothing there says that something is")
		}
		r.expectSoon(took, timeout)
		if p.Drive == nil && took < timeout*9/10 {
			t.Errorf("a wait of %v took %v", timeout, took)
		}
	}
}

func wakeEndsWait(t *testing.T, p Provider) {
	r := newRig(t, p, shape{pairs: 1})
	for name, delay := range map[string]time.Duration{"next": 0, "present": 20 * time.Millisecond} {
		r.must(r.a.cq.Arm(1), "arm")
		var wg sync.WaitGroup
		if delay == 0 || p.Drive != nil {
			r.a.cq.Wake() // a simulated wait returns at once, so no wait is present
		} else {
			wg.Go(func() { time.Sleep(delay); r.a.cq.Wake() })
		}
		start := time.Now()
		ok, err := r.a.cq.Wait(deadline)
		r.must(err, "wait")
		r.expectSoon(time.Since(start), delay)
		if !ok {
			t.Errorf("the %s wait ended without its wake", name)
		}
		wg.Wait()
	}
	r.must(r.a.cq.Arm(1), "arm")
	if ok, err := r.a.cq.Wait(time.Millisecond); ok || err != nil {
		t.Errorf("a wake ended two waits: %v, error %v", ok, err)
	}
}

// wait arms, polls and waits as its users do. ok is false if the wait timed out before count completions.
func (r *rig) wait(e *side, count int) (n int, ok bool, err error) {
	if err = e.cq.Arm(count); err != nil {
		return 0, false, err
	}
	if n, err = e.cq.Poll(e.wc[:]); n > 0 || err != nil {
		return n, true, err
	}
	ok, err = e.cq.Wait(5 * time.Second)
	if r.p.Drive != nil {
		r.p.Drive()
		ok = true // a simulated wait does not wait
	}
	return 0, ok, err
}

func noLostWakeup(t *testing.T, p Provider) {
	for _, c := range []struct{ moderation, bursts int }{{1, 300}, {8, 100}, {64, 30}} {
		if p.Drive != nil {
			c.bursts = 10 // nothing sleeps in a simulated wait
		}
		t.Run(fmt.Sprintf("with moderation %d", c.moderation), func(t *testing.T) { sleepAndWake(t, p, c.moderation, c.bursts) })
	}
}

// sleepAndWake sends bursts, each after the last was received. Both ends sleep until their missing completions arrive, so that a
// lost wakeup is a wait that times out.
func sleepAndWake(t *testing.T, p Provider, burst, bursts int) {
	r := newRig(t, p, shape{pairs: 1, send: 64, recv: 128})
	var received atomic.Int64
	r.recv(r.b.qps[0], 1, 2*burst)
	var wg sync.WaitGroup
	wg.Go(func() {
		for n := 0; n < burst*bursts; {
			got, ok, err := r.wait(r.b, burst-n%burst)
			if err != nil || !ok {
				t.Errorf("the receiver has %d of %d messages: woken %v, error %v", n, burst*bursts, ok, err)
				return
			}
			for _, wc := range r.b.wc[:got] {
				if wc.Status != verbs.WCSuccess || wc.Imm != uint32(n) {
					t.Errorf("message %d: %s, immediate %d", n, wc.Status, wc.Imm)
					return
				}
				n++
			}
			if got > 0 {
				if err := r.b.qps[0].PostRecv(1, got); err != nil {
					t.Error(err)
					return
				}
				received.Store(int64(n))
			}
		}
	})
	r.sendBursts(burst, bursts, &received)
	wg.Wait()
}

func (r *rig) sendBursts(burst, bursts int, received *atomic.Int64) {
	list := make([]verbs.SendWR, burst)
	end := time.Now().Add(deadline)
	for k := range bursts {
		for i := range list {
			list[i] = r.write(0, 0, 32, uint32(k*burst+i))
			list[i].Flags = 0
		}
		list[burst-1].Flags = verbs.SendSignaled
		if k%3 == 0 { // now and then the receiver is surely asleep
			time.Sleep(200 * time.Microsecond)
		}
		if _, err := r.a.qps[0].PostSend(list); err != nil {
			r.t.Error(err)
			return
		}
		for n := 0; n == 0; {
			var ok bool
			var err error
			if n, ok, err = r.wait(r.a, 1); err != nil || !ok || time.Now().After(end) {
				r.t.Errorf("the sender's burst %d: woken %v, error %v", k, ok, err)
				return
			}
		}
		for received.Load() < int64((k+1)*burst) {
			if time.Now().After(end) {
				r.t.Errorf("burst %d was not received", k)
				return
			}
			r.rest(0)
		}
	}
}

func errorEndsWait(t *testing.T, p Provider) {
	r := newRig(t, p, shape{pairs: 1})
	bad := r.write(0, 0, 16, 1)
	bad.RKey = 0
	r.recv(r.b.qps[0], 1, 1) // before the background owns the queue pair
	defer r.background(r.b)()
	r.post(r.a.qps[0], bad)
	end := time.Now().Add(deadline)
	for n := 0; n == 0; {
		var ok bool
		var err error
		if n, ok, err = r.wait(r.a, 64); err != nil || !ok || time.Now().After(end) {
			t.Fatalf("woken %v, error %v", ok, err)
		}
	}
	r.expect(r.a.wc[0], 1, r.a.qps[0], verbs.WCRemAccessErr)
}

func restAcknowledges(t *testing.T, p Provider) {
	const replies = 20
	r := newRig(t, p, shape{pairs: 1})
	r.recv(r.a.qps[0], 1, 1)
	r.recv(r.b.qps[0], 1, replies+1)
	// Messages go both ways first, because then a reply may be awaited that carries the acknowledgement.
	r.post(r.a.qps[0], r.write(0, 0, 32, 0))
	r.collect(1, 1)
	r.post(r.b.qps[0], write(r.b, r.a, 64, 64, 32, 0))
	r.collect(2, 2)
	for i := range replies {
		wr := r.write(0, 0, 32, uint32(i))
		wr.Flags |= verbs.SendSolicited
		r.post(r.a.qps[0], wr)
	}
	r.loop("the messages have arrived", func() (int, bool) {
		r.must(r.progress(r.a), "make progress")
		return r.poll(r.b), len(r.b.got) == 2+replies
	})
	r.b.cq.Rest()
	r.loop("the messages are acknowledged, though their receiver rests", func() (int, bool) {
		return r.poll(r.a), len(r.a.got) == 2+replies
	})
}
