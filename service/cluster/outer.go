package cluster

import (
	"cmp"
	"fmt"

	"github.com/rackweave/rackweave/aggregate"
	"github.com/rackweave/rackweave/hierarchy"
	"github.com/rackweave/rackweave/hierarchy/outer"
	"github.com/rackweave/rackweave/service/job"
)

// chooseOuter sets the outer optimizer of a job: as its worker declares it, or as the cluster's file does.
func (k *Cluster) chooseOuter(sp *job.Spec, text string) (err error) {
	text = cmp.Or(text, k.Outer)
	if sp.Outer, err = outer.Parse(text); err != nil || sp.Outer == (outer.Optimizer{}) {
		return err
	}
	switch {
	case k.topology.Shape == hierarchy.Flat:
		return fmt.Errorf("outer %q has racks train on their own, and in shape flat no aggregator has a rack's sums: use another shape, or outer none",
			text)
	case sp.Mode != aggregate.Eager:
		return fmt.Errorf("outer %q has racks train on their own, which mode %v cannot: use mode %v, or outer none", text, sp.Mode,
			aggregate.Eager)
	}
	return nil
}
