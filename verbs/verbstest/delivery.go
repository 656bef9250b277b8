package verbstest

import (
	"math"
	"testing"

	"github.com/rackweave/rackweave/verbs"
)

func placesPayload(t *testing.T, p Provider) {
	const size = 256 << 10
	r := newRig(t, p, shape{pairs: 1, bytes: size})
	a, b := r.a.qps[0], r.b.qps[0]
	for i, c := range []struct {
		from, to, length int
		imm              uint32
		wrID             uint64
	}{
		{0, 0, 1, 0, 0},
		{1, 3, 3, math.MaxUint32, math.MaxUint64},
		{64, 64, 64, 0x01020304, 1 << 63},
		{13, 4091, 17, 0x80000000, 7},
		{4095, 1, 4097, 1, 8},
		{0, 32768, 32768, 2, 9},
		{77, 99, 65537, 3, 10},
		{0, 0, size, 4, 11},
	} {
		seed := uint64(1000 + i)
		fill(r.a.buf.Bytes(), seed)
		clear(r.b.buf.Bytes())
		r.recv(b, 500+c.wrID, 1)
		wr := r.write(c.from, c.to, c.length, c.imm)
		wr.WRID = c.wrID
		r.a.got, r.b.got = r.a.got[:0], r.b.got[:0]
		r.post(a, wr)
		r.collect(1, 1)
		r.expect(r.a.got[0], c.wrID, a, verbs.WCSuccess)
		if r.a.got[0].Opcode != verbs.WCSend {
			t.Errorf("the sender's completion has opcode %d, expected %d", r.a.got[0].Opcode, verbs.WCSend)
		}
		r.expectRecv(r.b.got[0], 500+c.wrID, b, c.imm, c.length)
		if wc := r.b.got[0]; wc.Addr != 0 || wc.SrcAddr != 0 || wc.SrcRKey != 0 {
			t.Errorf("a delivery in place names a reference: %+v", wc)
		}
		want := make([]byte, size)
		copy(want[c.to:], r.a.buf.Bytes()[c.from:c.from+c.length])
		for k, v := range r.b.buf.Bytes() {
			if v != want[k] {
				t.Fatalf("%d bytes from %d to %d: byte %d is 0x%x, expected 0x%x", c.length, c.from, c.to, k, v, want[k])
			}
		}
	}
}

func carriesImmediateAlone(t *testing.T, p Provider) {
	r := newRig(t, p, shape{pairs: 1})
	fill(r.b.buf.Bytes(), 5)
	r.recv(r.b.qps[0], 1, 2)
	with, without := r.write(0, 0, 0, 0xabcdef01), verbs.SendWR{WRID: 9, Imm: 7, Opcode: verbs.OpWriteWithImm,
		Flags: verbs.SendSignaled}
	r.post(r.a.qps[0], with, without)
	r.collect(2, 2)
	r.expectRecv(r.b.got[0], 1, r.b.qps[0], 0xabcdef01, 0)
	r.expectRecv(r.b.got[1], 1, r.b.qps[0], 7, 0)
	r.expect(r.a.got[1], 9, r.a.qps[0], verbs.WCSuccess)
	if i := differs(r.b.buf.Bytes(), 5); i >= 0 {
		t.Errorf("byte %d of the target changed", i)
	}
}

func arrivesWhole(t *testing.T, p Provider) {
	const length = 3<<20 + 1
	r := newRig(t, p, shape{pairs: 1, bytes: 4 << 20})
	fill(r.a.buf.Bytes(), 6)
	r.recv(r.b.qps[0], 1, 2)
	r.post(r.a.qps[0], r.write(0, 0, length, 1), r.write(0, 0, length, 2))
	r.collect(2, 2)
	r.expectRecv(r.b.got[1], 1, r.b.qps[0], 2, length)
	if i := differs(r.b.buf.Bytes()[:length], 6); i >= 0 {
		t.Errorf("byte %d differs", i)
	}
	if r.b.buf.Bytes()[length] != 0 {
		t.Error("the byte after the message changed")
	}
}

func plainWriteIsVisible(t *testing.T, p Provider) {
	const rounds, writes, piece = 20, 7, 1000
	r := newRig(t, p, shape{pairs: 1})
	for round := range rounds {
		fill(r.a.buf.Bytes(), uint64(round))
		r.recv(r.b.qps[0], uint64(round), 1)
		list := make([]verbs.SendWR, 0, writes+1)
		for i := range writes {
			wr := r.write(i*piece, i*piece, piece, 0xbad)
			wr.Opcode, wr.Flags = verbs.OpWrite, 0
			list = append(list, wr)
		}
		r.post(r.a.qps[0], append(list, r.write(0, 0, 0, uint32(round)))...)
		r.collect(round+1, round+1)
		r.expectRecv(r.b.got[round], uint64(round), r.b.qps[0], uint32(round), 0)
		if i := differs(r.b.buf.Bytes()[:writes*piece], uint64(round)); i >= 0 {
			t.Fatalf("round %d: byte %d is not there yet", round, i)
		}
	}
}

