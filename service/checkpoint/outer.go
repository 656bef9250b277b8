package checkpoint

import (
	"fmt"
	"slices"

	"github.com/rackweave/rackweave/service/api"
)

// outerRacks returns the job's racks, in order, and the rule of their outer optimizer, if they train independently.
func (s *State) outerRacks() (racks []string, rule string) {
	if s.Spec.Outer.Every == 0 {
		return nil, ""
	}
	return s.others.Names(), s.Spec.Outer.Rule
}

// fitsRacks checks that a checkpoint is of the same racks as the job if the racks of one of them train independently, because each
// has a state of its own.
func (s *State) fitsRacks(h *api.CheckpointHeader) error {
	racks, rule := s.outerRacks()
	switch {
	case slices.Equal(h.Racks, racks) && h.OuterRule == rule:
		return nil
	case len(racks) == 0:
		return fmt.Errorf("%w: racks %v have trained it independently, and this job has no outer optimizer: restore it in a job of these racks with an outer optimizer",
			errOtherRacks, h.Racks)
	case len(h.Racks) == 0:
		return fmt.Errorf("%w: it was saved without an outer optimizer, and this job has one: restore it in a job with outer none",
			errOtherRacks)
	}
	return fmt.Errorf("%w: racks %v have trained it with outer rule %q, the job has racks %v and rule %q: use the same racks, in the same order, and rule",
		errOtherRacks, h.Racks, h.OuterRule, racks, rule)
}
