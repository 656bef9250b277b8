package racktest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/rackweave/rackweave/aggregate"
	"github.com/rackweave/rackweave/aggregate/optim"
	"github.com/rackweave/rackweave/cgo/worker"
	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/hierarchy"
)

// Cluster is a set of racks whose aggregators reduce among themselves.
type Cluster struct {
	Racks []*Rack
}

// OpenCluster builds racks and connects their aggregators.
func OpenCluster(t hierarchy.Topology, racks []Config) (c *Cluster, err error) {
	above := aggregate.Place{Topology: t}
	for i := range racks {
		above.Names = append(above.Names, fmt.Sprintf("rack%d", i))
		above.Workers = append(above.Workers, len(racks[i].Workers)+racks[i].Absent)
	}
	c = &Cluster{}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.Close())
		}
	}()
	for i, cfg := range racks {
		own := above
		own.Rack, own.Core, own.Codecs, own.Buddies = i, cfg.Core, cfg.CoreCodecs, cfg.Buddies
		cfg.Job.Place, cfg.FirstRank = &own, 0
		for _, w := range above.Workers[:i] {
			cfg.FirstRank += w
		}
		if cfg.MaxConns == 0 {
			cfg.MaxConns = len(cfg.Workers) + len(racks)
		}
		r, err := Open(cfg)
		if err != nil {
			return c, err
		}
		c.Racks = append(c.Racks, r)
	}
	return c, c.connect()
}

func (c *Cluster) connect() error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	for i, a := range c.Racks {
		for j, b := range c.Racks[:i] {
			theirs, err := b.Job.OpenPeer(ctx, i)
			if err != nil {
				return err
			}
			ours, err := a.Job.OpenPeer(ctx, j)
			if err != nil {
				return err
			}
			if err := b.Job.JoinPeer(ctx, i, ours, false); err != nil {
				return err
			}
			if err := a.Job.JoinPeer(ctx, j, theirs, true); err != nil {
				return err
			}
		}
	}
	return nil
}

// Drive steps manual racks until the given operations, by rack and worker, are done, as [Rack.Drive] does.
func (c *Cluster) Drive(network func(), handles [][][]uint64, limit int) error {
	for round := range limit {
		network()
		all := true
		for i, r := range c.Racks {
			done, err := r.Step(handles[i], round%16 == 15)
			if err != nil {
				return errors.Join(fmt.Errorf("rack %d: %w", i, err), c.failures())
			}
			all = all && done
		}
		if all {
			return nil
		}
	}
	return fmt.Errorf("not done after %d rounds", limit)
}

// failures returns the errors of the racks' failed jobs.
func (c *Cluster) failures() error {
	var errs []error
	for i, r := range c.Racks {
		if f := r.Job.Failure(); f != nil {
			errs = append(errs, fmt.Errorf("rack %d failed: %w", i, f.Err))
		}
	}
	return errors.Join(errs...)
}

// Submit starts operations, by rack and worker.
func (c *Cluster) Submit(ops [][][]worker.Op) (handles [][][]uint64, err error) {
	handles = make([][][]uint64, len(c.Racks))
	for i, r := range c.Racks {
		for k, w := range r.Workers {
			h, err := w.Submit(ops[i][k]...)
			if err != nil {
				return nil, err
			}
			handles[i] = append(handles[i], h)
		}
	}
	return handles, nil
}

// Close closes the racks.
func (c *Cluster) Close() error {
	var errs []error
	for _, r := range c.Racks {
		errs = append(errs, r.Close())
	}
	return errors.Join(errs...)
}

// StepRacks is [Reference.Step] for a cluster. Gradients are indexed by rack, worker and tensor. Each rack's are added first, then,
// with pods, the sums of each pod's racks, and then the rest, all in order and in f32.
func (r *Reference) StepRacks(grads [][][][]float32, pods int) [][]float32 {
	out := make([][]float32, len(grads[0][0]))
	for t := range out {
		out[t] = r.update(t, r.sums(t, grads, pods))
	}
	return out
}

// PushRacks is [Reference.Push] for a cluster. Gradients are indexed by rack, worker and tensor.
func (r *Reference) PushRacks(t int, grads [][][][]float32, pods int) {
	r.accumulate(t, [][]float32{added(r.sums(t, grads, pods))})
}

// sums returns the summands of an owner: the racks' sums of a tensor, or the pods'.
func (r *Reference) sums(t int, grads [][][][]float32, pods int) (sums [][]float32) {
	for _, rack := range grads {
		g := make([][]float32, len(rack))
		for w := range rack {
			g[w] = rack[w][t]
		}
		sum := added(onWire(r.Wire, g))
		if r.Core != 0 {
			sum = OnWire(r.Core, sum)
		}
		sums = append(sums, sum)
	}
	if pods > 1 {
		sums = byPod(sums, pods)
	}
	return sums
}

func added(all [][]float32) []float32 {
	sum := make([]float32, len(all[0]))
	optim.SumInto(sum, all, false)
	return sum
}

func byPod(sums [][]float32, pods int) (out [][]float32) {
	size := len(sums) / pods
	for p := range pods {
		out = append(out, added(sums[p*size:(p+1)*size]))
	}
	return out
}

// AllOps returns operations of one kind on all tensors, by rack and worker, with different priorities or in different orders.
func (c *Cluster) AllOps(kind chunk.Op) [][][]worker.Op {
	ops := make([][][]worker.Op, len(c.Racks))
	for i, r := range c.Racks {
		for _, w := range r.Workers {
			var of []worker.Op
			for t := range r.Plan.NumTensors() {
				of = append(of, w.Op(kind, t, int32(t%3)))
			}
			if seed := r.Config.Shuffle; seed != 0 {
				rng := rand.New(rand.NewPCG(seed, uint64(r.Config.FirstRank+w.Rank)))
				rng.Shuffle(len(of), func(a, b int) { of[a], of[b] = of[b], of[a] })
				for k := range of {
					of[k].Priority = 0
				}
			}
			ops[i] = append(ops[i], of)
		}
	}
	return ops
}
