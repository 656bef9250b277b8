package aggregate_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/rackweave/rackweave/aggregate"
	"github.com/rackweave/rackweave/aggregate/optim"
	"github.com/rackweave/rackweave/aggregate/racktest"
	"github.com/rackweave/rackweave/cgo/worker"
	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/codec"
	"github.com/rackweave/rackweave/verbs"
)

// Small tensors are in one lane each, so that other lanes must add them.
func TestChunksMoveBetweenLanesAndNoBitChanges(t *testing.T) {
	const lanes = 3
	steps := 12
	if testing.Short() {
		steps = 6
	}
	hyper := optim.SGDMXNet.Defaults()
	hyper.Momentum = 0.9
	for _, tc := range []struct{ provider, codecs string }{
		{verbs.ProviderSHM, "none"}, {verbs.ProviderTCP, "none"}, {verbs.ProviderTCP, "int4/none"}, {verbs.ProviderSHM, "sign/int8"},
		{verbs.ProviderTCP, "auto"},
	} {
		t.Run(tc.provider+" "+tc.codecs, func(t *testing.T) {
			r := threadedRack(t, tc.provider, 3, racktest.Config{
				Lanes: lanes, Job: aggregate.JobConfig{Name: "job", Mode: aggregate.Eager, Rule: optim.SGDMXNet, Hyper: hyper,
					Compress: pair(t, tc.codecs, true)},
				Tensors: tensorsOf(chunk.F32, 1, 40_000, 1023, 160_000, 5),
			})
			before := r.Engine.Placed()
			step := 0
			exchange(t, r, steps, func(ops [][]worker.Op) error {
				from := step % lanes
				if _, err := r.Job.Move(from, (from+1+step/lanes%2)%lanes, 5); err != nil {
					t.Fatal(err)
				}
				step++
				return runAll(r, ops)
			})
			checkSnapshot(t, r)
			moved := uint64(0)
			for _, l := range r.Engine.Lanes() {
				if err := l.Do(t.Context(), l.Publish); err != nil {
					t.Fatal(err)
				}
				moved += l.Counters().Moves
			}
			if moved < uint64(3*steps) {
				t.Errorf("%d chunks moved in %d steps", moved, steps)
			}
			sum := func(x []uint64) (n uint64) {
				for _, b := range x {
					n += b
				}
				return n
			}
			if after := r.Engine.Placed(); sum(before) != sum(after) {
				t.Errorf("lanes have %v bytes of chunks, %v before", after, before)
			}
			if err := r.Add([]chunk.Tensor{{Name: "later", Elems: 50_000, DType: chunk.F32}}); err != nil {
				t.Fatal(err)
			}
			ops := make([][]worker.Op, len(r.Workers))
			for i, w := range r.Workers {
				for tensor := range r.Plan.NumTensors() {
					ops[i] = append(ops[i], w.Op(chunk.OpPushPull, tensor, 0))
				}
			}
			if err := runAll(r, ops); err != nil {
				t.Fatal(err)
			}
			checkSnapshot(t, r)
		})
	}
}

// All of the job is in one of two lanes, as after the end of another job in the other.
func TestLanesThatAreUnevenForGoodAreEvenedOut(t *testing.T) {
	elems := uint64(1 << 20)
	if testing.Short() {
		elems = 1 << 18
	}
	for _, provider := range []string{verbs.ProviderSHM, verbs.ProviderTCP} {
		t.Run(provider, func(t *testing.T) {
			r := threadedRack(t, provider, 2, racktest.Config{
				Lanes: 2, Loads: []uint64{1 << 40, 0}, Balance: 100 * time.Millisecond, Arena: true,
				Job:     aggregate.JobConfig{Name: "job", Mode: aggregate.Aggregate, Hyper: optim.Sum.Defaults()},
				Tensors: tensorsOf(chunk.F32, elems, 100, elems/2),
			})
			first := true
			exchange(t, r, 2, func(ops [][]worker.Op) error {
				if ops[0][0].Kind == uint8(chunk.OpBroadcast) || !first {
					return runAll(r, ops)
				}
				first = false
				return evenOut(t, r, func() error { return runAll(r, ops) })
			})
		})
	}
}

