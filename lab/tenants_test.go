package lab

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/rackweave/rackweave/aggregate"
	"github.com/rackweave/rackweave/aggregate/optim"
	"github.com/rackweave/rackweave/aggregate/racktest"
	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/verbs"
)

// tenant is a job that sums the same gradients over and over, and compares every bit.
type tenant struct {
	*racktest.Rack
	want []float32
}

// openTenant opens a job of one tensor on an engine, or on one of its own.
func openTenant(t *testing.T, nic *verbs.Device, name string, engine *aggregate.Engine, elems int) *tenant {
	t.Helper()
	const workers = 2
	v := &tenant{want: make([]float32, elems)}
	v.Rack = openRack(t, racktest.Config{
		NICs: []*verbs.Device{nic}, Workers: slices.Repeat([][]*verbs.Device{{nic}}, workers), Lanes: 1, MaxConns: 32, Engine: engine,
		Arena: true, Job: aggregate.JobConfig{Name: name, Mode: aggregate.Aggregate, Hyper: optim.Sum.Defaults()},
		Tensors: []chunk.Tensor{{Name: "t", Elems: uint64(elems), DType: chunk.F32}},
	})
	rng := rand.New(rand.NewPCG(7, 8))
	for _, w := range v.Workers {
		x := w.SrcF32(0)[:elems]
		for i := range x {
			x[i] = rng.Float32() - 0.5
			v.want[i] += x[i]
		}
	}
	return v
}

// exchange makes exchanges until it is told to stop, and at least so many. It returns the longest.
func (v *tenant) exchange(least int, stop <-chan struct{}) (longest time.Duration, err error) {
	for n := 0; ; n++ {
		select {
		case <-stop:
			if n >= least {
				return longest, nil
			}
		default:
		}
		for _, w := range v.Workers {
			clear(w.DstF32(0))
		}
		began := time.Now()
		if err := together(v.Rack, chunk.OpPushPull); err != nil {
			return longest, err
		}
		longest = max(longest, time.Since(began))
		for _, w := range v.Workers {
			if i, same := racktest.SameBits(w.DstF32(0)[:len(v.want)], v.want); !same {
				return longest, fmt.Errorf("exchange %d: worker %d's element %d is %v, want %v", n, w.Rank, i, w.DstF32(0)[i], v.want[i])
			}
		}
	}
}

// besides lets something happen while the tenant exchanges.
func (v *tenant) besides(t *testing.T, least int, f func(t *testing.T)) (longest time.Duration) {
	t.Helper()
	stop := make(chan struct{})
	var err error
	var exchanging sync.WaitGroup
	exchanging.Go(func() { longest, err = v.exchange(least, stop) })
	f(t)
	close(stop)
	exchanging.Wait()
	if err != nil {
		t.Errorf("the job beside it: %v", err)
	}
	return longest
}

// One tenant tries another's keys, addresses and queue pairs, and floods the lane that both use: the other gets its bits, in time.
func TestIBVTenants(t *testing.T) {
	const (
		elems, least = 20_000, 10
		slower       = 10          // times as long as alone an exchange may take
		stalled      = time.Minute // but this is a stall on no machine
	)
	nic := devices(t, 1)[0]
	victim := openTenant(t, nic, "victim", nil, elems)
	alone := victim.besides(t, 3*least, func(*testing.T) {})
	for _, attack := range []struct {
		name string
		run  func(t *testing.T)
	}{
		{"its keys and addresses", func(t *testing.T) { tryKeys(t, nic, victim) }},
		{"its queue pairs", func(t *testing.T) { tryQueuePairs(t, nic, victim) }},
		{"floods its lane", func(t *testing.T) { flood(t, nic, victim, least) }},
	} {
		t.Run(attack.name, func(t *testing.T) {
			longest := victim.besides(t, least, attack.run)
			t.Logf("the longest exchange took %v, %v alone", longest, alone)
			if longest > max(slower*alone, stalled) {
				t.Errorf("an exchange took %v, %v alone", longest, alone)
			}
		})
	}
	if victim.Job.Failure() != nil {
		t.Error(victim.Job.Failure())
	}
}

