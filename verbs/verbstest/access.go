package verbstest

import (
	"math"
	"slices"
	"testing"
	"time"

	"github.com/rackweave/rackweave/verbs"
)

// The middle of four pages is registered, so that the pages around it show stray writes.
const (
	pageBytes   = 4096
	regionBytes = 2 * pageBytes
)

// refused posts a bad write, followed by a good one, on a queue pair of its own. It expects that the first fails with one of the
// statuses, the second is flushed, and neither writes anything.
func (r *rig) refused(bad verbs.SendWR, target Buffer, statuses ...verbs.Status) {
	r.t.Helper()
	a, b := r.connect(shape{connect: verbs.ConnectConfig{AckTimeout: 200 * time.Millisecond}})
	fill(target.Bytes(), 42)
	fill(r.b.buf.Bytes(), 43)
	r.recv(b, 1, 2)
	r.a.got, r.b.got = r.a.got[:0], r.b.got[:0]
	bad.WRID, bad.Opcode, bad.Flags = 1, verbs.OpWriteWithImm, bad.Flags|verbs.SendSignaled
	r.post(a, bad, r.write(0, 0, 64, 2))
	r.until("both sends ended", func() bool { return len(r.a.got) >= 2 })
	status := statuses[0]
	if slices.Contains(statuses, r.a.got[0].Status) {
		status = r.a.got[0].Status
	}
	r.expect(r.a.got[0], 1, a, status)
	r.expect(r.a.got[1], 2, a, verbs.WCFlushErr)
	r.expectState(a, verbs.StateErr)
	r.pass(2 * time.Millisecond)
	for _, wc := range r.b.got {
		if wc.Status == verbs.WCSuccess {
			r.t.Errorf("the target had a completion: %+v", wc)
		}
	}
	if i := differs(target.Bytes(), 42); i >= 0 {
		r.t.Errorf("byte %d of the target changed", i-pageBytes)
	}
	if i := differs(r.b.buf.Bytes(), 43); i >= 0 {
		r.t.Errorf("byte %d behind the flushed write changed", i)
	}
}

func remoteAccessIsChecked(t *testing.T, p Provider) {
	const rw = verbs.AccessLocalWrite | verbs.AccessRemoteWrite
	r := newRig(t, p, shape{cqe: 4096, pairs: 1})
	target := p.Memory(t, 4*pageBytes)
	region := target.part(pageBytes, regionBytes)
	good := r.register(r.b.pd, region, rw)
	localOnly := r.register(r.b.pd, region, verbs.AccessLocalWrite)
	otherPD, err := r.b.dev.AllocPD()
	r.must(err, "allocate protection domain")
	t.Cleanup(func() { r.check(otherPD.Close(), "close protection domain") })
	foreign := r.register(otherPD, region, rw)
	stale, err := r.b.pd.RegisterMR(region.Addr, regionBytes, rw, region.FD, region.Offset)
	r.must(err, "register memory")
	r.must(r.b.pd.DeregisterMR(stale), "deregister memory")
	again := r.register(r.b.pd, region, rw)

	r.recv(r.b.qps[0], 1, 3)
	fill(r.a.buf.Bytes()[:regionBytes], 1)
	whole := r.write(0, 0, regionBytes, 1)
	whole.RAddr, whole.RKey = good.Addr, good.RKey
	first, last := whole, whole
	first.Length, last.Length, last.RAddr, last.RKey = 1, 1, good.Addr+regionBytes-1, again.RKey
	r.post(r.a.qps[0], whole, first, last)
	r.collect(3, 3)
	r.expect(r.a.got[2], last.WRID, r.a.qps[0], verbs.WCSuccess)

	cases := []struct {
		name   string
		addr   uint64
		length uint32
		key    uint32
	}{
		{"deregistered, while another region covers the range", good.Addr, 16, stale.RKey},
		{"a key that was never given", good.Addr, 16, good.RKey ^ 0x00ffff00},
		{"key 0", good.Addr, 16, 0},
		{"before the region", good.Addr - 64, 64, good.RKey},
		{"behind the region", good.Addr + regionBytes, 64, good.RKey},
		{"across its start", good.Addr - 1, 64, good.RKey},
		{"across its end", good.Addr + regionBytes - 63, 64, good.RKey},
		{"longer than the region", good.Addr, regionBytes + 1, good.RKey},
		{"wrapping around 2^64", math.MaxUint64 - 7, 16, good.RKey},
		{"address 0", 0, 16, good.RKey},
		{"no remote write access", good.Addr, 16, localOnly.RKey},
		{"of another protection domain", good.Addr, 16, foreign.RKey},
	}
	if r.p.Name != verbs.ProviderIBV { // a NIC cannot check it
		const peer = 7
		theirs := r.register(r.b.pd, region, rw|verbs.AccessForPeer(peer))
		cases = append(cases, struct {
			name   string
			addr   uint64
			length uint32
			key    uint32
		}{"for another peer", good.Addr, 16, theirs.RKey})
		a, b := r.connect(shape{peer: peer})
		r.recv(b, 1, 1)
		own := r.write(0, 0, 16, 1)
		own.RAddr, own.RKey = theirs.Addr, theirs.RKey
		r.post(a, own)
		r.a.got, r.b.got = r.a.got[:0], r.b.got[:0]
		r.collect(1, 1)
		r.expect(r.a.got[0], own.WRID, a, verbs.WCSuccess)
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			onOneThread(t)
			in := *r
			in.t = t
			wr := in.write(0, 0, int(c.length), 1)
			wr.RAddr, wr.RKey = c.addr, c.key
			in.refused(wr, target, verbs.WCRemAccessErr)
		})
	}
}

