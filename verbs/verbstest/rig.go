package verbstest

import (
	"encoding/binary"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/rackweave/rackweave/verbs"
)

// deadline bounds every wait of the suite. It is far beyond any provider's needs, even in an emulated machine.
const deadline = 30 * time.Second

// side is one end of a rig: its device and the objects opened from it. got collects the completions of its queue.
type side struct {
	dev *verbs.Device
	pd  *verbs.PD
	cq  *verbs.CQ
	qps []*verbs.QP
	buf Buffer
	mr  verbs.MR
	got []verbs.WC
	wc  [64]verbs.WC
}

// rig is two sides and the queue pairs between them. a's are active, b's passive.
type rig struct {
	t    *testing.T
	p    Provider
	a, b *side
	idle int
	pump *pump
}

// shape sizes a rig. Zero values are the defaults.
type shape struct {
	pairs, send, recv, cqe, bytes, inline int
	aCQE, bCQE                            int
	byReference                           bool
	peer                                  int
	connect                               verbs.ConnectConfig
}

func (s shape) withDefaults() shape {
	set := func(v *int, d int) {
		if *v == 0 {
			*v = d
		}
	}
	set(&s.send, 64)
	set(&s.recv, 64)
	set(&s.cqe, (s.send+s.recv)*(s.pairs+2)+64) // tests make up to two queue pairs more
	set(&s.aCQE, s.cqe)
	set(&s.bCQE, s.cqe)
	set(&s.bytes, 64<<10)
	return s
}

// newRig opens both sides with s.pairs connected queue pairs, and closes all of it, in order, when the test ends.
func newRig(t *testing.T, p Provider, s shape) *rig {
	t.Helper()
	s = s.withDefaults()
	r := &rig{t: t, p: p, a: &side{}, b: &side{}}
	r.a.dev, r.b.dev = p.Open(t)
	t.Cleanup(func() {
		r.check(r.a.dev.Close(), "close device")
		if r.b.dev != r.a.dev {
			r.check(r.b.dev.Close(), "close device")
		}
	})
	r.pump = startPump(t, r.a.dev, r.b.dev)
	t.Cleanup(r.pump.stop)
	r.open(r.a, s.aCQE, s.bytes)
	r.open(r.b, s.bCQE, s.bytes)
	t.Cleanup(func() {
		for _, e := range []*side{r.a, r.b} {
			for _, qp := range e.qps {
				r.check(qp.Close(), "close queue pair")
			}
		}
	})
	for range s.pairs {
		r.connect(s)
	}
	return r
}

func (r *rig) open(e *side, cqe, bytes int) {
	r.t.Helper()
	var err error
	e.pd, err = e.dev.AllocPD()
	r.must(err, "allocate protection domain")
	r.t.Cleanup(func() { r.check(e.pd.Close(), "close protection domain") })
	e.buf = r.p.Memory(r.t, bytes)
	e.mr = r.register(e.pd, e.buf, verbs.AccessLocalWrite|verbs.AccessRemoteWrite)
	e.cq, err = e.dev.CreateCQ(cqe)
	r.must(err, "create completion queue")
	r.t.Cleanup(func() { r.check(e.cq.Close(), "close completion queue") })
}

// register registers a buffer until the test ends.
func (r *rig) register(pd *verbs.PD, b Buffer, access verbs.Access) verbs.MR {
	r.t.Helper()
	mr, err := pd.RegisterMR(b.Addr, uint64(b.Len), access, b.FD, b.Offset)
	r.must(err, "register memory")
	r.t.Cleanup(func() { r.check(pd.DeregisterMR(mr), "deregister memory") })
	return mr
}

// create makes one queue pair of a shape on a side.
func (r *rig) create(e *side, s shape) *verbs.QP {
	r.t.Helper()
	s = s.withDefaults()
	qp, err := e.pd.CreateQP(verbs.QPConfig{
		CQ: e.cq, MaxSendWR: s.send, MaxRecvWR: s.recv, MaxInline: min(s.inline, int(e.dev.Attr().MaxInline)), ByReference: s.byReference,
		Peer: s.peer,
	})
	r.must(err, "create queue pair")
	e.qps = append(e.qps, qp)
	return qp
}

// connect adds a connected queue pair and returns its ends.
func (r *rig) connect(s shape) (a, b *verbs.QP) {
	r.t.Helper()
	a, b = r.create(r.a, s), r.create(r.b, s)
	r.join(a, b, s.connect)
	return a, b
}

