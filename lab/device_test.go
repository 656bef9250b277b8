package lab

import (
	"bufio"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rackweave/rackweave/aggregate"
	"github.com/rackweave/rackweave/aggregate/optim"
	"github.com/rackweave/rackweave/aggregate/racktest"
	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/codec"
	"github.com/rackweave/rackweave/numa"
	"github.com/rackweave/rackweave/numa/numatest"
	"github.com/rackweave/rackweave/verbs"
)

// The tests of this file run on the RDMA devices that RDMA_DEVICE names: in guests that other tests boot, or on this machine's own
// devices.
func devices(t *testing.T, least int) []*verbs.Device {
	t.Helper()
	names := strings.FieldsFunc(os.Getenv("RDMA_DEVICE"), func(r rune) bool { return r == ',' })
	if len(names) < least {
		t.Skipf("RDMA_DEVICE names %d of the %d RDMA devices of this machine that it takes; the lab runs this test in its guests",
			len(names), least)
	}
	var all []*verbs.Device
	for _, name := range names[:least] {
		d, err := verbs.Open(verbs.ProviderIBV, name, "")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := d.Close(); err != nil {
				t.Error(err)
			}
		})
		all = append(all, d)
	}
	return all
}

// onDevice runs one of this file's tests in a guest.
func onDevice(t *testing.T, g *Guest, test, rdma string) {
	bin := build(t, g, "lab.test", "test", "-c", "github.com/rackweave/rackweave/lab")
	out, err := g.Run(within(t, patience), "RDMA_DEVICE="+rdma+" "+bin+" -test.v -test.run '^"+test+"$'")
	if err != nil || !strings.Contains(out, "--- PASS: "+test+" ") || strings.Contains(out, "--- SKIP") {
		t.Errorf("%v\n%s", err, out)
	}
	t.Log(out)
}

