package verbstest

import (
	"testing"
	"unsafe"

	"github.com/rackweave/rackweave/verbs"
)

// referenceRig returns a rig of one by-reference pair. If the device delivers in place only, it checks that the device ignores the
// request for references, and returns nil.
func referenceRig(t *testing.T, p Provider) *rig {
	r := newRig(t, p, shape{pairs: 1, byReference: true, bytes: 256 << 10})
	if r.a.dev.Attr().Has(verbs.DevByReference) {
		return r
	}
	fill(r.a.buf.Bytes(), 1)
	r.recv(r.b.qps[0], 1, 1)
	r.post(r.a.qps[0], r.write(0, 64, 32<<10, 1))
	r.collect(1, 1)
	if wc := r.b.got[0]; wc.Addr != 0 || wc.SrcAddr != 0 || differs(r.b.buf.Bytes()[64:64+32<<10], 1) >= 0 {
		t.Errorf("a device without DevByReference did not deliver in place: %+v", wc)
	}
	return nil
}

func byReferenceDelivers(t *testing.T, p Provider) {
	r := referenceRig(t, p)
	if r == nil {
		return
	}
	a, b := r.a.qps[0], r.b.qps[0]
	for i, c := range []struct{ from, to, length int }{{0, 0, 32 << 10}, {4096, 0, 4096}, {32 << 10, 64 << 10, 128 << 10},
		{12345, 4, 999}} {
		fill(r.a.buf.Bytes()[c.from:c.from+c.length], uint64(i))
		r.recv(b, 1, 1)
		r.post(a, r.write(c.from, c.to, c.length, uint32(i)))
		r.collect(i+1, i+1)
		wc := r.b.got[i]
		r.expectRecv(wc, 1, b, uint32(i), c.length)
		if wc.Addr == 0 || wc.SrcAddr != r.a.mr.Addr+uint64(c.from) {
			t.Fatalf("message %d: it lies at 0x%x here and 0x%x there, expected 0x%x there", i, wc.Addr, wc.SrcAddr,
				r.a.mr.Addr+uint64(c.from))
		}
		if k := differs(at(wc.Addr, c.length), uint64(i)); k >= 0 {
			t.Errorf("message %d: byte %d differs", i, k)
		}
	}
	n := len(r.b.got)
	r.recv(b, 1, 1)
	r.post(a, r.write(0, 0, 0, 99))
	r.collect(n+1, n+1)
	r.expectRecv(r.b.got[n], 1, b, 99, 0)
}

// at returns the memory to which a completion points.
func at(addr uint64, length int) []byte {
	return unsafe.Slice(*(**byte)(unsafe.Pointer(&addr)), length)
}

func byReferenceReply(t *testing.T, p Provider) {
	const length = 32 << 10
	r := referenceRig(t, p)
	if r == nil {
		return
	}
	a, b := r.a.qps[0], r.b.qps[0]
	r.recv(a, 2, 1)
	r.recv(b, 1, 1)
	r.post(a, r.write(4096, 0, length, 1))
	r.collect(1, 1)
	fill(r.b.buf.Bytes()[:length], 77)
	wc := r.b.got[0]
	reply := write(r.b, r.a, 0, 0, length, 2)
	reply.RAddr, reply.RKey = wc.SrcAddr, wc.SrcRKey
	r.post(b, reply)
	r.collect(2, 2)
	for _, wc := range append(r.a.got, r.b.got...) {
		if wc.Status != verbs.WCSuccess {
			t.Errorf("work request %d: %s", wc.WRID, wc.Status)
		}
		if wc.Opcode != verbs.WCRecvImm || wc.QPNum != a.Num() {
			continue
		}
		got := r.a.buf.Bytes()[4096 : 4096+length]
		if wc.Addr != 0 {
			got = at(wc.Addr, length)
		}
		if k := differs(got, 77); k >= 0 {
			t.Errorf("byte %d of the reply differs", k)
		}
	}
}

func byReferenceChecks(t *testing.T, p Provider) {
	r := referenceRig(t, p)
	if r == nil {
		return
	}
	target := p.Memory(t, 4*pageBytes)
	region := r.register(r.b.pd, target.part(pageBytes, regionBytes), verbs.AccessLocalWrite|verbs.AccessRemoteWrite)
	for i, c := range []struct {
		addr uint64
		key  uint32
	}{{region.Addr, 0}, {region.Addr - 1, region.RKey}, {region.Addr + regionBytes - 99, region.RKey}} {
		a, b := r.connect(shape{byReference: true, connect: quick})
		r.a.got, r.b.got = r.a.got[:0], r.b.got[:0]
		r.recv(b, 1, 1)
		wr := r.write(0, 0, 100, uint32(i))
		wr.RAddr, wr.RKey = c.addr, c.key
		r.post(a, wr)
		r.until("the send ended", func() bool { return len(r.a.got) >= 1 })
		r.expect(r.a.got[0], uint64(i), a, verbs.WCRemAccessErr)
	}
}