func (r *rig) join(a, b *verbs.QP, c verbs.ConnectConfig) {
	r.t.Helper()
	r.must(b.Connect(r.endpoint(a), c), "connect the passive queue pair")
	c.Active = true
	r.must(a.Connect(r.endpoint(b), c), "connect the active queue pair")
	if s := a.State(); s != verbs.StateRTS {
		r.t.Fatalf("the active queue pair is in %v after connecting", s)
	}
	r.until("the passive queue pair is ready", func() bool { return b.State() == verbs.StateRTS })
}

// destroy closes a queue pair before the test ends.
func (r *rig) destroy(e *side, qp *verbs.QP) {
	r.t.Helper()
	e.qps = slices.DeleteFunc(e.qps, func(q *verbs.QP) bool { return q == qp })
	r.must(qp.Close(), "close queue pair")
}

func (r *rig) endpoint(qp *verbs.QP) []byte {
	r.t.Helper()
	e, err := qp.Endpoint()
	r.must(err, "read endpoint")
	return e
}

func (r *rig) must(err error, what string) {
	r.t.Helper()
	if err != nil {
		r.t.Fatalf("%s: %v", what, err)
	}
}

func (r *rig) check(err error, what string) {
	r.t.Helper()
	if err != nil {
		r.t.Errorf("%s: %v", what, err)
	}
}

// now returns the time of the provider's clock.
func (r *rig) now() time.Duration {
	if r.p.Now != nil {
		return r.p.Now()
	}
	return time.Since(epoch)
}

var epoch = time.Now()

// poll moves a side's completions to its got, and returns their number.
func (r *rig) poll(e *side) int {
	r.t.Helper()
	n, err := e.cq.Poll(e.wc[:])
	r.must(err, "poll")
	e.got = append(e.got, e.wc[:n]...)
	return n
}

// rest lets other goroutines run between fruitless polls. It backs off so that a provider's other threads get the processor.
func (r *rig) rest(found int) {
	if r.p.Drive != nil {
		r.p.Drive()
	}
	if r.idle++; found > 0 {
		r.idle = 0
	}
	if r.idle < 64 || r.p.Drive != nil {
		runtime.Gosched()
	} else {
		time.Sleep(20 * time.Microsecond)
	}
}

// until polls both sides until cond holds.
func (r *rig) until(what string, cond func() bool) {
	r.t.Helper()
	r.loop(what, func() (int, bool) {
		if cond() {
			return 0, true
		}
		return r.poll(r.a) + r.poll(r.b), false
	})
}

// loop calls step until it is done. step reports the number of completions that it found and whether it is done.
func (r *rig) loop(what string, step func() (found int, done bool)) {
	r.t.Helper()
	for end := time.Now().Add(deadline); ; {
		found, done := step()
		if done {
			return
		}
		if time.Now().After(end) {
			r.t.Fatalf("after %v still not: %s; a has %+v, b has %+v", deadline, what, tail(r.a.got), tail(r.b.got))
		}
		r.rest(found)
	}
}

// progress lets a side move without taking any of its completions.
func (r *rig) progress(e *side) error {
	_, err := e.cq.Poll(e.wc[:0])
	return err
}

func tail(wc []verbs.WC) []verbs.WC { return wc[max(0, len(wc)-4):] }

// collect polls until each side has so many completions in all, and no more a little later.
func (r *rig) collect(a, b int) {
	r.t.Helper()
	r.until("all completions are there", func() bool { return len(r.a.got) >= a && len(r.b.got) >= b })
	if len(r.a.got) != a || len(r.b.got) != b {
		r.t.Fatalf("%d and %d completions, expected %d and %d: %+v, %+v", len(r.a.got), len(r.b.got), a, b, tail(r.a.got),
			tail(r.b.got))
	}
}

// pass polls both sides for so long on the provider's clock.
func (r *rig) pass(d time.Duration) {
	r.t.Helper()
	for end := r.now() + d; r.now() < end; {
		r.rest(r.poll(r.a) + r.poll(r.b))
	}
}

func (r *rig) post(qp *verbs.QP, wr ...verbs.SendWR) {
	r.t.Helper()
	n, err := qp.PostSend(wr)
	r.must(err, "post send")
	if n != len(wr) {
		r.t.Fatalf("posted %d of %d without an error", n, len(wr))
	}
}

func (r *rig) recv(qp *verbs.QP, wrID uint64, n int) {
	r.t.Helper()
	r.must(qp.PostRecv(wrID, n), "post receive")
}

