package racktest

import (
	"github.com/rackweave/rackweave/aggregate"
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
}

// NewOuter returns a cluster with so many workers in each rack. Its racks have the configuration of the reference like.
func NewOuter(o diloco.Optimizer, like *Reference, workers []int, pods int, chunk func(tensor, elem int) int) *Outer {
	all := 0
	for _, n := range workers {
		all += n
	}
	rule, h := outer.Rule(o, all)
	c := &Outer{Optimizer: o, workers: workers, pods: pods, chunk: chunk}
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
		met := c.round(t)
		for i := range met {
			if !c.Due(c.chunk(t, i), c.step) {
				continue
			}
			for r, rack := range c.racks {
				rack.W[t][i], c.start[r][t][i], out[r][t][i] = met[i], met[i], met[i]
			}
		}
	}
	return out
}

// rows returns each rack's difference of a tensor since the last round, times its workers.
func (c *Outer) rows(t int) [][]float32 {
	rows := make([][]float32, len(c.racks))
	for r, rack := range c.racks {
		rows[r] = make([]float32, len(rack.W[t]))
		for i := range rows[r] {
			rows[r][i] = (c.start[r][t][i] - rack.W[t][i]) * float32(c.workers[r])
		}
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
		if c.Due(c.chunk(t, i), c.step) {
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
