package aggregate

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/rackweave/rackweave/aggregate/failure"
	"github.com/rackweave/rackweave/aggregate/lane"
	"github.com/rackweave/rackweave/aggregate/optim"
	"github.com/rackweave/rackweave/aggregate/outer"
	"github.com/rackweave/rackweave/aggregate/reduce"
	"github.com/rackweave/rackweave/aggregate/shard"
	"github.com/rackweave/rackweave/aggregate/store"
	"github.com/rackweave/rackweave/aggregate/uplink"
	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/codec"
	diloco "github.com/rackweave/rackweave/hierarchy/outer"
	"github.com/rackweave/rackweave/policy"
)

// Defaults of an engine.
const (
	DefaultWindow      = 64  // slots per worker and lane
	ByReferenceWindow  = 256 // for devices whose slots cost no memory
	DefaultMaxConns    = 256 // per lane
	DefaultLinkTimeout = 5 * time.Second
)

// Config describes an engine.
type Config struct {
	Lanes    []LaneConfig
	Window   int // if 0, a default for the devices
	MaxConns int // per lane; if 0, DefaultMaxConns
	// LinkTimeout bounds the time in which a connection whose NIC or link failed must resume over another. If 0, it is
	// DefaultLinkTimeout.
	LinkTimeout time.Duration
	// Now is the clock, in ns. If nil, it is the system's. The simulation has its own.
	Now func() int64
	// Manual engines have no goroutines: the owner calls every lane's Step, and Do runs at once.
	Manual bool
	// Watch wraps every command that lanes run, for measurements. If nil, commands run bare.
	Watch func(func() error) func() error
}

// MaxWorkers is the largest number of workers of a job.
const MaxWorkers = shard.MaxWorkers

// MaxWeight is the largest weight of a job.
const MaxWeight = 10000

// These types belong to the rooms below. An engine's callers use them.
type (
	// LaneConfig places a lane.
	LaneConfig = lane.Config
	// Lane is one core's loop.
	Lane = lane.Lane
	// Counters holds the counters of a lane.
	Counters = lane.Counters
	// WorkerCounters holds the counters of one worker.
	WorkerCounters = shard.WorkerCounters
	// WorkerGauge and TensorGauge hold the measurements by which a controller chooses codecs.
	WorkerGauge = shard.WorkerGauge
	TensorGauge = shard.TensorGauge
	RowStatus   = shard.RowStatus
	// Coding counts payloads of one direction, and what codecs make of them.
	Coding = store.Coding
	// RackCounters holds a job's counters for another rack.
	RackCounters = uplink.Counters
	// Place is a rack's place among the racks that it reduces with.
	Place = uplink.Place
	// Failure is the reason for the end of a job.
	Failure = failure.Failure
	// PanicError is a panic in a lane.
	PanicError = lane.PanicError
	// FailedElsewhere is the failure of a job in another rack.
	FailedElsewhere = uplink.FailedElsewhere
	// TensorSpec describes a tensor beside the plan.
	TensorSpec = store.Spec
	// MemoryUse is the memory that a job holds.
	MemoryUse = store.Use
)

var (
	// ErrClosed is returned for work on a closed lane, job or engine.
	ErrClosed = lane.ErrClosed
	// ErrProtocol is wrapped by a worker's violation of the protocol.
	ErrProtocol   = reduce.ErrProtocol
	ErrWorkerLost = reduce.ErrWorkerLost
	ErrFull       = lane.ErrFull
	ErrQueueLost  = lane.ErrQueueLost
	// ErrStale is returned for an attempt to resume after a later attempt.
	ErrStale = shard.ErrStale
	// ErrNotQuiet is returned by a [Snapshot] while gradients are under way.
	ErrNotQuiet = errors.New("gradients are under way")
	// ErrNoSnapshot is returned for a job whose state a [Snapshot] cannot hold.
	ErrNoSnapshot = errors.New("its state cannot be saved")
)

const noRank = failure.NoRank

// Mode is the aggregator's treatment of gradients.
type Mode = reduce.Mode

const (
	Eager     = reduce.Eager
	Aggregate = reduce.Aggregate
	TwoPhase  = reduce.TwoPhase
	Stream    = reduce.Stream
)

// ParseMode reads the name of a mode.
func ParseMode(s string) (Mode, error) { return reduce.ParseMode(s) }