// stream is one direction of one queue pair. It is a window of slots. A slot is reused only when the receiver has checked it and
// the sender has a completion at or past it.
type stream struct {
	src, dst                  *side
	sqp, rqp                  *verbs.QP
	window, base, id          int
	sent, completed, received int
}

const (
	streamMessages = 1000
	streamSlot     = 2048
)

func (s *stream) length(seq int) int  { return (seq*607 + s.id*131) % (streamSlot + 1) }
func (s *stream) seed(seq int) uint64 { return uint64(s.id)<<32 | uint64(seq) }
func (s *stream) at(seq int) int      { return s.base + seq%s.window*streamSlot }

// fillWindow posts one list of requests that fill the window. Every fourth and the last are signaled.
func (s *stream) fillWindow(r *rig, list []verbs.SendWR) {
	list = list[:0]
	for s.sent+len(list) < min(s.received, s.completed)+s.window && s.sent+len(list) < streamMessages {
		seq := s.sent + len(list)
		fill(s.src.buf.Bytes()[s.at(seq):s.at(seq)+s.length(seq)], s.seed(seq))
		wr := write(s.src, s.dst, s.at(seq), s.at(seq), s.length(seq), uint32(seq))
		if seq%4 != 3 {
			wr.Flags = 0
		}
		list = append(list, wr)
	}
	if len(list) == 0 {
		return
	}
	list[len(list)-1].Flags = verbs.SendSignaled
	r.post(s.sqp, list...)
	s.sent += len(list)
}

func (s *stream) take(r *rig, wc verbs.WC) {
	r.t.Helper()
	if wc.Status != verbs.WCSuccess {
		r.t.Fatalf("stream %d: work request %d: %s", s.id, wc.WRID, wc.Status)
	}
	if wc.Opcode == verbs.WCSend {
		if int(wc.WRID) < s.completed {
			r.t.Fatalf("stream %d: send %d completed after %d", s.id, wc.WRID, s.completed-1)
		}
		s.completed = int(wc.WRID) + 1
		return
	}
	seq := s.received
	if int(wc.Imm) != seq || int(wc.ByteLen) != s.length(seq) {
		r.t.Fatalf("stream %d: immediate %d with %d bytes, expected %d with %d", s.id, wc.Imm, wc.ByteLen, seq, s.length(seq))
	}
	if i := differs(s.dst.buf.Bytes()[s.at(seq):s.at(seq)+s.length(seq)], s.seed(seq)); i >= 0 {
		r.t.Fatalf("stream %d: byte %d of message %d differs", s.id, i, seq)
	}
	s.received++
	r.recv(s.rqp, 1, 1)
}

func orderHolds(t *testing.T, p Provider) {
	windows := []int{8, 16, 32, 64}
	perStream := 64 * streamSlot
	r := newRig(t, p, shape{pairs: len(windows), send: 64, recv: 64, bytes: 2 * len(windows) * perStream})
	type end struct {
		side   *side
		qp     uint32
		opcode verbs.WCOpcode
	}
	streams := map[end]*stream{}
	for i, window := range windows {
		for dir, s := range []*stream{
			{src: r.a, dst: r.b, sqp: r.a.qps[i], rqp: r.b.qps[i]},
			{src: r.b, dst: r.a, sqp: r.b.qps[i], rqp: r.a.qps[i]},
		} {
			s.id, s.window = 2*i+dir, window
			s.base = s.id * perStream
			streams[end{s.src, s.sqp.Num(), verbs.WCSend}] = s
			streams[end{s.dst, s.rqp.Num(), verbs.WCRecvImm}] = s
			r.recv(s.rqp, 1, window)
		}
	}
	list := make([]verbs.SendWR, 0, 64)
	r.until("every stream is through", func() bool {
		for _, e := range []*side{r.a, r.b} {
			for _, wc := range e.got {
				streams[end{e, wc.QPNum, wc.Opcode}].take(r, wc)
			}
			e.got = e.got[:0]
		}
		done := true
		for _, s := range streams {
			s.fillWindow(r, list)
			done = done && s.received == streamMessages && s.completed == streamMessages
		}
		return done
	})
}

