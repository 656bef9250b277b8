package aggregate_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/rackweave/rackweave/aggregate"
	"github.com/rackweave/rackweave/aggregate/optim"
	"github.com/rackweave/rackweave/aggregate/racktest"
	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/hierarchy"
	"github.com/rackweave/rackweave/hierarchy/outer"
)

// buddyTrial is a job whose owners have buddies, with plain Go's state after each step.
type buddyTrial struct {
	t       *testing.T
	rng     *rand.Rand
	c       *racktest.Cluster
	plan    *chunk.Plan
	network func()
	ref     *racktest.Reference
	after   [][][][]float32 // by changes, tensor and array
}

// openBuddies draws a cluster and takes it through a broadcast.
func openBuddies(t *testing.T, seed uint64) *buddyTrial {
	t.Helper()
	b := &buddyTrial{t: t, rng: rand.New(rand.NewPCG(seed, 7)), after: make([][][][]float32, 1)}
	workers := make([]int, 2+b.rng.IntN(4))
	for i := range workers {
		workers[i] = 1 + b.rng.IntN(2)
	}
	top := hierarchy.Topology{Racks: len(workers), Shape: []hierarchy.Shape{hierarchy.Sharded, hierarchy.Root}[b.rng.IntN(2)], Pods: 1}
	if len(workers) == 4 && b.rng.IntN(2) == 0 {
		top.Pods = 2
	}
	job := aggregate.JobConfig{Name: "job", Mode: aggregate.Eager, ChunkBytes: 4096}
	job.Rule, job.Hyper = optim.AdamTorch, optim.AdamTorch.Defaults()
	if b.rng.IntN(2) == 0 {
		job.Rule, job.Hyper = optim.SGDMXNet, optim.SGDMXNet.Defaults()
		job.Hyper.Momentum = 0.9
	}
	wire := []chunk.DType{chunk.F32, chunk.BF16}[b.rng.IntN(2)]
	b.c, b.network = simCluster(t, seed, top, workers, racktest.Config{
		Lanes: 1 + b.rng.IntN(2), Window: 2 + b.rng.IntN(6), Job: job, Shuffle: seed + 1, Core: anyCore(b.rng, top), Buddies: true,
		Tensors: tensorsOf(wire, 1, 5000, 1023, 20000, 3),
	})
	b.plan = b.c.Racks[0].Plan
	t.Logf("seed %d: workers %v, %v with %d pods, %v, %v on the wire, %v between racks", seed, workers, top.Shape, top.Pods, job.Rule, wire,
		b.c.Racks[0].Config.Core)
	initial := b.fill()[0][0]
	for k := range initial {
		initial[k] = racktest.OnWire(wire, initial[k])
	}
	b.ref = racktest.NewReference(job.Mode, job.Rule, job.Hyper, wire, initial)
	b.ref.Core = b.c.Racks[0].Config.Core
	b.note()
	if err := b.run(chunk.OpBroadcast, 100000); err != nil {
		t.Fatal(err)
	}
	return b
}

// note records the present state of plain Go.
func (b *buddyTrial) note() {
	var all [][][]float32
	for k := range b.plan.NumTensors() {
		all = append(all, b.ref.Arrays(k))
	}
	b.after = append(b.after, all)
}

// fill draws each worker's gradients, by rack, worker and tensor.
func (b *buddyTrial) fill() [][][][]float32 {
	out := make([][][][]float32, len(b.c.Racks))
	for r, rack := range b.c.Racks {
		out[r] = make([][][]float32, len(rack.Workers))
		for i, w := range rack.Workers {
			for k := range b.plan.NumTensors() {
				g := w.SrcF32(k)[:b.plan.Tensor(k).Elems]
				fill(b.rng, g)
				out[r][i] = append(out[r][i], slices.Clone(g))
			}
		}
	}
	return out
}

