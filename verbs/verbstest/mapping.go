package verbstest

import (
	"errors"
	"strings"
	"syscall"
	"testing"

	"github.com/rackweave/rackweave/verbs"
)

// placed returns the write that announces length bytes stored at an offset of the peer's buffer.
func placed(dst *side, to, length int, imm uint32) verbs.SendWR {
	return verbs.SendWR{
		WRID: uint64(imm), RAddr: dst.mr.Addr + uint64(to), RKey: dst.mr.RKey, Length: uint32(length), Imm: imm,
		Opcode: verbs.OpWriteWithImm, Flags: verbs.SendSignaled | verbs.SendPlaced,
	}
}

// mapped returns where a range of the peer's memory is mapped, or 0.
func mapped(qp *verbs.QP, rkey uint32, raddr uint64, length uint32) uint64 {
	at := []uint64{1}
	if verbs.MapAll([]*verbs.QP{qp}, []uint32{rkey}, []uint64{raddr}, length, at) != (at[0] != 0) {
		panic("MapAll contradicts itself")
	}
	return at[0]
}

// mappingRig returns a rig of pairs whose device maps the peer's memory. If the device does not, it checks that the device refuses
// to, and returns nil.
func mappingRig(t *testing.T, p Provider, s shape) *rig {
	r := newRig(t, p, s)
	if r.a.dev.Attr().Has(verbs.DevMaps) {
		return r
	}
	a := r.a.qps[0]
	if at := mapped(a, r.b.mr.RKey, r.b.mr.Addr, 64); at != 0 {
		t.Errorf("a device without DevMaps maps memory of the peer at 0x%x", at)
	}
	n, err := a.PostSend([]verbs.SendWR{placed(r.b, 0, 64, 1)})
	if n != 0 || !errors.Is(err, syscall.EINVAL) || !strings.Contains(err.Error(), "does not map") {
		t.Errorf("a placed write without DevMaps: %d posted, error %v; expected EINVAL that says why", n, err)
	}
	return nil
}

func placedArrives(t *testing.T, p Provider) {
	const length = 32 << 10
	for _, byReference := range []bool{false, true} {
		r := mappingRig(t, p, shape{pairs: 3, bytes: 256 << 10, byReference: byReference})
		if r == nil {
			return
		}
		rkeys, raddrs, where := make([]uint32, 3), make([]uint64, 3), make([]uint64, 3)
		for round := range 3 {
			r.a.got, r.b.got = r.a.got[:0], r.b.got[:0]
			for i := range rkeys {
				rkeys[i], raddrs[i] = r.b.mr.RKey, r.b.mr.Addr+uint64(i*length+round*64)
				r.recv(r.b.qps[i], 7, 1)
			}
			if !verbs.MapAll(r.a.qps, rkeys, raddrs, length, where) {
				t.Fatalf("round %d: not all is mapped: %x", round, where)
			}
			for i, qp := range r.a.qps {
				fill(at(where[i], length), uint64(round*8+i))
				r.post(qp, placed(r.b, i*length+round*64, length, uint32(i)))
			}
			r.collect(3, 3)
			for _, wc := range r.b.got {
				i := int(wc.Imm)
				r.expectRecv(wc, 7, r.b.qps[i], uint32(i), length)
				if wc.Addr != 0 || wc.SrcAddr != 0 {
					t.Errorf("a placed payload is said to lie elsewhere: %+v", wc)
				}
				if k := differs(r.b.buf.Bytes()[i*length+round*64:][:length], uint64(round*8+i)); k >= 0 {
					t.Errorf("round %d: byte %d of message %d differs", round, k, i)
				}
			}
		}
	}
}

