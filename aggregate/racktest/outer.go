package racktest

import (
	"slices"

	"github.com/rackweave/rackweave/aggregate"
	"github.com/rackweave/rackweave/aggregate/optim"
	"github.com/rackweave/rackweave/aggregate/outer"
	diloco "github.com/rackweave/rackweave/hierarchy/outer"
)

// Outer is a cluster in plain Go whose racks train apart between rounds.
type Outer struct {
	diloco.Optimizer
	racks   []*Reference
	workers []int
	start   [][][]float32 // by rack and tensor: the parameters of the last round
	outer   *Reference    // the outer optimizer, whose parameters are never rounded to the wire's type
	step    uint32
	pods    int
	chunk   func(tensor, elem int) int // returns the number of an element's chunk
	rounds  map[int]*round             // by chunk, where rounds follow the drift
}

// round is a chunk's interval, and the step at which its next round is due.
type round struct{ interval, due uint32 }

// due reports whether a chunk has a round in the present step.
func (c *Outer) due(chunk int) bool {
	if c.Drift == 0 {
		return c.Optimizer.Due(chunk, c.step)
	}
	r := c.rounds[chunk]
	return r == nil || c.step >= r.due
}

// Interval returns a chunk's steps from its last round to its next, or 0 before its first.
func (c *Outer) Interval(chunk int) uint32 {
	if r := c.rounds[chunk]; r != nil {
		return r.interval
	}
	return 0
}

// follow sets the intervals of a tensor's chunks that have met, before their parameters are replaced.
func (c *Outer) follow(t int) {
	w := c.start[0][t]
	for from, to := 0, 0; from < len(w); from = to {
		at := c.chunk(t, from)
		for to < len(w) && c.chunk(t, to) == at {
			to++
		}
		if c.Drift == 0 || !c.due(at) {
			continue
		}
		var parts []float32
		for r := range c.racks {
			parts = append(parts, float32(optim.SumSq(c.difference(r, t)[from:to]))/float32(c.workers[r]))
		}
		r, distance := c.rounds[at], float32(0)
		for _, pod := range slices.Collect(slices.Chunk(parts, len(parts)/max(c.pods, 1))) {
			part := float32(0)
			for _, p := range pod {
				part += p
			}
			distance += part
		}
		if r == nil {
			r = &round{}
			c.rounds[at] = r
		}
		all := 0
		for _, n := range c.workers {
			all += n
		}
		r.interval = c.Next(r.interval, distance/float32(all), float32(optim.SumSq(w[from:to])))
		r.due = c.step + r.interval
	}
}

// NewOuter returns a cluster with so many workers in each rack. Its racks have the configuration of the reference like.
func NewOuter(o diloco.Optimizer, like *Reference, workers []int, pods int, chunk func(tensor, elem int) int) *Outer {
	all := 0
	for _, n := range workers {
		all += n
	}
	rule, h := outer.Rule(o, all)
	c := &Outer{Optimizer: o, workers: workers, pods: pods, chunk: chunk, rounds: map[int]*round{}}
	c.outer = NewReference(aggregate.TwoPhase, rule, h, like.Wire, copied(like.W))
	for _, n := range workers {
		r := NewReference(like.Mode, like.Rule, like.Hyper, like.Wire, copied(like.W))
		r.Hyper.Scale *= float64(all) / float64(n)
		c.racks, c.start = append(c.racks, r), append(c.start, copied(like.W))
	}
	return c
}

func copied(w [][]float32) [][]float32 {
	out := make([][]float32, len(w))
	for i, x := range w {
		out[i] = append([]float32(nil), x...)
	}
	return out
}

// Step takes gradients by rack, worker and tensor, and returns the answers to pushpulls, by rack and tensor.
func (c *Outer) Step(grads [][][][]float32) [][][]float32 {
	c.step++
	out := make([][][]float32, len(c.racks))
	for r, rack := range c.racks {
		out[r] = rack.Step(grads[r])
	}
	for t := range out[0] {
		met, differ := c.round(t), make([]bool, len(out[0][t]))
		for i := range met {
			differ[i] = !c.due(c.chunk(t, i))
		}
		c.follow(t)
		for i := range met {
			if differ[i] {
				continue
			}
			for r, rack := range c.racks {
				rack.W[t][i], c.start[r][t][i], out[r][t][i] = met[i], met[i], met[i]
			}
		}
	}
	return out
}

// difference returns how far a rack's tensor has come since the last round, times its workers.
func (c *Outer) difference(r, t int) []float32 {
	d := make([]float32, len(c.start[r][t]))
	for i := range d {
		d[i] = (c.start[r][t][i] - c.racks[r].W[t][i]) * float32(c.workers[r])
	}
	return d
}

// rows returns each rack's difference of a tensor since the last round, times its workers.
func (c *Outer) rows(t int) [][]float32 {
	rows := make([][]float32, len(c.racks))
	for r := range c.racks {
		rows[r] = c.difference(r, t)
	}
	if c.pods > 1 {
		rows = byPod(rows, c.pods)
	}
	return rows
}

// round steps the outer optimizer for the elements of a tensor whose round is due.
func (c *Outer) round(t int) []float32 {
	rows := c.rows(t)
	w, states := c.outer.W[t], c.outer.states[t]
	was := copied(append([][]float32{w}, states[:]...))
	out := c.outer.update(t, rows)
	for i := range w {
		if c.due(c.chunk(t, i)) {
			continue
		}
		w[i] = was[0][i]
		for k := range states {
			if states[k] != nil {
				states[k][i] = was[1+k][i]
			}
		}
	}
	return out
}
