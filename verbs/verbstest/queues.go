package verbstest

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rackweave/rackweave/verbs"
)

// postUntilFull posts wr until the queue is full, and returns the number of posted requests.
func (r *rig) postUntilFull(qp *verbs.QP, wr verbs.SendWR) int {
	r.t.Helper()
	for n := range 4096 {
		posted, err := qp.PostSend([]verbs.SendWR{wr})
		if err == nil {
			continue
		}
		if posted != 0 || !errors.Is(err, syscall.ENOMEM) {
			r.t.Fatalf("posting past the queue's end: posted %d, error %v; expected ENOMEM", posted, err)
		}
		return n
	}
	r.t.Fatal("the send queue took 4096 work requests without a completion polled")
	return 0
}

func (r *rig) expectFull(qp *verbs.QP, wr verbs.SendWR, when string) {
	r.t.Helper()
	if n, err := qp.PostSend([]verbs.SendWR{wr}); n != 0 || !errors.Is(err, syscall.ENOMEM) {
		r.t.Errorf("%s: posted %d, error %v; expected the queue to be full", when, n, err)
	}
}

func unsignaledOccupy(t *testing.T, p Provider) {
	const asked = 8
	s := shape{send: asked, pairs: 1}
	r := newRig(t, p, s)
	plain := r.write(0, 0, 16, 0)
	plain.Opcode, plain.Flags = verbs.OpWrite, 0
	capacity := r.postUntilFull(r.a.qps[0], plain)
	if capacity < asked {
		t.Fatalf("the send queue holds %d, asked for %d", capacity, asked)
	}
	r.pass(20 * time.Millisecond)
	r.expectFull(r.a.qps[0], plain, "with unsignaled sends only")

	a, b := r.connect(s)
	r.recv(b, 1, 1)
	r.post(a, append(slices.Repeat([]verbs.SendWR{plain}, capacity-1), r.write(0, 0, 16, 1))...)
	r.loop("the last message is there", func() (int, bool) {
		r.must(r.progress(r.a), "make progress")
		return r.poll(r.b), len(r.b.got) == 1
	})
	r.expectFull(a, plain, "with the completion not polled")
	r.collect(1, 1)
	if n := r.postUntilFull(a, plain); n != capacity {
		t.Errorf("the polled completion freed %d of %d", n, capacity)
	}
}

func fullQueuePostsNothingFurther(t *testing.T, p Provider) {
	const asked, beyond = 16, 10
	s := shape{send: asked, recv: 1024, cqe: 4096, pairs: 1}
	r := newRig(t, p, s)
	plain := r.write(0, 0, 16, 0)
	plain.Opcode, plain.Flags = verbs.OpWrite, 0
	capacity := r.postUntilFull(r.a.qps[0], plain)

	a, b := r.connect(s)
	r.recv(b, 1, capacity+beyond)
	list := make([]verbs.SendWR, capacity+beyond)
	for i := range list {
		list[i] = r.write(0, 0, 16, uint32(i))
	}
	n, err := a.PostSend(list)
	if n != capacity || !errors.Is(err, syscall.ENOMEM) {
		t.Fatalf("a list of %d on a queue of %d: posted %d, error %v; expected %d and ENOMEM", len(list), capacity, n, err,
			capacity)
	}
	r.collect(capacity, capacity)
	r.pass(5 * time.Millisecond)
	r.collect(capacity, capacity)
	r.post(a, list[capacity:]...)
	r.collect(len(list), len(list))
	for i, wc := range r.b.got {
		r.expectRecv(wc, 1, b, uint32(i), 16)
	}
}

func fullReceiveQueueIsError(t *testing.T, p Provider) {
	r := newRig(t, p, shape{pairs: 1, recv: 8, cqe: 8192})
	for n := range 4096 {
		err := r.b.qps[0].PostRecv(1, 1)
		if err == nil {
			continue
		}
		if n < 8 || !errors.Is(err, syscall.ENOMEM) {
			t.Errorf("receive %d: %v; expected ENOMEM at the queue's end", n, err)
		}
		return
	}
	t.Error("a receive queue made for 8 took 4096")
}

