package aggregate

import (
	"time"

	"github.com/rackweave/rackweave/aggregate/optim"
	"github.com/rackweave/rackweave/aggregate/reduce"
	"github.com/rackweave/rackweave/hierarchy"
	"github.com/rackweave/rackweave/policy"
	"github.com/rackweave/rackweave/verbs"
)

// Defaults of an engine.
const (
	DefaultWindow       = 64  // slots per worker and lane
	ByReferenceWindow   = 256 // where a slot costs no memory
	DefaultMaxConns     = 256 // per lane
	DefaultSpin         = 64  // empty rounds before a lane sleeps
	DefaultPeerDeadline = 10 * time.Second
	DefaultLinkTimeout  = 5 * time.Second
)

// Config is what an engine runs on.
type Config struct {
	Lanes    []LaneConfig
	Window   int // 0: what suits the devices
	MaxConns int // per lane; 0: DefaultMaxConns
	Spin     int // -1: none; 0: DefaultSpin
	// Balance is the window by which lanes that are uneven for good are found, to move chunks; 0: DefaultBalance, negative: none move.
	Balance time.Duration
	// How long an attached worker may take to connect; 0: DefaultPeerDeadline.
	PeerDeadline time.Duration
	// How long a connection whose NIC or link failed may take to come back over another; 0: DefaultLinkTimeout.
	LinkTimeout time.Duration
	// Now is the clock, in ns; nil: the system's. The simulation has its own.
	Now func() int64
	// Manual engines have no goroutines: the owner calls every lane's Step, and Do runs at once.
	Manual bool
}

// MaxWeight is the most weight that a job can have.
const MaxWeight = 10000

// LaneConfig places a lane.
type LaneConfig struct {
	Device *verbs.Device
	NIC    int // index of the device's NIC in the plan
	CPU    int // -1: not pinned
	Node   int // NUMA node of its memory; -1: any
}

// Mode is what the aggregator does with gradients.
type Mode = reduce.Mode

// The modes.
const (
	Eager     = reduce.Eager
	Aggregate = reduce.Aggregate
	TwoPhase  = reduce.TwoPhase
	Stream    = reduce.Stream
)

// ParseMode reads the name of a mode.
func ParseMode(s string) (Mode, error) { return reduce.ParseMode(s) }

// JobConfig is what a job is made of.
type JobConfig struct {
	Name       string
	Workers    int
	Mode       Mode
	Rule       optim.Rule
	Hyper      optim.Hyper
	ChunkBytes int
	// Weight is the job's part of a lane that several jobs use, beside theirs: from 1, which 0 stands for, to MaxWeight.
	Weight int
	// Policy is who waits for whom in mode stream; the others are synchronous.
	Policy policy.Spec
	// Decided, if not nil, is told of every update that a policy decides, in order; the policy waits meanwhile.
	Decided func(policy.Act)
	// Outer is how the job's racks that train on their own meet, in mode eager; the zero value: they add their gradients.
	Outer hierarchy.Outer
	// Met, if not nil, is told of every decision about the racks' meetings, in order, where racks may miss some ([hierarchy.Outer]'s
	// Quorum), with the number of the fragment's last meeting and the racks' weights in it. A lane waits meanwhile, and reuses
	// weights.
	Met func(w hierarchy.Word, meeting uint32, weights []int)
	// Above places the job's rack among others; nil: it is alone.
	Above *Above
	// Part is what of the job is this engine's.
	Part Part
}

// TensorSpec is what a job knows of a tensor beside the plan.
type TensorSpec struct {
	LRMult, WDMult float64
}
