//go:build !asan

package verbs_test

import (
	"testing"

	"github.com/rackweave/rackweave/cgo/fabric/simfabric"
	"github.com/rackweave/rackweave/verbs"
	"github.com/rackweave/rackweave/verbs/verbstest"
)

// Under AddressSanitizer the handles that MapAll hands to C are allocated.
func TestMapAllAllocatesNothing(t *testing.T) {
	world, err := simfabric.New(1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(world.Close)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	open := func() (*verbs.PD, *verbs.CQ) {
		dev, err := verbs.Open(simfabric.Provider, "", world.Options()+",maps=1")
		must(err)
		t.Cleanup(func() { dev.Close() })
		pd, err := dev.AllocPD()
		must(err)
		t.Cleanup(func() { pd.Close() })
		cq, err := dev.CreateCQ(16)
		must(err)
		t.Cleanup(func() { cq.Close() })
		return pd, cq
	}
	create := func(pd *verbs.PD, cq *verbs.CQ) (*verbs.QP, []byte) {
		qp, err := pd.CreateQP(verbs.QPConfig{CQ: cq, MaxSendWR: 4, MaxRecvWR: 4})
		must(err)
		t.Cleanup(func() { qp.Close() })
		endpoint, err := qp.Endpoint()
		must(err)
		return qp, endpoint
	}
	pd, cq := open()
	peerPD, peerCQ := open()
	b := verbstest.Private(t, 4096)
	mr, err := peerPD.RegisterMR(b.Addr, 4096, verbs.AccessLocalWrite|verbs.AccessRemoteWrite, -1, 0)
	must(err)
	t.Cleanup(func() { peerPD.DeregisterMR(mr) })
	const n = 70 // more than one call's
	qps, keys, addrs, out := make([]*verbs.QP, n), make([]uint32, n), make([]uint64, n), make([]uint64, n)
	for i := range qps {
		qp, endpoint := create(pd, cq)
		peer, peerEndpoint := create(peerPD, peerCQ)
		must(peer.Connect(endpoint, verbs.ConnectConfig{}))
		must(qp.Connect(peerEndpoint, verbs.ConnectConfig{Active: true}))
		qps[i], keys[i], addrs[i] = qp, mr.RKey, mr.Addr
	}
	allocs := testing.AllocsPerRun(50, func() {
		if !verbs.MapAll(qps, keys, addrs, 4096, out) {
			t.Fatal("not all is mapped")
		}
	})
	if allocs != 0 {
		t.Errorf("%v allocations", allocs)
	}
}