func lateReceiveRecovers(t *testing.T, p Provider) {
	r := newRig(t, p, shape{pairs: 1})
	fill(r.a.buf.Bytes()[:2000], 1)
	r.post(r.a.qps[0], r.write(0, 0, 2000, 1), r.write(0, 4096, 2000, 2), r.write(0, 8192, 2000, 3))
	r.pass(50 * time.Millisecond)
	r.collect(0, 0)
	r.recv(r.b.qps[0], 5, 1)
	r.collect(1, 1)
	r.pass(10 * time.Millisecond)
	r.recv(r.b.qps[0], 6, 2)
	r.collect(3, 3)
	for i := range 3 {
		r.expect(r.a.got[i], uint64(i+1), r.a.qps[0], verbs.WCSuccess)
		if k := differs(r.b.buf.Bytes()[i*4096:i*4096+2000], 1); k >= 0 {
			t.Errorf("message %d: byte %d differs", i+1, k)
		}
	}
	r.expectRecv(r.b.got[0], 5, r.b.qps[0], 1, 2000)
	r.expectRecv(r.b.got[2], 6, r.b.qps[0], 3, 2000)
}

func neverReadyFails(t *testing.T, p Provider) {
	const timeout = 200 * time.Millisecond
	r := newRig(t, p, shape{pairs: 1, connect: verbs.ConnectConfig{RNRTimeout: timeout}})
	r.recv(r.b.qps[0], 1, 1)
	start := r.now()
	r.post(r.a.qps[0], r.write(0, 0, 16, 1), r.write(0, 0, 16, 2), r.write(0, 0, 16, 3))
	r.until("the sends ended", func() bool { return len(r.a.got) >= 3 })
	took := r.now() - start
	r.expect(r.a.got[0], 1, r.a.qps[0], verbs.WCSuccess)
	r.expect(r.a.got[1], 2, r.a.qps[0], verbs.WCRNRRetryExcErr)
	r.expect(r.a.got[2], 3, r.a.qps[0], verbs.WCFlushErr)
	r.expectState(r.a.qps[0], verbs.StateErr)
	if took < timeout/4 || took > timeout+5*time.Second {
		t.Errorf("it took %v, the timeout is %v", took, timeout)
	}
}

const overrunMessages = 256

// expectOverrun waits until polling a side's queue fails, and its queue pairs fail with it.
func (r *rig) expectOverrun(e, other *side) {
	r.t.Helper()
	r.loop("the queue overran", func() (int, bool) {
		n := r.poll(other)
		err := r.progress(e)
		if err == nil && len(other.got) >= overrunMessages {
			n, err = e.cq.Poll(e.wc[:1]) // all have arrived, so the overrun must show by now
		}
		if err != nil && !errors.Is(err, syscall.EOVERFLOW) {
			r.t.Fatalf("polling failed with %v, expected EOVERFLOW", err)
		}
		return n, err != nil
	})
	r.loop("its queue pair fails", func() (int, bool) { return r.poll(other), e.qps[0].State() == verbs.StateErr })
	r.loop("its device reports it", func() (int, bool) { return r.poll(other), r.pump.saw(e.dev, isCQErr) })
}

func isCQErr(ev verbs.AsyncEvent) bool { return ev.Type == verbs.EventCQErr }

// cannotOverrun reports whether the provider refuses a queue pair that could overrun a side's completion queue.
func (r *rig) cannotOverrun(e *side, s shape) bool {
	r.t.Helper()
	s = s.withDefaults()
	qp, err := e.pd.CreateQP(verbs.QPConfig{CQ: e.cq, MaxSendWR: s.send, MaxRecvWR: s.recv})
	if err == nil {
		r.must(qp.Close(), "close queue pair")
		return false
	}
	if !errors.Is(err, syscall.EINVAL) || !strings.Contains(err.Error(), "completion queue") {
		r.t.Fatalf("a queue pair that could overrun its completion queue: error %v, expected EINVAL that says so", err)
	}
	return true
}

func sendOverrunIsError(t *testing.T, p Provider) {
	s := shape{send: overrunMessages, recv: overrunMessages, aCQE: 16}
	r := newRig(t, p, s)
	if r.cannotOverrun(r.a, s) {
		return
	}
	r.connect(s)
	r.recv(r.b.qps[0], 1, overrunMessages)
	r.post(r.a.qps[0], slices.Repeat([]verbs.SendWR{r.write(0, 0, 16, 1)}, overrunMessages)...)
	r.expectOverrun(r.a, r.b)
}

func recvOverrunIsError(t *testing.T, p Provider) {
	s := shape{
		send: overrunMessages, recv: overrunMessages, bCQE: 16,
		connect: verbs.ConnectConfig{AckTimeout: 200 * time.Millisecond},
	}
	r := newRig(t, p, s)
	if r.cannotOverrun(r.b, s) {
		return
	}
	r.connect(s)
	r.recv(r.b.qps[0], 1, overrunMessages)
	r.post(r.a.qps[0], slices.Repeat([]verbs.SendWR{r.write(0, 0, 16, 1)}, overrunMessages)...)
	r.expectOverrun(r.b, r.a)
	r.loop("the sender failed", func() (int, bool) {
		failed := slices.ContainsFunc(r.a.got, func(wc verbs.WC) bool { return wc.Status != verbs.WCSuccess })
		// A provider without a wire may have completed every send before the receiver's queue overran.
		return r.poll(r.a), failed || r.a.qps[0].State() == verbs.StateErr
	})
}

