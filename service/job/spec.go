package job

import (
	"cmp"
	"context"
	"fmt"

	"github.com/rackweave/rackweave/aggregate"
	"github.com/rackweave/rackweave/aggregate/optim"
	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/codec"
	"github.com/rackweave/rackweave/hierarchy/outer"
	"github.com/rackweave/rackweave/policy"
	"github.com/rackweave/rackweave/service/api"
	"github.com/rackweave/rackweave/service/engine"
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
	Compress   codec.Pair
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
	if s.Parts > chunk.MaxLanes {
		return s, fmt.Errorf("%d parts: use at most %d", s.Parts, chunk.MaxLanes)
	}
	if s.Part >= max(s.Parts, 1) {
		return s, fmt.Errorf("part %d of %d: use 0 to %d", s.Part, s.Parts, max(s.Parts, 1)-1)
	}
	var err error
	if s.Mode, err = aggregate.ParseMode(cmp.Or(r.Mode, usualMode(r))); err != nil {
		return s, err
	}
	if err := s.parsePolicy(r.Policy); err != nil {
		return s, err
	}
	if s.Compress, err = codec.ParsePair(r.Compress, s.Mode == aggregate.Eager || s.Mode == aggregate.Aggregate); err != nil {
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
	if s.Compress.Auto != "" {
		cfg, _, err := s.candidates()
		if err != nil {
			return s, err
		}
		s.Compress.Auto = cfg.Spec.String()
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
		{"compress", s.Compress, of.Compress},
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

// Quota bounds a job. A zero leaves only the machine's bound.
type Quota struct {
	Workers         int
	MemoryBytes     int64 // of all that the job has at the aggregator
	CheckpointBytes int64 // on disk
}

// Policy holds the token of a job and its bounds.
type Policy struct {
	Token  string
	Quota  Quota
	Weight int // of its share of the lanes. If 0, 1
}

func (q Quota) maxWorkers() int {
	return min(cmp.Or(q.Workers, aggregate.MaxWorkers), aggregate.MaxWorkers)
}

// Placement holds the engine and the lanes on which a job runs. It does not change once the job has started.
type Placement struct {
	Engine *engine.Engine
	Above  *aggregate.Place // If nil, no sums leave the rack.
	Lanes  []chunk.Lane     // of this aggregator, as Join returns them
	Racks  []int            // the workers of each rack whose gradients are added first, if all send theirs here
	Pods   int              // equal runs of those racks, whose sums are added first
}

// Racks is the racks that a job runs over. It is made for one job.
type Racks interface {
	// List returns the racks' names, for comparison.
	List() string
	// Form brings together the job, all of whose workers have joined here, with its other racks, and places it.
	Form(ctx context.Context, j *Job) (Placement, error)
	// Connect connects the job's aggregators.
	Connect(ctx context.Context) error
	// Started tells that the job has started.
	Started()
	// Shape gives the job the shape that its racks choose for a model of so many elements, before it has any of it.
	Shape(ctx context.Context, elems uint64) error
	// Agree waits until all racks have come to a stage, and refuses racks whose values differ.
	Agree(ctx context.Context, stage, what, value string) error
	// Welcome adds the racks to the answer to a worker.
	Welcome(r *api.JoinResponse)
	// Describe adds the racks to the job's status.
	Describe(out *api.JobStatus)
	// Explain returns the reason of a failure in another rack.
	Explain(e *aggregate.FailedElsewhere) error
	// Publish lets the other racks learn why the job has failed.
	Publish(why error)
	// Finish waits until the job has ended in the other racks, too: an aggregator that closes takes with it what they still wait for.
	// An error says that it may not have ended there, or not well.
	Finish() error
	// End ends the run. If the job could not start, why is the reason.
	End(why error)
}

// OneRack is the racks of a job whose workers are all in this one. It does nothing but place the job.
type OneRack struct{}

func (OneRack) List() string { return "" }

func (OneRack) Form(_ context.Context, j *Job) (Placement, error) {
	e, err := j.Table.chooseEngine(j)
	if err != nil {
		return Placement{}, err
	}
	return Placement{Engine: e, Lanes: e.Loaded()}, nil
}

func (OneRack) Connect(context.Context) error                       { return nil }
func (OneRack) Started()                                            {}
func (OneRack) Shape(context.Context, uint64) error                 { return nil }
func (OneRack) Agree(context.Context, string, string, string) error { return nil }
func (OneRack) Welcome(*api.JoinResponse)                           {}
func (OneRack) Describe(*api.JobStatus)                             {}
func (OneRack) Explain(e *aggregate.FailedElsewhere) error          { return e }
func (OneRack) Publish(error)                                       {}
func (OneRack) Finish() error                                       { return nil }
func (OneRack) End(error)                                           {}
