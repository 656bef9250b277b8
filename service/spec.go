package service

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/rackweave/rackweave/aggregate"
	"github.com/rackweave/rackweave/aggregate/optim"
	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/hierarchy"
	"github.com/rackweave/rackweave/policy"
	"github.com/rackweave/rackweave/service/api"
)

// spec is what all workers of a job must agree on.
type spec struct {
	workers    int // of this rack
	mode       aggregate.Mode
	rule       optim.Rule
	hyper      optim.Hyper
	chunkBytes int
	policy     policy.Spec
	total      int // workers of all racks
	part       int // of the job that is this aggregator's
	parts      int // aggregators that the job is spread over; 0: it is here alone
	outer      hierarchy.Outer
	onLoss     string   // the job's own choice about racks that were lost; empty: the cluster's
	racks      *cluster // that the job runs over; nil: the rack is alone, or the job in parts
	among      *cluster // of a job in parts: the racks of its workers, whose gradients are added first; nil: they are in one
}

// parseSpec reads and checks a request on its own.
func parseSpec(r *api.JoinRequest) (spec, error) {
	s := spec{
		workers: int(r.Workers), total: int(r.Workers), chunkBytes: int(r.ChunkBytes), part: int(r.Part), parts: int(r.Parts),
		onLoss: r.OnLoss,
	}
	if s.chunkBytes == 0 {
		s.chunkBytes = chunk.DefaultChunkBytes
	}
	if s.workers < 1 || s.workers > aggregate.MaxWorkers {
		return s, fmt.Errorf("%d workers: use 1 to %d", r.Workers, aggregate.MaxWorkers)
	}
	if int(r.Rank) < -1 || int(r.Rank) >= s.workers {
		return s, fmt.Errorf("rank %d in a job of %d workers: use 0 to %d, or -1 for any", r.Rank, s.workers, s.workers-1)
	}
	// The chunk package knows which sizes are valid.
	if _, err := chunk.NewPlan(chunk.Config{ChunkBytes: s.chunkBytes, Lanes: []chunk.Lane{{}}}); err != nil {
		return s, err
	}
	if s.parts > chunk.MaxLanes || s.part >= max(s.parts, 1) {
		return s, fmt.Errorf("part %d of %d: use 0 to %d", s.part, s.parts, max(s.parts, 1)-1)
	}
	var err error
	if s.mode, err = aggregate.ParseMode(r.Mode); err != nil {
		return s, err
	}
	if err := s.parsePolicy(r.Policy); err != nil {
		return s, err
	}
	switch {
	case s.mode != aggregate.Aggregate && r.Optimizer == "":
		return s, fmt.Errorf("mode %v needs an optimizer: name one, or use mode %v", s.mode, aggregate.Aggregate)
	case r.Optimizer != "":
		if s.rule, err = optim.Parse(r.Optimizer); err != nil {
			return s, err
		}
	}
	switch {
	case s.mode == aggregate.Aggregate && s.rule != optim.Sum:
		return s, fmt.Errorf("mode %v runs no optimizer and %v is named: use mode eager or two-phase", s.mode, s.rule)
	case s.mode != aggregate.Aggregate && s.rule == optim.Sum:
		return s, fmt.Errorf("mode %v needs an optimizer that updates parameters, not %v: use mode %v", s.mode, s.rule,
			aggregate.Aggregate)
	case s.rule.NeedsNorms() && s.mode != aggregate.TwoPhase:
		return s, fmt.Errorf("optimizer %v needs whole tensors' norms: use mode %v", s.rule, aggregate.TwoPhase)
	}
	if s.hyper, err = s.rule.Hyper(r.Hyper); err != nil {
		return s, err
	}
	s.hyper = s.rule.Rounded(s.hyper)
	return s, s.rule.Check(s.hyper)
}

// liveHyper reports whether workers send hyper-parameters with their gradients.
func (s *spec) liveHyper() bool { return s.mode == aggregate.Eager || s.mode == aggregate.Stream }

// parsePolicy reads the policy, which mode stream has and no other.
func (s *spec) parsePolicy(text string) (err error) {
	if s.mode == aggregate.Stream {
		text = cmp.Or(text, "asp")
	}
	if s.policy, err = policy.Parse(cmp.Or(text, "bsp")); err != nil {
		return err
	}
	if s.mode != aggregate.Stream && s.policy != (policy.Spec{}) {
		return fmt.Errorf("mode %v is synchronous and policy %v is named: use mode %v", s.mode, s.policy, aggregate.Stream)
	}
	return s.policy.Check(s.workers)
}

// differs names the first field in which a worker's spec is not the job's.
func (s spec) differs(of spec) error {
	type field struct {
		name      string
		job, mine any
	}
	fields := []field{
		{"workers", s.total, of.total}, {"racks", s.racks.names(), of.racks.names()},
		{"mode", s.mode, of.mode},
		{"optimizer", s.rule, of.rule},
		{"chunk_bytes", s.chunkBytes, of.chunkBytes},
		{"policy", s.policy, of.policy},
		{"this aggregator's place", place{s.part, s.parts}, place{of.part, of.parts}},
		{"outer", s.outer, of.outer},
		{"on-loss", cmp.Or(s.onLoss, "the cluster's"), cmp.Or(of.onLoss, "the cluster's")},
	}
	for _, name := range s.rule.Takes() {
		fields = append(fields, field{name, float32(*s.hyper.Field(name)), float32(*of.hyper.Field(name))}) // as they were rounded
	}
	for _, f := range fields {
		if f.job != f.mine {
			return fmt.Errorf("%s is %v here and %v in the job as it was first joined: all workers must say the same", f.name, f.mine, f.job)
		}
	}
	return nil
}

// place is an aggregator's among those that a job is spread over.
type place struct{ part, parts int }

func (p place) String() string {
	if p.parts == 0 {
		return "alone"
	}
	return fmt.Sprintf("%d of %d", p.part+1, p.parts)
}

func list(names []string) string {
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}