func limitsAreErrors(t *testing.T, p Provider) {
	r := newRig(t, p, shape{})
	attr := r.a.dev.Attr()
	if attr.Provider == "" || attr.Name == "" || attr.MaxQP == 0 || attr.MaxQPWR == 0 || attr.MaxCQ == 0 || attr.MaxCQE == 0 ||
		attr.MaxMR == 0 || attr.MaxMRSize == 0 {
		t.Errorf("the device leaves a limit at 0: %+v", attr)
	}
	expect := func(what string, err error, limit uint32) {
		t.Helper()
		if e := (*verbs.Error)(nil); !errors.As(err, &e) {
			t.Errorf("%s: error %v, expected one that wraps a verbs.Error", what, err)
		} else if !strings.Contains(err.Error(), fmt.Sprint(limit)) {
			t.Errorf("%s: the error does not name the limit %d: %v", what, limit, err)
		}
	}
	for _, cqe := range []int{0, int(attr.MaxCQE) + 1} {
		_, err := r.a.dev.CreateCQ(cqe)
		expect(fmt.Sprintf("a completion queue of %d", cqe), err, attr.MaxCQE)
	}
	most := int(attr.MaxQPWR)
	for _, c := range []verbs.QPConfig{
		{MaxSendWR: 0, MaxRecvWR: 1}, {MaxSendWR: most + 1, MaxRecvWR: 1},
		{MaxSendWR: 1, MaxRecvWR: 0}, {MaxSendWR: 1, MaxRecvWR: most + 1},
	} {
		c.CQ = r.a.cq
		_, err := r.a.pd.CreateQP(c)
		expect(fmt.Sprintf("a queue pair of %d sends and %d receives", c.MaxSendWR, c.MaxRecvWR), err, attr.MaxQPWR)
	}
	_, err := r.a.pd.CreateQP(verbs.QPConfig{
		CQ: r.a.cq, MaxSendWR: 1, MaxRecvWR: 1, MaxInline: int(attr.MaxInline) + 1,
	})
	expect("a queue pair with more inline bytes than the device has", err, attr.MaxInline)
	if _, err = r.a.pd.RegisterMR(r.a.buf.Addr, 0, 0, r.a.buf.FD, r.a.buf.Offset); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("registering 0 bytes: error %v, expected EINVAL", err)
	}
	if err = r.a.pd.DeregisterMR(verbs.MR{LKey: r.a.mr.LKey + 0x10000}); err == nil {
		t.Error("deregistering an unknown region: no error")
	}
	if d, err := verbs.Open(attr.Provider, "", "no_such_option=1"); !errors.Is(err, syscall.EINVAL) ||
		!strings.Contains(err.Error(), "no_such_option") {
		t.Errorf("an unknown option: device %v, error %v, expected EINVAL with its name", d, err)
	}
}

func inUseIsBusy(t *testing.T, p Provider) {
	r := newRig(t, p, shape{pairs: 1})
	for _, c := range []struct {
		what  string
		close func() error
	}{
		{"a device with a protection domain", r.a.dev.Close},
		{"a protection domain with a region and a queue pair", r.b.pd.Close},
		{"a completion queue with a queue pair", r.a.cq.Close},
	} {
		if err := c.close(); !errors.Is(err, syscall.EBUSY) {
			t.Errorf("closing %s: error %v, expected EBUSY", c.what, err)
		}
	}
	empty, err := r.a.dev.AllocPD()
	r.must(err, "allocate protection domain")
	mr, err := empty.RegisterMR(r.a.buf.Addr, 4096, verbs.AccessLocalWrite, r.a.buf.FD, r.a.buf.Offset)
	r.must(err, "register memory")
	if err := empty.Close(); !errors.Is(err, syscall.EBUSY) {
		t.Errorf("closing a protection domain with a region: error %v, expected EBUSY", err)
	}
	r.must(empty.DeregisterMR(mr), "deregister memory")
	r.must(empty.Close(), "close protection domain")
	r.recv(r.b.qps[0], 1, 1)
	r.post(r.a.qps[0], r.write(0, 0, 16, 1))
	r.collect(1, 1)
	r.expectRecv(r.b.got[0], 1, r.b.qps[0], 1, 16)
}