func localAccessIsChecked(t *testing.T, p Provider) {
	r := newRig(t, p, shape{cqe: 4096})
	source, target := p.Memory(t, 4*pageBytes), p.Memory(t, 4*pageBytes)
	region := source.part(pageBytes, regionBytes)
	mr := r.register(r.a.pd, region, verbs.AccessLocalWrite)
	remote := r.register(r.b.pd, target, verbs.AccessLocalWrite|verbs.AccessRemoteWrite)
	otherPD, err := r.a.dev.AllocPD()
	r.must(err, "allocate protection domain")
	t.Cleanup(func() { r.check(otherPD.Close(), "close protection domain") })
	foreign := r.register(otherPD, region, verbs.AccessLocalWrite)
	stale, err := r.a.pd.RegisterMR(region.Addr, regionBytes, verbs.AccessLocalWrite, region.FD, region.Offset)
	r.must(err, "register memory")
	r.must(r.a.pd.DeregisterMR(stale), "deregister memory")
	again := r.register(r.a.pd, region, verbs.AccessLocalWrite)

	a, b := r.connect(shape{})
	r.recv(b, 1, 2)
	for _, key := range []uint32{mr.LKey, again.LKey} {
		r.post(a, verbs.SendWR{
			LAddr: mr.Addr, LKey: key, Length: regionBytes, RAddr: remote.Addr, RKey: remote.RKey,
			Opcode: verbs.OpWriteWithImm, Flags: verbs.SendSignaled,
		})
	}
	r.collect(2, 2)
	r.expect(r.a.got[1], 0, a, verbs.WCSuccess)

	for _, c := range []struct {
		name string
		addr uint64
		key  uint32
	}{
		{"deregistered, while another region covers the range", mr.Addr, stale.LKey},
		{"a key that was never given", mr.Addr, mr.LKey ^ 0x00ffff00},
		{"before the region", mr.Addr - 64, mr.LKey},
		{"across its end", mr.Addr + regionBytes - 63, mr.LKey},
		{"wrapping around 2^64", math.MaxUint64 - 7, mr.LKey},
		{"of another protection domain", mr.Addr, foreign.LKey},
	} {
		t.Run(c.name, func(t *testing.T) {
			onOneThread(t)
			in := *r
			in.t = t
			in.refused(verbs.SendWR{
				LAddr: c.addr, LKey: c.key, Length: 64, RAddr: remote.Addr, RKey: remote.RKey,
			}, target, append([]verbs.Status{verbs.WCLocProtErr}, p.LocalKeyErrors...)...)
		})
	}
}