// JobConfig describes a job.
type JobConfig struct {
	Name       string
	Workers    int
	Mode       Mode
	Rule       optim.Rule
	Hyper      optim.Hyper
	ChunkBytes int
	// Weight is the job's share of a lane relative to other jobs', from 1 to MaxWeight. If 0, it is 1.
	Weight int
	// Policy is the synchronization policy in mode stream. The other modes are synchronous.
	Policy policy.Spec
	// Decided, if not nil, receives every update that a policy decides, in order, while the policy waits. An act Cancel drops the
	// update of the set numbered Step, counted from 0, because worker W was lost in it.
	Decided func(policy.Act)
	// Lost, if not nil, receives every lost worker that the policy can do without, on a goroutine of its own.
	Lost func(rank int, why error)
	// Outer is the outer optimizer of racks that train apart, in mode eager. If it is the zero value, racks add their gradients in
	// every step.
	Outer diloco.Optimizer
	// Compress holds the codecs of the workers' gradients, and of the answers in modes eager and aggregate. With any of them, workers
	// may send gradients in every codec.
	Compress codec.Pair
	// Candidates are the codecs from which a controller chooses those of the gradients. [Job.ReadGauges] returns their losses.
	Candidates []codec.Spec
	// Place is the place of the job's rack among other racks. If nil, the rack is alone.
	Place *Place
	// Part is this engine's part of the job.
	Part Part
}

// Part is one aggregator's part of a job that is spread over several. Every worker sends each chunk to the aggregator that owns it.
// The zero value is the whole job.
type Part struct {
	Number, Of int // among the aggregators, which have as many lanes each
	// RackWorkers is the number of workers in each rack, in rank order. Their gradients are added first. If empty, all workers are in
	// one rack.
	RackWorkers []int
	Pods        int // number of equal runs of racks, whose sums are added first; if 0 or 1, racks are not grouped
}

// Several reports whether there are other parts.
func (p *Part) Several() bool { return p.Of > 1 }

// sumBytes returns the room for the sums of all racks in one lane.
func (p *Part) sumBytes(chunkBytes int) int64 {
	if len(p.RackWorkers) < 2 {
		return 0
	}
	return store.RackSumBytes(len(p.RackWorkers), chunkBytes)
}

// complete sets the fields that follow from the others, and returns an error if the job cannot run so among other aggregators. Its
// caller has checked the mode, the rule and the number of workers.
func (c *JobConfig) complete() error {
	if c.Mode == Aggregate {
		c.Rule = optim.Sum
	}
	if c.Weight = cmp.Or(c.Weight, 1); c.Weight < 1 || c.Weight > MaxWeight {
		return fmt.Errorf("weight %d: use 1 to %d", c.Weight, MaxWeight)
	}
	if err := c.checkPlace(); err != nil {
		return err
	}
	if err := c.checkPart(); err != nil {
		return err
	}
	if err := c.checkCodecs(); err != nil {
		return err
	}
	return c.checkOuter()
}

// checkCodecs returns an error if the job cannot train with its codecs.
func (c *JobConfig) checkCodecs() error {
	down := c.Compress.Down
	switch {
	case !down.Dense():
		return fmt.Errorf("answers in %v would add a second large loss to that of the gradients: use none, int8 or int4", down)
	case down.ID != codec.Raw && c.Mode != Eager && c.Mode != Aggregate:
		return fmt.Errorf("mode %v cannot send answers in %v: use none for answers, or mode eager or aggregate", c.Mode, down)
	}
	return c.CheckCodec(c.Compress.Up)
}

// CheckCodec returns an error if the job cannot train with a codec of gradients.
func (c *JobConfig) CheckCodec(up codec.Spec) error {
	if !up.Dense() && slices.Contains(c.Rule.Takes(), "beta2") {
		return fmt.Errorf("optimizer %v divides by the root of its gradients' mean squares, which %v makes spikes and zeros: use a codec of "+
			"4 bits or more, such as int4", c.Rule, up)
	}
	return nil
}

// CheckTensor returns an error if the job's codecs cannot shorten a tensor, or the job cannot update its rows. standard is the
// spec's.
func (c *JobConfig) CheckTensor(t chunk.Tensor, standard bool) error {
	if t.Width > 0 {
		return c.checkRows(t.Name, standard)
	}
	if c.Compress == (codec.Pair{}) || t.DType == chunk.F32 {
		return nil
	}
	return fmt.Errorf("tensor %q has wire type %v, and the job has codecs %v, which shorten f32: use wire type f32, or no codecs", t.Name,
		t.DType, c.Compress)
}

func (c *JobConfig) checkRows(sparse string, standard bool) error {
	switch {
	case c.Rule.NeedsNorms():
		return fmt.Errorf("sparse tensor %q has updates of single rows, and optimizer %v needs whole tensors' norms: use another optimizer, "+
			"or declare it dense", sparse, c.Rule)
	case c.Mode == Stream && !c.Policy.Stream():
		return fmt.Errorf("sparse tensor %q: policy %v adds up sets of gradients, which are of whole tensors: use a policy that applies each "+
			"gradient alone, such as asp or ssp, or declare it dense", sparse, c.Policy)
	case len(c.Part.RackWorkers) > 1:
		return racksNeedWhole(sparse, "in shape flat")
	case c.Place == nil:
		return nil
	case c.Place.Pods > 1:
		return racksNeedWhole(sparse, "in pods")
	case c.Place.Buddies:
		return racksNeedWhole(sparse, "with buddies")
	case c.Outer != diloco.Optimizer{}:
		return racksNeedWhole(sparse, "with an outer optimizer")
	case c.Place.CoreType() != chunk.F32:
		return racksNeedWhole(sparse, "with 16-bit sums")
	case standard && c.Mode == Eager:
		return racksNeedWhole(sparse, "for standard updates in mode eager")
	}
	return nil
}