// evenOut takes steps until the lanes share their work.
func evenOut(t *testing.T, r *racktest.Rack, step func() error) error {
	const atOnce = 4
	measure := func() (took time.Duration, share float64, err error) {
		bytes := func() (out [2]uint64) {
			for i, l := range r.Engine.Lanes() {
				if err := l.Do(t.Context(), l.Publish); err != nil {
					t.Fatal(err)
				}
				out[i] = l.Counters().RecvBytes
			}
			return out
		}
		before, start := bytes(), time.Now()
		for range atOnce {
			if err := step(); err != nil {
				return 0, 0, err
			}
		}
		took = time.Since(start) / atOnce
		after := bytes()
		idle, all := after[0]-before[0], after[0]+after[1]-before[0]-before[1]
		return took, float64(idle) / float64(all), nil
	}
	uneven, share, err := measure()
	if err != nil {
		return err
	}
	for end := time.Now().Add(time.Minute); share < 0.4; {
		if time.Now().After(end) {
			t.Fatalf("lane 0 has %.2f of the bytes after a minute", share)
		}
		if _, share, err = measure(); err != nil {
			return err
		}
	}
	even, share, err := measure()
	t.Logf("a step took %v with one lane, and takes %v with lane 0 at %.2f of the bytes: %.2f times as fast", uneven, even, share,
		uneven.Seconds()/even.Seconds())
	return err
}

// checkSnapshot compares the aggregator's parameters with a worker's last result, unless answers are compressed.
func checkSnapshot(t *testing.T, r *racktest.Rack) {
	t.Helper()
	if r.Config.Job.Compress.Down.ID != codec.Raw {
		return
	}
	s, err := r.Job.Snapshot(t.Context(), r.Plan)
	if err != nil {
		t.Fatal(err)
	}
	pieces := make([]aggregate.Piece, r.Plan.NumChunks())
	for i := range pieces {
		pieces[i] = aggregate.Piece{Chunk: i, Data: make([]float32, r.Plan.Chunk(i).Elems)}
	}
	if err := s.Read(t.Context(), pieces); err != nil {
		t.Fatal(err)
	}
	for i, p := range pieces {
		c := r.Plan.Chunk(i)
		got := r.Workers[0].DstF32(c.Tensor)[c.Offset:][:c.Elems]
		if at, same := racktest.SameBits(p.Data, got); !same {
			t.Fatalf("chunk %d of lane %d, element %d: the aggregator has %v, a worker %v", c.LaneIndex, c.Lane, at, p.Data[at], got[at])
		}
	}
	if updates, err := s.Updates(context.Background()); err != nil {
		t.Fatal(err)
	} else if updates[0] == 0 {
		t.Fatalf("updates: %v", updates)
	}
}

func TestAMoveThatCannotBeIsRefused(t *testing.T) {
	r := threadedRack(t, verbs.ProviderSHM, 1, sumJob("job", 1000))
	for _, tc := range []struct {
		from, to int
		want     string
	}{{0, 0, "use two of the"}, {0, 9, "use two of the"}, {-1, 0, "use two of the"}} {
		if _, err := r.Job.Move(tc.from, tc.to, 1); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("from %d to %d: %v", tc.from, tc.to, err)
		}
	}
	stream := threadedRack(t, verbs.ProviderSHM, 1, racktest.Config{
		Lanes: 2, Job: aggregate.JobConfig{Name: "job", Mode: aggregate.Stream, Rule: optim.SGDTorch, Hyper: optim.SGDTorch.Defaults()},
		Tensors: tensorsOf(chunk.F32, 1000),
	})
	if _, err := stream.Job.Move(0, 1, 1); err == nil || !strings.Contains(err.Error(), "in mode stream, of several racks or over several aggregators keeps chunks") {
		t.Error(err)
	}
}