func (b *buddyTrial) run(kind chunk.Op, rounds int) error {
	b.t.Helper()
	handles, err := b.c.Submit(b.c.AllOps(kind))
	if err != nil {
		b.t.Fatal(err)
	}
	return b.c.Drive(b.network, handles, rounds)
}

// step takes a step that is abandoned after so many rounds, and reports whether it was done by then.
func (b *buddyTrial) step(rounds int) (done bool) {
	b.t.Helper()
	b.ref.StepRacks(b.fill(), b.c.Racks[0].Config.Job.Place.Pods)
	b.note()
	err := b.run(chunk.OpPushPull, rounds)
	if err != nil && !strings.Contains(err.Error(), "not done") {
		b.t.Fatal(err)
	}
	return err == nil
}

// end ends the job in all racks, and returns the state that the racks other than the lost ones keep.
func (b *buddyTrial) end(lost ...int) []*aggregate.Retained {
	b.t.Helper()
	left := make([]*aggregate.Retained, len(b.c.Racks))
	for r, rack := range b.c.Racks {
		rack.Job.Fail(-1, errors.New("a rack is lost"))
		if slices.Contains(lost, r) {
			continue
		}
		var err error
		if left[r], err = rack.Job.CloseRetaining(); err != nil {
			b.t.Fatal(err)
		}
		if left[r] != nil { // in shape root most racks keep nothing
			b.t.Cleanup(func() {
				if err := left[r].Close(); err != nil {
					b.t.Error(err)
				}
			})
		}
	}
	return left
}

// whole returns the rack that has each owner's chunks, and the last step that is whole.
func (b *buddyTrial) whole(left []*aggregate.Retained) (changes uint32, from []int) {
	b.t.Helper()
	changes, most := ^uint32(0), uint32(0)
	top := b.c.Racks[0].Config.Job.Place.Topology
	from = slices.Repeat([]int{-1}, len(left))
	for _, owner := range top.Owners() {
		at := owner
		if left[at] == nil {
			at = top.Buddy(owner)
		}
		least, last, kept := left[at].Range(owner)
		if !kept {
			b.t.Fatalf("rack %d has nothing of rack %d's", at, owner)
		}
		from[owner] = at
		changes, most = min(changes, least), max(most, last)
	}
	if most > changes+1 {
		b.t.Fatalf("some chunks have had %d changes, others %d", changes, most)
	}
	return changes, from
}

// compare compares the kept state with plain Go, bit for bit.
func (b *buddyTrial) compare(left []*aggregate.Retained, from []int, changes uint32) {
	b.t.Helper()
	updates := make([]uint32, b.plan.NumTensors())
	found := 0
	for rack, r := range left {
		owners := make([]bool, len(left))
		for owner, at := range from {
			owners[owner] = at == rack
		}
		if !slices.Contains(owners, true) {
			continue
		}
		n, err := r.Updates(changes, owners, len(updates))
		if err != nil {
			b.t.Fatal(err)
		}
		for k := range n {
			if n[k] != aggregate.NoUpdates {
				updates[k] = n[k]
			}
		}
		for id := range b.plan.NumChunks() {
			at := b.plan.Chunk(id)
			for array, want := range b.after[changes][at.Tensor] {
				p := []aggregate.Piece{{Chunk: id, Array: array, Data: make([]float32, at.Elems)}}
				read, err := r.Read(changes, owners, p)
				if err != nil {
					b.t.Fatal(err)
				}
				if !read[0] {
					continue
				}
				found++
				if i, same := racktest.SameBits(p[0].Data, want[at.Offset:at.Offset+uint64(at.Elems)]); !same {
					b.t.Fatalf("rack %d, chunk %d of tensor %d, array %d: element %d after %d changes is %v, plain Go says %v", rack, id, at.Tensor,
						array, i, changes, p[0].Data[i], want[at.Offset+uint64(i)])
				}
			}
		}
	}
	if want := b.plan.NumChunks() * len(b.after[1][0]); found != want {
		b.t.Errorf("%d arrays of chunks are kept, of %d", found, want)
	}
	for k, n := range updates {
		if n != changes-1 {
			b.t.Errorf("tensor %d had %d updates after %d changes", k, n, changes)
		}
	}
}