// write returns a signaled write with immediate from an offset of a's buffer to an offset of b's.
func (r *rig) write(from, to, length int, imm uint32) verbs.SendWR {
	return write(r.a, r.b, from, to, length, imm)
}

func write(src, dst *side, from, to, length int, imm uint32) verbs.SendWR {
	return verbs.SendWR{
		WRID: uint64(imm), LAddr: src.mr.Addr + uint64(from), RAddr: dst.mr.Addr + uint64(to), Length: uint32(length),
		LKey: src.mr.LKey, RKey: dst.mr.RKey, Imm: imm, Opcode: verbs.OpWriteWithImm, Flags: verbs.SendSignaled,
	}
}

// expect compares the fields of a completion that are valid whatever its status.
func (r *rig) expect(got verbs.WC, wrID uint64, qp *verbs.QP, status verbs.Status) {
	r.t.Helper()
	if got.WRID != wrID || got.QPNum != qp.Num() || got.Status != status {
		r.t.Errorf("completion of work request %d on queue pair 0x%x: %s; expected %d on 0x%x: %s", got.WRID, got.QPNum,
			got.Status, wrID, qp.Num(), status)
	}
}

func (r *rig) expectRecv(got verbs.WC, wrID uint64, qp *verbs.QP, imm uint32, length int) {
	r.t.Helper()
	r.expect(got, wrID, qp, verbs.WCSuccess)
	if got.Opcode != verbs.WCRecvImm || got.Imm != imm || got.ByteLen != uint32(length) {
		r.t.Errorf("receive completion has opcode %d, immediate 0x%x, %d bytes; expected %d, 0x%x, %d", got.Opcode, got.Imm,
			got.ByteLen, verbs.WCRecvImm, imm, length)
	}
}

func (r *rig) expectState(qp *verbs.QP, s verbs.QPState) {
	r.t.Helper()
	if qp.State() != s {
		r.t.Errorf("queue pair 0x%x is in %v, expected %v", qp.Num(), qp.State(), s)
	}
}

// fill writes a pattern that a shift, a swap or a stale copy would break: every word is a hash of its index and the seed.
func fill(b []byte, seed uint64) {
	var word [8]byte
	for i := 0; i < len(b); i += 8 {
		binary.LittleEndian.PutUint64(word[:], pattern(seed, i))
		copy(b[i:], word[:])
	}
}

// differs returns the first index at which b is not fill's pattern, or -1.
func differs(b []byte, seed uint64) int {
	var word [8]byte
	for i := 0; i < len(b); i += 8 {
		binary.LittleEndian.PutUint64(word[:], pattern(seed, i))
		for k := 0; k < 8 && i+k < len(b); k++ {
			if b[i+k] != word[k] {
				return i + k
			}
		}
	}
	return -1
}

func pattern(seed uint64, i int) uint64 {
	z := (seed + uint64(i) + 1) * 0x9e3779b97f4a7c15
	z = (z ^ z>>29) * 0xbf58476d1ce4e5b9
	return z ^ z>>32
}

// pump reads the asynchronous events of devices, as every user of passive queue pairs must.
type pump struct {
	quit chan struct{}
	once sync.Once
	wg   sync.WaitGroup
	mu   sync.Mutex
	seen map[*verbs.Device][]verbs.AsyncEvent
}

func startPump(t *testing.T, devs ...*verbs.Device) *pump {
	p := &pump{quit: make(chan struct{}), seen: map[*verbs.Device][]verbs.AsyncEvent{}}
	for i, d := range devs {
		if i > 0 && d == devs[0] {
			continue
		}
		p.wg.Go(func() { p.run(t, d) })
	}
	return p
}

func (p *pump) run(t *testing.T, d *verbs.Device) {
	for {
		select {
		case <-p.quit:
			return
		default:
		}
		ev, ok, err := d.AsyncEvent(5 * time.Millisecond)
		if err != nil {
			t.Errorf("read asynchronous events: %v", err)
			return
		}
		if !ok {
			time.Sleep(time.Millisecond) // a simulated wait does not wait
			continue
		}
		p.mu.Lock()
		p.seen[d] = append(p.seen[d], ev)
		p.mu.Unlock()
	}
}

// saw reports whether a device raised an event that satisfies such.
func (p *pump) saw(d *verbs.Device, such func(verbs.AsyncEvent) bool) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.ContainsFunc(p.seen[d], such)
}

// stop ends the pump and waits for it.
func (p *pump) stop() {
	p.once.Do(func() { close(p.quit) })
	p.wg.Wait()
}