// tryKeys writes to where a neighbour's gradients and results lie, with its keys and with others. Each job that tries fails.
func tryKeys(t *testing.T, nic *verbs.Device, victim *tenant) {
	slots := victim.Workers[0].Peers[0]
	results, err := victim.Workers[0].Allocate("results", 4096)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		addr uint64
		rkey uint32
	}{
		{"slots", slots.SlotAddr, slots.SlotRKey},
		{"slots, the key before", slots.SlotAddr, slots.SlotRKey - 256},
		{"a worker's results", results.MRs[0].Addr, results.MRs[0].RKey},
	} {
		rogue := openTenant(t, nic, c.name, victim.Engine, 1000)
		w := rogue.Workers[1]
		payload, err := w.Allocate("payload", 4096)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.QPs[0].PostSend([]verbs.SendWR{{
			Opcode: verbs.OpWriteWithImm, Imm: chunk.Pack(chunk.OpPush, 0, 0), LAddr: payload.MRs[0].Addr, LKey: payload.MRs[0].LKey,
			Length: 4000, RAddr: c.addr, RKey: c.rkey,
		}}); err != nil {
			t.Fatal(err)
		}
		select {
		case <-rogue.Job.Failed():
			if f := rogue.Job.Failure(); f.Rank != w.Rank {
				t.Errorf("%s: the job failed for rank %d, not for the peer, %d: %v", c.name, f.Rank, w.Rank, f.Err)
			}
		case <-time.After(2 * time.Minute):
			t.Errorf("%s: the job goes on", c.name)
		}
	}
	if slices.ContainsFunc(results.Bytes(), func(b byte) bool { return b != 0 }) {
		t.Error("a neighbour's results were written")
	}
}

// tryQueuePairs sends to a neighbour's queue pairs, at both ends, from one of its own.
func tryQueuePairs(t *testing.T, nic *verbs.Device, victim *tenant) {
	pd, err := nic.AllocPD()
	if err != nil {
		t.Fatal(err)
	}
	cq, err := nic.CreateCQ(16)
	if err != nil {
		t.Fatal(err)
	}
	theirs := [][]byte{victim.Workers[0].Peers[0].Endpoint}
	for _, w := range victim.Workers {
		end, err := w.QPs[0].Endpoint()
		if err != nil {
			t.Fatal(err)
		}
		theirs = append(theirs, end)
	}
	for i, end := range theirs {
		qp, err := pd.CreateQP(verbs.QPConfig{CQ: cq, MaxSendWR: 4, MaxRecvWR: 4})
		if err != nil {
			t.Fatal(err)
		}
		if err := qp.Connect(end, verbs.ConnectConfig{Active: true, Timeout: 500 * time.Millisecond}); err == nil {
			t.Errorf("queue pair %d of the neighbour's took what another sent", i)
		}
		if err := qp.Close(); err != nil {
			t.Error(err)
		}
	}
	if err := errors.Join(cq.Close(), pd.Close()); err != nil {
		t.Error(err)
	}
}

// flood exchanges much more than the neighbour does, until that has made so many exchanges.
func flood(t *testing.T, nic *verbs.Device, victim *tenant, least int) {
	rogue := openTenant(t, nic, "flood", victim.Engine, 16*len(victim.want))
	before := victim.Job.WorkerCounters()[0].Chunks
	rogue.besides(t, 1, func(t *testing.T) {
		for end := time.Now().Add(5 * time.Minute); ; time.Sleep(20 * time.Millisecond) {
			if n := victim.Job.WorkerCounters()[0].Chunks - before; n >= uint64(least*victim.Plan.NumChunks()) {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("the job beside it has not made %d exchanges in 5 minutes", least)
			}
		}
	})
}
