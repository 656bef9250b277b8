package job

import (
	"cmp"
	"fmt"

	"github.com/rackweave/rackweave/aggregate"
	"github.com/rackweave/rackweave/aggregate/optim"
	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/hierarchy/outer"
	"github.com/rackweave/rackweave/policy"
	"github.com/rackweave/rackweave/service/api"
)

// Spec holds the settings on which all workers of a job must agree.
type Spec struct {
	Workers    int // of this rack
	Mode       aggregate.Mode
	Rule       optim.Rule
	Hyper      optim.Hyper
	ChunkBytes int
	Policy     policy.Spec
	Total      int // workers of all racks
	Part       int // of the job that is this aggregator's
	Parts      int // aggregators that the job is spread over. If 0, it is here alone
	Outer      outer.Optimizer
	Racks      Racks // that the job runs over
}

// parseSpec reads and checks a request on its own.
func parseSpec(r *api.JoinRequest) (Spec, error) {
	s := Spec{
		Workers: int(r.Workers), Total: int(r.Workers), ChunkBytes: int(r.ChunkBytes), Part: int(r.Part), Parts: int(r.Parts),
		Racks: OneRack{},
	}
	if s.ChunkBytes == 0 {
		s.ChunkBytes = chunk.DefaultChunkBytes
	}
	if s.Workers < 1 || s.Workers > aggregate.MaxWorkers {
		return s, fmt.Errorf("%d workers: use 1 to %d", r.Workers, aggregate.MaxWorkers)
	}
	if int(r.Rank) < -1 || int(r.Rank) >= s.Workers {
		return s, fmt.Errorf("rank %d in a job of %d workers: use 0 to %d, or -1 for any", r.Rank, s.Workers, s.Workers-1)
	}
	// The chunk package knows which sizes are valid.
	if _, err := chunk.NewPlan(chunk.Config{ChunkBytes: s.ChunkBytes, Lanes: []chunk.Lane{{}}}); err != nil {
		return s, err
	}
	if s.Parts > chunk.MaxLanes || s.Part >= max(s.Parts, 1) {
		return s, fmt.Errorf("part %d of %d: use 0 to %d", s.Part, s.Parts, max(s.Parts, 1)-1)
	}
	var err error
	if s.Mode, err = aggregate.ParseMode(cmp.Or(r.Mode, usualMode(r))); err != nil {
		return s, err
	}
	if err := s.parsePolicy(r.Policy); err != nil {
		return s, err
	}
	switch {
	case s.Mode != aggregate.Aggregate && r.Optimizer == "":
		return s, fmt.Errorf("mode %v needs an optimizer: name one, or use mode %v", s.Mode, aggregate.Aggregate)
	case r.Optimizer != "":
		if s.Rule, err = optim.Parse(r.Optimizer); err != nil {
			return s, err
		}
	}
	switch {
	case s.Mode == aggregate.Aggregate && s.Rule != optim.Sum:
		return s, fmt.Errorf("mode %v runs no optimizer and %v is named: use mode eager or two-phase", s.Mode, s.Rule)
	case s.Mode != aggregate.Aggregate && s.Rule == optim.Sum:
		return s, fmt.Errorf("mode %v needs an optimizer that updates parameters, not %v: use mode %v", s.Mode, s.Rule,
			aggregate.Aggregate)
	case s.Rule.NeedsNorms() && s.Mode != aggregate.TwoPhase:
		return s, fmt.Errorf("optimizer %v needs whole tensors' norms: use mode %v", s.Rule, aggregate.TwoPhase)
	}
	if s.Hyper, err = s.Rule.Hyper(r.Hyper); err != nil {
		return s, err
	}
	s.Hyper = s.Rule.Rounded(s.Hyper)
	return s, s.Rule.Check(s.Hyper)
}

// usualMode returns the mode of a job whose workers name none.
func usualMode(r *api.JoinRequest) string {
	switch {
	case r.Policy != "" && r.Policy != "bsp":
		return "stream"
	case r.Optimizer != "":
		return "eager"
	}
	return "aggregate"
}

// liveHyper reports whether workers send hyper-parameters with their gradients.
func (s *Spec) liveHyper() bool { return s.Mode == aggregate.Eager || s.Mode == aggregate.Stream }

// parsePolicy reads the policy, which mode stream has and no other.
func (s *Spec) parsePolicy(text string) (err error) {
	if s.Mode == aggregate.Stream {
		text = cmp.Or(text, "asp")
	}
	if s.Policy, err = policy.Parse(cmp.Or(text, "bsp")); err != nil {
		return err
	}
	if s.Mode != aggregate.Stream && s.Policy != (policy.Spec{}) {
		return fmt.Errorf("mode %v is synchronous and policy %v is named: use mode %v", s.Mode, s.Policy, aggregate.Stream)
	}
	return s.Policy.Check(s.Workers)
}

// differs names the first field in which a worker's spec is not the job's.
func (s Spec) differs(of Spec) error {
	type field struct {
		name      string
		job, mine any
	}
	fields := []field{
		{"workers", s.Total, of.Total}, {"racks", s.Racks.List(), of.Racks.List()},
		{"mode", s.Mode, of.Mode},
		{"optimizer", s.Rule, of.Rule},
		{"chunk_bytes", s.ChunkBytes, of.ChunkBytes},
		{"policy", s.Policy, of.Policy},
		{"this aggregator's place", place{s.Part, s.Parts}, place{of.Part, of.Parts}},
		{"outer", s.Outer, of.Outer},
	}
	for _, name := range s.Rule.Takes() {
		fields = append(fields, field{name, float32(*s.Hyper.Field(name)), float32(*of.Hyper.Field(name))}) // as they were rounded
	}
	for _, f := range fields {
		if f.job != f.mine {
			return fmt.Errorf("%s is %v here and %v in the job as it was first joined: all workers must say the same", f.name, f.mine, f.job)
		}
	}
	return nil
}

// place is the number of an aggregator in a job that is spread over several.
type place struct{ part, parts int }

func (p place) String() string {
	if p.parts == 0 {
		return "alone"
	}
	return fmt.Sprintf("%d of %d", p.part+1, p.parts)
}
