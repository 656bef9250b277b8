package job

import (
	"context"

	"github.com/rackweave/rackweave/aggregate"
	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/service/api"
	"github.com/rackweave/rackweave/service/engine"
)

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
	// Alone reports whether the workers of the job are in this rack alone.
	Alone() bool
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
	// End ends the run.
	End()
	// GiveUp ends the run of a job that could not start.
	GiveUp(why error)
}

// OneRack is the racks of a job whose workers are all in this one. It does nothing but place the job.
type OneRack struct{}

func (OneRack) List() string { return "" }
func (OneRack) Alone() bool  { return true }

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
func (OneRack) End()                                                {}
func (OneRack) GiveUp(error)                                        {}