func mappingIsChecked(t *testing.T, p Provider) {
	r := mappingRig(t, p, shape{pairs: 1})
	if r == nil {
		return
	}
	target := p.Memory(t, 4*pageBytes)
	good := r.register(r.b.pd, target.part(pageBytes, regionBytes), verbs.AccessLocalWrite|verbs.AccessRemoteWrite)
	local := r.register(r.b.pd, target.part(pageBytes, regionBytes), verbs.AccessLocalWrite)
	if mapped(r.a.qps[0], good.RKey, good.Addr, regionBytes) == 0 {
		t.Fatal("a whole region is not mapped")
	}
	stale, err := r.b.pd.RegisterMR(target.part(pageBytes, regionBytes).Addr, regionBytes,
		verbs.AccessLocalWrite|verbs.AccessRemoteWrite, target.FD, target.Offset+pageBytes)
	r.must(err, "register memory")
	if mapped(r.a.qps[0], stale.RKey, stale.Addr, regionBytes) == 0 {
		t.Fatal("a region registered after the connection is not mapped")
	}
	r.must(r.b.pd.DeregisterMR(stale), "deregister memory")
	for _, c := range []struct {
		name   string
		addr   uint64
		length uint32
		key    uint32
	}{
		{"deregistered, while another region covers the range", good.Addr, 16, stale.RKey},
		{"a key that was never given", good.Addr, 16, good.RKey ^ 0x00ffff00},
		{"key 0", good.Addr, 16, 0},
		{"across its start", good.Addr - 1, 64, good.RKey},
		{"across its end", good.Addr + regionBytes - 63, 64, good.RKey},
		{"wrapping around 2^64", ^uint64(7), 16, good.RKey},
		{"no remote write access", good.Addr, 16, local.RKey},
	} {
		t.Run(c.name, func(t *testing.T) {
			in := *r
			in.t = t
			if at := mapped(r.a.qps[0], c.key, c.addr, c.length); at != 0 {
				t.Errorf("it is mapped at 0x%x", at)
			}
			wr := placed(r.b, 0, int(c.length), 1)
			wr.RAddr, wr.RKey = c.addr, c.key
			in.refused(wr, target, verbs.WCRemAccessErr)
		})
	}
}

// mappingKeepsOrder makes a write wait for a receive. Data stored through a mapping must not land before it.
func mappingKeepsOrder(t *testing.T, p Provider) {
	r := mappingRig(t, p, shape{pairs: 1})
	if r == nil {
		return
	}
	a, b := r.a.qps[0], r.b.qps[0]
	r.post(a, r.write(0, 0, 64, 1), placed(r.b, 64, 0, 2))
	if r.a.dev.Attr().Has(verbs.DevCopiesAtPost) && p.Drive != nil {
		r.recv(b, 1, 2) // the simulation places data at once, receive or not, so nothing waits
		r.collect(2, 2)
		return
	}
	if at := mapped(a, r.b.mr.RKey, r.b.mr.Addr, 64); at != 0 {
		t.Errorf("memory is mapped at 0x%x while a write waits", at)
	}
	r.recv(b, 1, 2)
	r.collect(2, 2)
	if mapped(a, r.b.mr.RKey, r.b.mr.Addr, 64) == 0 {
		t.Error("nothing waits, and memory is not mapped")
	}
}

func placedIsChecked(t *testing.T, p Provider) {
	r := mappingRig(t, p, shape{pairs: 1, inline: 64})
	if r == nil {
		return
	}
	a, b := r.a.qps[0], r.b.qps[0]
	plain, inline, unknown := placed(r.b, 0, 64, 1), placed(r.b, 0, 64, 1), placed(r.b, 0, 64, 1)
	plain.Opcode = verbs.OpWrite
	inline.Flags |= verbs.SendInline
	unknown.Flags |= 1 << 15
	for _, wr := range []verbs.SendWR{plain, inline, unknown} {
		if n, err := a.PostSend([]verbs.SendWR{wr}); n != 0 || !errors.Is(err, syscall.EINVAL) {
			t.Errorf("opcode %d with flags 0x%x: %d posted, error %v; expected EINVAL", wr.Opcode, wr.Flags, n, err)
		}
	}
	r.recv(b, 1, 1)
	r.post(a, r.write(0, 0, 64, 9))
	r.collect(1, 1)
	r.expectRecv(r.b.got[0], 1, b, 9, 64)
	r.must(a.Fail(), "fail queue pair")
	if at := mapped(a, r.b.mr.RKey, r.b.mr.Addr, 64); at != 0 {
		t.Errorf("a queue pair in error maps memory at 0x%x", at)
	}
}
