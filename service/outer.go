package service

import (
	"cmp"
	"fmt"

	"github.com/rackweave/rackweave/aggregate"
	"github.com/rackweave/rackweave/hierarchy"
)

// chooseOuter reads how a job's racks that train on their own meet: as its worker says, else as the cluster's file does.
func (s *Service) chooseOuter(sp *spec, text string) (err error) {
	if s.cluster != nil {
		text = cmp.Or(text, s.cluster.Outer)
	}
	if sp.outer, err = hierarchy.ParseOuter(text); err != nil || sp.outer == (hierarchy.Outer{}) {
		return err
	}
	switch {
	case s.cluster == nil:
		return fmt.Errorf("outer %q, and this aggregator is of no cluster: leave it out, or join the aggregators of several racks", text)
	case s.cluster.topology.Shape == hierarchy.Flat:
		return fmt.Errorf("outer %q has racks train on their own, and in shape flat no aggregator has a rack's sums: use another shape, or outer none",
			text)
	case sp.mode != aggregate.Eager:
		return fmt.Errorf("outer %q has racks train on their own, which mode %v cannot: use mode %v, or outer none", text, sp.mode,
			aggregate.Eager)
	}
	return sp.outer.CheckRacks(len(s.cluster.Racks))
}