func racksNeedWhole(sparse, when string) error {
	return fmt.Errorf("sparse tensor %q: racks exchange only whole tensors %s: change that, or declare it dense", sparse, when)
}

// checkPlace returns an error if the job cannot run over several racks.
func (c *JobConfig) checkPlace() error {
	p := c.Place
	if p == nil {
		return nil
	}
	switch err := p.CheckPlace(); {
	case err != nil:
		return err
	case c.Mode == Stream:
		return errors.New("mode stream runs in one rack: use mode eager, or one aggregator")
	case c.Outer.Every > 0 && p.Core == chunk.BF16:
		return fmt.Errorf("an outer step every %d steps adds differences, which cross the core in f32 only: use f32", c.Outer.Every)
	case !p.Buddies:
		return nil
	case c.Mode != Eager:
		return errors.New("buddies keep the state of mode eager: use that mode, or a cluster without buddies")
	case c.Outer != diloco.Optimizer{}:
		return errors.New("buddies cannot keep the state of racks that train apart: use outer none, or a cluster without buddies")
	}
	return nil
}

// checkPart returns an error if the job cannot be spread over several aggregators.
func (c *JobConfig) checkPart() error {
	p := &c.Part
	all := 0
	for _, n := range p.RackWorkers {
		all += n
	}
	switch {
	case p.Number < 0 || p.Number >= max(p.Of, 1):
		return fmt.Errorf("part %d of %d", p.Number, p.Of)
	case p.Several() && c.Place != nil:
		return errors.New("aggregators that reduce among themselves share no parts of a job")
	case p.Several() && (c.Mode == Stream || c.Mode == TwoPhase):
		return fmt.Errorf("mode %v runs at one aggregator: use mode eager, or one aggregator", c.Mode)
	case len(p.RackWorkers) > 0 && (all != c.Workers || p.Pods > 1 && len(p.RackWorkers)%p.Pods != 0):
		return fmt.Errorf("%d workers in racks of %v and %d pods", c.Workers, p.RackWorkers, p.Pods)
	}
	return nil
}

// checkOuter returns an error if the racks of the job cannot train apart.
func (c *JobConfig) checkOuter() error {
	o := c.Outer
	switch {
	case o == diloco.Optimizer{}:
		return nil
	case c.Mode != Eager:
		return fmt.Errorf("racks with an outer step every %d steps train apart, which mode %v cannot: use mode eager", o.Every, c.Mode)
	case c.Place == nil:
		return fmt.Errorf("an outer step every %d steps needs several racks: use aggregators of several racks", o.Every)
	}
	return o.Check()
}

func (c *JobConfig) storeConfig() store.Config {
	s := store.Config{
		Rule: c.Rule, Hyper: c.Hyper, States: c.Rule.States(c.Hyper), Scale: 1, Core: chunk.F32,
		Direct: c.Mode != Aggregate && c.Mode != Stream, Codecs: c.Compress, Candidates: c.Candidates,
	}
	if c.Mode == Aggregate && (c.Hyper.Scale != 1 || c.Hyper.Clip > 0) {
		scalars := optim.Derive(optim.Sum, c.Hyper, 1)
		s.Sum = &scalars
	}
	s.Direct = s.Direct && !s.CodesAnswers()
	if c.Place != nil {
		s.Core, s.History, s.CodesCore = c.Place.CoreType(), c.Place.Buddies, c.Place.Coded()
		s.Direct = s.Direct && s.Core == chunk.F32 && !s.CodesCore
	}
	if c.Outer != (diloco.Optimizer{}) {
		s.Scale = float64(c.total()) / float64(c.Workers)
	}
	s.Arrays = c.arrays()
	return s
}

func (c *JobConfig) total() int {
	if c.Place == nil {
		return c.Workers
	}
	return c.Place.First(c.Place.Racks)
}

// arrays returns the number of f32 arrays of a chunk whose optimizer state this rack does not keep, and of a chunk whose state it
// keeps.
func (c *JobConfig) arrays() [2]int {
	states := c.Rule.States(c.Hyper)
	switch {
	case c.Mode == Aggregate:
		return [2]int{}
	case c.Outer != diloco.Optimizer{}:
		n := outer.Arrays(c.Outer)
		return [2]int{1 + states + n[0], 1 + states + n[1]}
	case c.Place != nil && c.Place.Buddies:
		return [2]int{1, 2 * (1 + states)}
	case c.Mode == TwoPhase, c.Mode == Stream && !c.Policy.Stream():
		return [2]int{1, 2 + states}
	}
	return [2]int{1, 1 + states}
}