func listsPost(t *testing.T, p Provider) {
	const most = 128
	r := newRig(t, p, shape{pairs: 1, send: most, recv: most})
	fill(r.a.buf.Bytes(), 3)
	list := make([]verbs.SendWR, 0, most)
	imm := uint32(0)
	for _, n := range []int{1, 2, 3, 5, 8, 16, 31, 64, 100, 127, 128} {
		list = list[:0]
		for i := range n {
			list = append(list, r.write(i*32, i*32, 32, imm+uint32(i)))
		}
		clear(r.b.buf.Bytes())
		r.a.got, r.b.got = r.a.got[:0], r.b.got[:0]
		r.recv(r.b.qps[0], uint64(n), n)
		r.post(r.a.qps[0], list...)
		r.collect(n, n)
		for i := range n {
			r.expect(r.a.got[i], uint64(imm)+uint64(i), r.a.qps[0], verbs.WCSuccess)
			r.expectRecv(r.b.got[i], uint64(n), r.b.qps[0], imm+uint32(i), 32)
		}
		if i := differs(r.b.buf.Bytes()[:32*n], 3); i >= 0 {
			t.Fatalf("list of %d: byte %d differs", n, i)
		}
		imm += uint32(n)
	}
}

func inlineSourceIsFree(t *testing.T, p Provider) {
	r := newRig(t, p, shape{})
	most := int(r.a.dev.Attr().MaxInline)
	if most == 0 {
		t.Log("the device has no inline sends: they are refused")
	}
	inline := min(most, 64)
	a, b := r.connect(shape{inline: inline})
	r.recv(b, 1, 16)
	for i := range 16 {
		wr := r.write(0, i*inline, inline, uint32(i))
		wr.LKey = 0xdead // not read
		wr.Flags |= verbs.SendInline
		fill(r.a.buf.Bytes()[:inline], uint64(i))
		r.post(a, wr)
		clear(r.a.buf.Bytes()[:inline])
	}
	r.collect(16, 16)
	for i := range 16 {
		if k := differs(r.b.buf.Bytes()[i*inline:(i+1)*inline], uint64(i)); k >= 0 {
			t.Errorf("message %d: byte %d differs", i, k)
		}
	}
	wr := r.write(0, 0, most+1, 0)
	wr.Flags |= verbs.SendInline
	if n, err := a.PostSend([]verbs.SendWR{wr}); err == nil || n != 0 {
		t.Errorf("an inline send of %d bytes, past the device's %d: posted %d, error %v", most+1, most, n, err)
	}
}

func queuePairsShareFairly(t *testing.T, p Provider) {
	const pairs, window, total = 32, 8, 32 * 100
	r := newRig(t, p, shape{pairs: pairs, send: window, recv: window})
	index, received, all := map[uint32]int{}, [pairs]int{}, 0
	for i := range pairs {
		index[r.a.qps[i].Num()], index[r.b.qps[i].Num()] = i, i
		r.recv(r.b.qps[i], 0, window)
		for range window {
			r.post(r.a.qps[i], r.write(64*i, 64*i, 64, 1))
		}
	}
	r.until("enough messages arrived", func() bool {
		for _, wc := range r.b.got {
			i := index[wc.QPNum]
			r.expectRecv(wc, 0, r.b.qps[i], 1, 64)
			r.recv(r.b.qps[i], 0, 1)
			received[i]++
			all++
		}
		for _, wc := range r.a.got {
			r.post(r.a.qps[index[wc.QPNum]], r.write(0, 0, 64, 1))
		}
		r.a.got, r.b.got = r.a.got[:0], r.b.got[:0]
		return all >= total
	})
	for i, n := range received {
		if n < total/pairs/8 {
			t.Errorf("queue pair %d had %d of %d messages, a fair share is %d", i, n, all, total/pairs)
		}
	}
}

func nothingAllocates(t *testing.T, p Provider) {
	const batch = 8
	r := newRig(t, p, shape{pairs: 1})
	r.pump.stop() // its own allocations would be counted
	a, b := r.a.qps[0], r.b.qps[0]
	var list [batch]verbs.SendWR
	for i := range list {
		list[i] = r.write(0, 0, 1024, uint32(i))
	}
	allocs := testing.AllocsPerRun(50, func() {
		err := b.PostRecv(1, batch)
		_, serr := a.PostSend(list[:])
		for sends, recvs := 0, 0; err == nil && serr == nil && (sends < batch || recvs < batch); {
			var n int
			n, err = r.a.cq.Poll(r.a.wc[:])
			sends += n
			n, serr = r.b.cq.Poll(r.b.wc[:])
			recvs += n
			r.rest(1)
		}
		if err != nil || serr != nil {
			t.Fatal(err, serr)
		}
	})
	if allocs != 0 {
		t.Errorf("%v allocations for %d messages", allocs, batch)
	}
}
