package aggregate

import (
	"fmt"

	"github.com/rackweave/rackweave/aggregate/optim"
	"github.com/rackweave/rackweave/hierarchy"
)

// outer is how a rack trains on its own until the racks meet. Behind a chunk's parameters and states lie the parameters of the last
// meeting, and at the chunk's owner the outer optimizer's parameters and states, which are never rounded to the wire's type.
type outer struct {
	hierarchy.Outer
	share      float64 // all workers over this rack's: what a gradient's scale is multiplied with
	rule       optim.Rule
	states     int
	difference optim.Scalars
	weight     optim.Scalars
	step       optim.Scalars
}

func newOuter(c *JobConfig) *outer {
	if c.Outer == (hierarchy.Outer{}) {
		return nil
	}
	total := c.Workers
	if c.Above != nil {
		total = c.Above.first(c.Above.Racks)
	}
	own := float64(c.Workers)
	rule, h := OuterRule(c.Outer, total)
	return &outer{
		Outer: c.Outer, share: float64(total) / own, rule: rule, states: rule.States(h), step: optim.Derive(rule, h, 1),
		difference: optim.Derive(optim.SGDTorch, optim.Hyper{LR: 1, Scale: 1}, 1),
		weight:     optim.Derive(optim.Sum, optim.Hyper{Scale: own}, 1),
	}
}

// OuterRule is the update rule of an outer optimizer, and its hyper-parameters in a job of so many workers. Its gradient is the sum
// over the racks of what each has come, times its workers.
func OuterRule(o hierarchy.Outer, workers int) (optim.Rule, optim.Hyper) {
	rule := optim.SGDTorch
	if o.Rule == hierarchy.OuterNesterov {
		rule = optim.NesterovTorch
	}
	return rule, optim.Hyper{LR: o.LR, Momentum: o.Momentum, Scale: 1 / float64(workers)}
}

// arrays is how many f32 arrays lie behind a chunk's parameters and states.
func (o *outer) arrays(own bool) int {
	if own {
		return 2 + o.states
	}
	return 1
}

// checkOuter reports why the racks of a job cannot train on their own.
func checkOuter(c *JobConfig) error {
	o := c.Outer
	switch {
	case o == hierarchy.Outer{}:
		return nil
	case c.Mode != Eager:
		return fmt.Errorf("racks that meet every %d steps train on their own between, which mode %v cannot: use mode eager", o.Every, c.Mode)
	case c.Above == nil:
		return fmt.Errorf("racks that meet every %d steps, and one rack alone: use aggregators of several racks", o.Every)
	}
	if err := o.Check(); err != nil {
		return err
	}
	return o.CheckRacks(c.Above.Racks)
}
