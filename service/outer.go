package service

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/rackweave/rackweave/aggregate"
	"github.com/rackweave/rackweave/hierarchy"
	"github.com/rackweave/rackweave/service/api"
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

// trainAlone returns the job's racks, in order, and the rule of their outer optimizer, if they train on their own.
func (j *job) trainAlone() (racks []string, rule string) {
	if j.spec.outer.Every == 0 {
		return nil, ""
	}
	return j.spec.racks.Names(), j.spec.outer.Rule
}

// fitsRacks checks that a checkpoint is of the same racks as the job, if either's train on their own: each has a state of its own.
func (j *job) fitsRacks(h *api.CheckpointHeader) error {
	racks, rule := j.trainAlone()
	switch {
	case slices.Equal(h.Racks, racks) && h.OuterRule == rule:
		return nil
	case len(racks) == 0:
		return fmt.Errorf("%w: it holds what %v have trained on their own, and this job's workers train together: restore it in a job of these racks with an outer optimizer",
			errOtherRacks, h.Racks)
	case len(h.Racks) == 0:
		return fmt.Errorf("%w: it is of workers that train together, and this job's racks train on their own: restore it in a job with outer none",
			errOtherRacks)
	}
	return fmt.Errorf("%w: it holds what %v have trained that meet by rule %q, the job has %v and rule %q: use the same racks, in the same order, and rule",
		errOtherRacks, h.Racks, h.OuterRule, racks, rule)
}
