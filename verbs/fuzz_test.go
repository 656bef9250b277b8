package verbs_test

import (
	"slices"
	"testing"
	"time"

	"github.com/rackweave/rackweave/cgo/fabric/simfabric"
	"github.com/rackweave/rackweave/verbs"
)

// Endpoints come from the network: whatever is in one, connecting to it answers within its deadline, and the queue pair can
// still be closed.

func FuzzEndpointSim(f *testing.F) {
	fuzzEndpoint(f, simfabric.Provider, true)
}

func FuzzEndpointSHM(f *testing.F) {
	fuzzEndpoint(f, verbs.ProviderSHM, true)
}

// Passive only: an active one would go wherever a damaged address points.
func FuzzEndpointTCP(f *testing.F) {
	fuzzEndpoint(f, verbs.ProviderTCP, false)
}

func fuzzEndpoint(f *testing.F, provider string, active bool) {
	const timeout = 2 * time.Millisecond
	d := must(verbs.Open(provider, "", ""))
	pd, cq := must(d.AllocPD()), must(d.CreateCQ(64))
	create := func() *verbs.QP {
		return must(pd.CreateQP(verbs.QPConfig{CQ: cq, MaxSendWR: 4, MaxRecvWR: 4}))
	}
	deaf := create()
	f.Cleanup(func() {
		for _, close := range []func() error{deaf.Close, cq.Close, pd.Close, d.Close} {
			if err := close(); err != nil {
				f.Error(err)
			}
		}
	})
	good := must(deaf.Endpoint())
	f.Add(good)
	for n := range good {
		f.Add(good[:n])
		damaged := slices.Clone(good)
		damaged[n] ^= 0x80
		f.Add(damaged)
	}
	f.Fuzz(func(t *testing.T, blob []byte) {
		qp := create()
		start := time.Now()
		err := qp.Connect(blob, verbs.ConnectConfig{Active: active, Timeout: timeout})
		if took := time.Since(start); took > timeout+30*time.Second {
			t.Errorf("it took %v", took)
		}
		if err == nil && (active || qp.State() == verbs.StateRTS) {
			t.Errorf("connected to nobody: %v", qp.State())
		}
		if err := qp.Close(); err != nil {
			t.Error(err)
		}
	})
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