// Whichever rack is lost, and at any point of a step, the others have the state of the last step that is whole.
func TestAnyOneRackMayBeLostInMidStep(t *testing.T) {
	torn, seeds := 0, racksSeeds(t, 24)
	for seed := range seeds {
		ok := t.Run(fmt.Sprint(seed), func(t *testing.T) {
			b := openBuddies(t, seed)
			for range b.rng.IntN(3) {
				if !b.step(100000) {
					t.Fatal("a step does not end")
				}
			}
			b.step(1 + b.rng.IntN(60))
			lost := b.rng.IntN(len(b.c.Racks))
			left := b.end(lost)
			changes, from := b.whole(left)
			b.compare(left, from, changes)
			for owner, at := range from {
				if at >= 0 {
					if _, most, _ := left[at].Range(owner); most > changes {
						torn++
						break
					}
				}
			}
		})
		if !ok {
			return
		}
	}
	if torn == 0 && seeds >= 8 { // with few seeds, all may have ended between steps
		t.Error("no step was torn")
	}
}

// Buddies change no result.
func TestRacksWithBuddiesEqualPlainGo(t *testing.T) {
	for _, core := range []chunk.DType{chunk.F32, chunk.BF16} {
		c, network := simCluster(t, 7, hierarchy.Topology{Shape: hierarchy.Sharded, Racks: 3}, []int{2, 1, 2}, racktest.Config{
			Lanes: 2, Window: 4, Core: core, Buddies: true,
			Job: aggregate.JobConfig{Name: "job", Mode: aggregate.Eager, Rule: optim.AdamTorch, Hyper: optim.AdamTorch.Defaults(),
				ChunkBytes: 4096},
			Tensors: tensorsOf(chunk.F32, 1, 5000, 1023, 20000, 3),
		})
		exchangeRacks(t, 1, c, 0, 3, network)
	}
}

func TestWhatCannotHaveBuddiesIsRefused(t *testing.T) {
	_, open := simNetwork(t, 1)
	e, err := aggregate.Start(aggregate.Config{
		Lanes: []aggregate.LaneConfig{{Device: open("a"), CPU: -1, Node: -1}}, Window: 4, MaxConns: 4, Manual: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	for _, tc := range []struct {
		want string
		edit func(c *aggregate.JobConfig)
	}{
		{"one rack, which would be its own", func(c *aggregate.JobConfig) {
			c.Place.Racks, c.Place.Names, c.Place.Workers = 1, c.Place.Names[:1], c.Place.Workers[:1]
		}},
		{"shape chain", func(c *aggregate.JobConfig) { c.Place.Shape = hierarchy.Chain }},
		{"mode eager", func(c *aggregate.JobConfig) { c.Mode = aggregate.TwoPhase }},
		{"outer none", func(c *aggregate.JobConfig) {
			c.Outer = outer.Optimizer{Every: 2, Rule: outer.SGD, LR: 1}
		}},
	} {
		c := aggregate.JobConfig{Name: "job", Workers: 1, Mode: aggregate.Eager, Rule: optim.SGDTorch, Hyper: optim.SGDTorch.Defaults(),
			ChunkBytes: 4096, Place: &aggregate.Place{
				Topology: hierarchy.Topology{Shape: hierarchy.Sharded, Racks: 3}, Names: []string{"a", "b", "c"}, Workers: []int{1, 1, 1},
				Buddies: true,
			}}
		tc.edit(&c)
		j, err := e.NewJob(c)
		if err == nil {
			t.Errorf("%s: it was taken", tc.want)
			_ = j.Close()
		} else if !strings.Contains(err.Error(), tc.want) {
			t.Errorf("it says %q, want %q", err, tc.want)
		}
	}
}
