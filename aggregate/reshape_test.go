package aggregate_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/rackweave/rackweave/aggregate"
	"github.com/rackweave/rackweave/aggregate/optim"
	"github.com/rackweave/rackweave/aggregate/racktest"
	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/hierarchy"
)

// reshaping changes a cluster's shape again and again while it exchanges, a step of the protocol at a time.
type reshaping struct {
	t      *testing.T
	ctx    context.Context
	c      *racktest.Cluster
	rng    *rand.Rand
	shape  hierarchy.Shape // that comes next
	began  [][][]uint8     // by rack held, lane and chunk
	turns  [][]uint8       // by lane and chunk
	turned int             // racks
	freed  int             // racks
	done   int             // changes
	refuse int             // that could not be made then
	pause  int             // rounds until the next step
	spoil  func(rack int, turns [][]uint8) [][]uint8
}

// round is called as often as the network moves.
func (r *reshaping) round() {
	if r.pause--; r.pause > 0 {
		return
	}
	r.pause = 1 + r.rng.IntN(12)
	racks := r.c.Racks
	switch {
	case len(r.began) < len(racks):
		began, err := racks[len(r.began)].Job.Hold(r.ctx)
		if err != nil {
			r.refuse++
			for _, rack := range racks[:len(r.began)] {
				r.must(rack.Job.Release(r.ctx))
			}
			r.began = nil
			return
		}
		r.began = append(r.began, began)
	case r.turned < len(racks):
		if r.turned == 0 {
			r.agree()
		}
		turns := r.turns
		if r.spoil != nil {
			turns = r.spoil(r.turned, turns)
		}
		r.must(racks[r.turned].Job.Turn(r.ctx, r.shape, turns))
		r.turned++
	default:
		r.must(racks[r.freed].Job.Release(r.ctx))
		if r.freed++; r.freed == len(racks) {
			r.began, r.turned, r.freed = nil, 0, 0
			r.done++
			r.shape = hierarchy.Sharded + hierarchy.Pods - r.shape
			r.pause += 40
		}
	}
}

// agree has each chunk turn after the last epoch that any rack has begun.
func (r *reshaping) agree() {
	r.turns = nil
	for lane := range r.began[0] {
		var began [][]uint8
		for rack := range r.began {
			began = append(began, r.began[rack][lane])
		}
		turns, err := hierarchy.TurnAt(began)
		r.must(err)
		r.turns = append(r.turns, turns)
	}
}

func (r *reshaping) must(err error) {
	r.t.Helper()
	if err != nil && r.c.Racks[0].Job.Failure() == nil {
		r.t.Fatal(err)
	}
}

func reshapingCluster(t *testing.T, seed uint64, rule optim.Rule) (*racktest.Cluster, func(), *reshaping) {
	t.Helper()
	rng := rand.New(rand.NewPCG(seed, 9))
	now, next := hierarchy.Sharded, hierarchy.Pods
	if rng.IntN(2) == 0 {
		now, next = next, now
	}
	job := aggregate.JobConfig{Name: "job", Mode: aggregate.Eager, Rule: rule, Hyper: rule.Defaults(), ChunkBytes: 4096}
	if rule == optim.Sum {
		job.Mode = aggregate.Aggregate
	}
	c, network := simCluster(t, seed, hierarchy.Topology{Shape: now, Racks: 4, Pods: 2}, []int{1, 2, 1, 1}, racktest.Config{
		Lanes: 1 + rng.IntN(2), Window: 2 + rng.IntN(6), Shuffle: seed + 1, Job: job,
		Tensors: tensorsOf(chunk.F32, 1, 5000, 1023, 20000, 3, 4000, 9000),
	})
	r := &reshaping{t: t, ctx: t.Context(), c: c, rng: rng, shape: next}
	return c, func() { network(); r.round() }, r
}

func TestAShapeThatChangesChangesNoBit(t *testing.T) {
	changes := 0
	for seed := range racksSeeds(t, 12) {
		rule := []optim.Rule{optim.Sum, optim.AdamTorch}[seed%2]
		ok := t.Run(fmt.Sprintf("seed %d, %v", seed, rule), func(t *testing.T) {
			c, network, r := reshapingCluster(t, seed, rule)
			exchangeRacks(t, seed, c, 2, 6, network)
			changes += r.done
		})
		if !ok {
			return
		}
	}
	if changes == 0 {
		t.Error("no shape has changed")
	}
	t.Logf("%d changes", changes)
}

// A rack that turns an epoch late sends sums to whom does not expect them, or waits for what nobody sends.
func TestARackThatTurnsAnEpochLateIsFound(t *testing.T) {
	c, network, r := reshapingCluster(t, 3, optim.Sum)
	r.spoil = func(rack int, turns [][]uint8) [][]uint8 {
		if rack != 1 {
			return turns
		}
		late := make([][]uint8, len(turns))
		for lane := range turns {
			for _, e := range turns[lane] {
				late[lane] = append(late[lane], (e+1)&127)
			}
		}
		return late
	}
	for range 12 {
		handles, err := c.Submit(c.AllOps(chunk.OpPushPull))
		if err == nil {
			err = c.Drive(network, handles, 20000)
		}
		if err == nil {
			continue
		}
		var why error
		for _, rack := range c.Racks {
			if f := rack.Job.Failure(); f != nil {
				why = errors.Join(why, f.Err)
			}
		}
		if !errors.Is(why, hierarchy.ErrProtocol) {
			t.Errorf("it ended with %v, and jobs with %v", err, why)
		}
		return
	}
	t.Errorf("after %d changes nothing was found", r.done)
}