func openRack(t *testing.T, cfg racktest.Config) *racktest.Rack {
	t.Helper()
	r, err := racktest.Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

// jobOf is a job that updates a tensor of 100000 elements, small enough for an emulated machine.
func jobOf(name string) (aggregate.JobConfig, []chunk.Tensor) {
	return aggregate.JobConfig{Name: name, Mode: aggregate.Eager, Rule: optim.SGDTorch, Hyper: optim.SGDTorch.Defaults()},
		[]chunk.Tensor{{Name: "t", Elems: 100_000, DType: chunk.F32}}
}

// together runs an operation of all workers of a rack.
func together(r *racktest.Rack, kind chunk.Op) error {
	errs := make([]error, len(r.Workers))
	var wg sync.WaitGroup
	for i, w := range r.Workers {
		wg.Go(func() { errs[i] = w.Run(20*time.Second, w.Op(kind, 0, 0)) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// exchangeExactly gives the rack's tensor its first values and runs steps. It checks each step against plain Go.
func exchangeExactly(r *racktest.Rack, steps int) error {
	rng := rand.New(rand.NewPCG(1, 2))
	fill := func() (all [][][]float32) {
		for _, w := range r.Workers {
			x := w.SrcF32(0)[:r.Plan.Tensor(0).Elems]
			for i := range x {
				x[i] = rng.Float32() - 0.5
			}
			all = append(all, [][]float32{slices.Clone(x)})
		}
		return all
	}
	initial := fill()[0]
	if err := together(r, chunk.OpBroadcast); err != nil {
		return err
	}
	job := &r.Config.Job
	ref := racktest.NewReference(job.Mode, job.Rule, job.Hyper, chunk.F32, initial)
	if job.Compress != (codec.Pair{}) {
		ref.Compress(job.Compress, len(r.Workers), job.ChunkBytes)
		ref.Broadcast(0, initial[0])
	}
	for step := range steps {
		grads := fill()
		if err := together(r, chunk.OpPushPull); err != nil {
			return fmt.Errorf("step %d: %w", step, err)
		}
		want := ref.Step(grads)[0]
		for _, w := range r.Workers {
			if i, same := racktest.SameBits(w.DstF32(0)[:len(want)], want); !same {
				return fmt.Errorf("step %d: worker %d's element %d is %v, plain Go says %v", step, w.Rank, i, w.DstF32(0)[i], want[i])
			}
		}
	}
	return nil
}

// Payloads of any length go into slots, and answers into staging buffers, through real queue pairs.
func TestIBVJobsWithCodecs(t *testing.T) {
	nic := devices(t, 1)
	for _, text := range []string{"int8", "sign/int4", "topk:1%", "2bit:0.1/none"} {
		t.Run(text, func(t *testing.T) {
			job, tensors := jobOf("coded")
			var err error
			if job.Compress, err = codec.ParsePair(text, true); err != nil {
				t.Fatal(err)
			}
			r := openRack(t, racktest.Config{NICs: nic, Workers: [][]*verbs.Device{nic, nic}, Lanes: 1, Job: job, Tensors: tensors})
			if err := exchangeExactly(r, 3); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// A peer may write to the slots of its own job and nowhere else. The protection domain stops it, its job fails, and other jobs are
// not affected.
func TestIBVPeerThatWritesElsewhere(t *testing.T) {
	nic := devices(t, 1)
	workers := [][]*verbs.Device{nic, nic}
	job, tensors := jobOf("neighbour")
	neighbour := openRack(t, racktest.Config{NICs: nic, Workers: workers, Lanes: 1, MaxConns: 8, Job: job, Tensors: tensors})
	if err := exchangeExactly(neighbour, 1); err != nil {
		t.Fatal(err)
	}
	theirs := neighbour.Workers[0].Peers[0]
	for _, c := range []struct {
		name string
		aim  func(own chunk.AggregatorLane) (addr uint64, rkey uint32)
	}{
		{"stale key", func(own chunk.AggregatorLane) (uint64, uint32) { return own.SlotAddr, own.SlotRKey ^ 1 }},
		{"out of bounds", func(own chunk.AggregatorLane) (uint64, uint32) { return own.SlotAddr + 1<<30, own.SlotRKey }},
		{"a neighbour's slots", func(chunk.AggregatorLane) (uint64, uint32) { return theirs.SlotAddr, theirs.SlotRKey }},
	} {
		t.Run(c.name, func(t *testing.T) {
			job, tensors := jobOf(c.name)
			r := openRack(t, racktest.Config{NICs: nic, Workers: workers, Lanes: 1, Engine: neighbour.Engine, Job: job,
				Tensors: tensors})
			rogue := r.Workers[1]
			payload, err := rogue.Allocate("payload", 4096)
			if err != nil {
				t.Fatal(err)
			}
			addr, rkey := c.aim(rogue.Peers[0])
			for i := range payload.Bytes() {
				payload.Bytes()[i] = 0xff
			}
			result := make(chan error, 1)
			go func() { result <- exchangeExactly(neighbour, 3) }()
			_, err = rogue.QPs[0].PostSend([]verbs.SendWR{{
				Opcode: verbs.OpWriteWithImm, Imm: chunk.Pack(chunk.OpPush, 0, 0), LAddr: payload.MRs[0].Addr, LKey: payload.MRs[0].LKey,
				Length: 4096, RAddr: addr, RKey: rkey,
			}})
			if err != nil {
				t.Fatal(err)
			}
			select {
			case <-r.Job.Failed():
				if f := r.Job.Failure(); f.Rank != rogue.Rank {
					t.Errorf("the job failed for rank %d, not for the peer, %d: %v", f.Rank, rogue.Rank, f.Err)
				} else {
					t.Logf("the job failed: %v", f.Err)
				}
			case <-time.After(10 * time.Second):
				t.Error("the job goes on")
			}
			if err := <-result; err != nil {
				t.Errorf("the job beside it: %v", err)
			}
			if err := r.Workers[0].Run(10*time.Second, r.Workers[0].Op(chunk.OpBroadcast, 0, 0)); err == nil {
				t.Error("the failed job still works")
			}
		})
	}
}

// On a machine of two nodes with a NIC on each, all that a chunk uses is on one node: its NIC, the core that owns it, the slots it
// arrives in, its parameters and its results.
func TestIBVPlacement(t *testing.T) {
	nics := devices(t, 2)
	var names []string
	for _, d := range nics {
		names = append(names, d.Attr().Name)
	}
	top, err := numa.Discover("")
	if err != nil {
		t.Fatal(err)
	}
	places, _, err := top.Lanes(names, 0)
	if err != nil {
		t.Fatal(err)
	}
	var lanes []aggregate.LaneConfig
	for _, p := range places {
		lanes = append(lanes, aggregate.LaneConfig{Device: nics[p.NICIndex], NIC: p.NICIndex, CPU: p.CPU, Node: p.Node})
	}
	engine, err := aggregate.Start(aggregate.Config{Lanes: lanes, MaxConns: 2})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := engine.Close(); err != nil {
			t.Error(err)
		}
	})
	job, tensors := jobOf("placed")
	r := openRack(t, racktest.Config{
		NICs: nics, Workers: [][]*verbs.Device{nics, nics}, Lanes: len(lanes), Engine: engine, Job: job, Tensors: tensors,
	})
	if err := exchangeExactly(r, 2); err != nil {
		t.Fatal(err)
	}
	served := map[int]bool{}
	for i, l := range engine.Lanes() {
		i0 := slices.IndexFunc(top.RDMA, func(d numa.RDMADevice) bool { return d.Name == names[l.Config.NIC] })
		want := top.RDMA[i0].Node
		served[want] = true
		var cpu int
		if err := l.Do(t.Context(), func() { cpu = numatest.CurrentCPU() }); err != nil {
			t.Fatal(err)
		}
		if c := slices.IndexFunc(top.CPUs, func(c numa.CPU) bool { return c.ID == cpu }); top.CPUs[c].Node != want ||
			cpu != l.Config.CPU {
			t.Errorf("lane %d of %s, on node %d: its loop runs on cpu %d of node %d", i, names[l.Config.NIC], want, cpu, top.CPUs[c].Node)
		}
		for _, kind := range []string{"slots", "parameters", "results"} {
			name := fmt.Sprintf("rackweave-%s-lane%d", kind, i)
			pages := pagesByNode(t, name)
			if len(pages) != 1 || pages[want] == 0 {
				t.Errorf("lane %d of %s, on node %d: the pages of its %s lie on nodes %v", i, names[l.Config.NIC], want, kind, pages)
			}
			t.Logf("lane %d: %s and cpu %d on node %d, %d pages of %s there", i, names[l.Config.NIC], cpu, want, pages[want], kind)
		}
	}
	if len(served) != 2 {
		t.Errorf("lanes serve nodes %v: want two", served)
	}
}

// pagesByNode counts the pages of this process's mappings of a name by the node they are on.
func pagesByNode(t *testing.T, name string) map[int]int {
	t.Helper()
	maps, err := os.Open("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	defer maps.Close()
	pages := map[int]int{}
	for lines := bufio.NewScanner(maps); lines.Scan(); {
		if !strings.Contains(lines.Text(), ":"+name+" ") {
			continue
		}
		var from, to uintptr
		if _, err := fmt.Sscanf(lines.Text(), "%x-%x", &from, &to); err != nil {
			t.Fatal(err)
		}
		for ; from < to; from += uintptr(os.Getpagesize()) {
			node, err := numa.NodeOf(from)
			if err != nil {
				t.Fatal(err)
			}
			pages[node]++
		}
	}
	return pages
}
