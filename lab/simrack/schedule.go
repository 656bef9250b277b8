package simrack

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/rackweave/rackweave/aggregate"
	"github.com/rackweave/rackweave/aggregate/optim"
	"github.com/rackweave/rackweave/cgo/fabric/simfabric"
	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/codec"
)

// chunkBytes is the chunk size of every schedule, the smallest possible.
const chunkBytes = chunk.MinChunkBytes

// memory is the kind of memory in which a job's workers keep gradients and results.
type memory int

const (
	ordinary memory = iota // registered when it is used
	arena                  // registered once
	copied                 // not reachable, so copied through staging buffers
)

var memoryNames = [...]string{"ordinary memory", "arenas", "staging buffers"}

// Schedule describes a run. Its seed determines all of it, and the choices during the run.
type Schedule struct {
	Seed                      uint64
	Lanes, NICs               int // lanes take the aggregator's NICs in turn
	Window, Staging           int
	ByReference, CopiesAtPost bool
	Network                   simfabric.Network
	NetworkWeight             int
	LaneWeights               []int
	Spin                      int // empty rounds before a lane looks for stalls
	Jobs                      []*JobSchedule
	Links                     []linkFault
	LanePauses                []pause // of lanes
	Fault                     Fault
	Failovers                 *failoverSchedule // if nil, connections do not survive their queue pair
}

// JobSchedule describes a job.
type JobSchedule struct {
	Name     string
	Starts   start
	Retires  bool // closed when it is over, while others may continue
	Mode     aggregate.Mode
	Rule     optim.Rule
	Hyper    optim.Hyper
	Wire     chunk.DType
	Type     chunk.DType // of gradients and results in the workers' memory
	Codecs   codec.Pair
	Memory   memory
	InPlace  bool // the result replaces the gradient
	Batches  [][]uint64
	Widths   [][]uint32 // of rows, as Batches; nil if all tensors are dense
	Standard bool       // rows without a gradient take the rule, too
	Phases   []phase
	Policy   pacing        // mode stream
	Sets     bool          // mode stream: policies that apply sets of gradients
	Change   *policyChange // mode stream; may be nil
	Workers  []WorkerSchedule
}

// start is the time at which a job starts.
type start int

const (
	atOnce     start = iota
	inBetween        // when the first job has done some of its operations
	afterwards       // when the first job is over
)

var startNames = [...]string{"starts at once", "starts in between", "starts afterwards"}

// WorkerSchedule describes the behaviour of a worker.
type WorkerSchedule struct {
	Weight     int  // frequency of its turns, relative to the network
	Seldom     bool // its turns are much rarer than that until its job fails
	AtOnce     int  // operations submitted in one turn
	Pipelined  bool // begins the next phase with the tensors that are done with this one
	Priorities int  // number of priorities
	Pauses     []pause
	Leaves     bool // leaves the job when it is done, while others are not
	Skips      int  // phases at the end of the program that it leaves to others
}

// pause is a time in which a worker or a lane is idle.
type pause struct {
	who      int
	from, to time.Duration
}

// linkFault is a time in which a host has no link.
type linkFault struct {
	host     int // index in cluster.hosts
	from, to time.Duration
}

type phaseKind int

const (
	phaseBroadcast phaseKind = iota
	phasePushPull            // one operation
	phasePush                // one operation
	phasePull                // one operation
	phaseCommit              // of a two-phase step
	phaseRegister            // the next batch of tensors
	phaseEnd                 // of a worker's step, in mode stream
)

var phaseNames = [...]string{"broadcast", "pushpull", "push", "pull", "commit", "register", "end of step"}

// phase is a part of every worker's program: an operation on each of some tensors, in any order.
type phase struct {
	kind      phaseKind
	tensors   []int
	hyper     *optim.Hyper       // eager: from this phase on
	commit    chunk.TensorRecord // phaseCommit
	batch     int                // phaseRegister
	ifPullDue bool               // phasePull: only if the answer to the end of the step demands it
}

func (k phaseKind) op() chunk.Op {
	return [...]chunk.Op{chunk.OpBroadcast, chunk.OpPushPull, chunk.OpPush, chunk.OpPull}[k]
}

// draw is the randomness from which a schedule is made.
type draw struct{ *rand.Rand }

func (d draw) chance(percent int) bool { return d.IntN(100) < percent }

// between returns a number from lo to hi.
func (d draw) between(lo, hi int) int { return lo + d.IntN(hi-lo+1) }

func (d draw) duration(lo, hi time.Duration) time.Duration {
	return lo + time.Duration(d.Int64N(int64(hi-lo)+1))
}

// Draw returns the schedule of a seed.
func Draw(seed uint64) *Schedule {
	d := draw{rand.New(rand.NewPCG(seed, 1))}
	s := &Schedule{
		Seed: seed, Lanes: d.between(1, 3), NICs: 1, Window: d.between(2, 8), Staging: d.between(2, 4),
		ByReference: d.chance(35), NetworkWeight: d.between(1, 8), Spin: d.between(0, 3),
	}
	if d.chance(30) {
		s.NICs = s.Lanes
	}
	s.CopiesAtPost = d.chance(25)
	if d.chance(30) {
		s.Network.ByTime = true
	}
	for range s.Lanes {
		s.LaneWeights = append(s.LaneWeights, d.between(1, 4))
	}
	jobs := []int{1, 1, 1, 1, 1, 1, 2, 2, 2, 3}[d.IntN(10)]
	for i := range jobs {
		j := d.job(fmt.Sprintf("job%d", i))
		if i > 0 && d.chance(50) {
			j.Starts = start(d.between(1, 2))
		}
		s.Jobs = append(s.Jobs, j)
	}
	crowd(s)
	compress(s)
	sparsify(s)
	d.nuisances(s)
	if d.chance(50) {
		s.Fault = d.fault(s)
	}
	failovers(s)
	misreport(s)
	return s
}

func (d draw) job(name string) *JobSchedule {
	j := &JobSchedule{Name: name, Memory: memory(d.IntN(3)), InPlace: d.chance(20), Retires: d.chance(50)}
	j.Mode = []aggregate.Mode{aggregate.Aggregate, aggregate.Eager, aggregate.TwoPhase}[d.IntN(3)]
	rules := optim.Rules()[1:]
	for j.Rule = optim.Sum; j.Mode != aggregate.Aggregate && !suits(j.Rule, j.Mode); {
		j.Rule = rules[d.IntN(len(rules))]
	}
	j.Hyper = j.Rule.Defaults()
	with := j.Hyper
	with.Momentum = 0.5
	if d.chance(50) && j.Rule.States(with) > j.Rule.States(j.Hyper) {
		j.Hyper = with
	}
	j.Wire = []chunk.DType{chunk.F32, chunk.F32, chunk.BF16, chunk.F16}[d.IntN(4)]
	j.Type = []chunk.DType{j.Wire, chunk.F32, chunk.F32, chunk.BF16, chunk.F16}[d.IntN(5)]
	for range d.between(1, 5) {
		j.Workers = append(j.Workers, d.worker())
	}
	j.Batches = append(j.Batches, d.batch(j.Wire))
	if d.chance(30) {
		j.Batches = append(j.Batches, d.batch(j.Wire))
	}
	j.Phases = d.program(j)
	return j
}

// suits reports whether a job in a mode with an optimizer can have a rule.
func suits(rule optim.Rule, mode aggregate.Mode) bool {
	return rule != optim.Sum && (!rule.NeedsNorms() || mode == aggregate.TwoPhase)
}

func (d draw) worker() WorkerSchedule {
	return WorkerSchedule{Weight: d.between(1, 4), AtOnce: d.between(1, 6), Pipelined: d.chance(60), Priorities: d.between(1, 4),
		Leaves: d.chance(25), Seldom: d.chance(15)}
}

// crowd makes some schedules stall: three workers or more submit as much as they can, in different orders, through as few slots and
// buffers as possible. It draws from randomness of its own, so that the rest of the schedule does not depend on it.
func crowd(s *Schedule) {
	d := draw{rand.New(rand.NewPCG(s.Seed, 4))}
	if !d.chance(10) {
		return
	}
	s.Staging = 2
	if d.chance(70) {
		s.Lanes, s.NICs, s.LaneWeights = 1, 1, s.LaneWeights[:1] // so that it has all chunks
	}
	if !s.ByReference || d.chance(30) {
		s.Window = d.between(2, 3)
	}
	for _, j := range s.Jobs {
		for len(j.Workers) < 3 {
			j.Workers = append(j.Workers, d.worker())
		}
		for i := range j.Workers {
			w := &j.Workers[i]
			w.AtOnce, w.Pipelined, w.Priorities = 6, true, d.between(1, 4)
		}
		if s.ByReference && d.chance(70) {
			j.Memory = copied
		}
	}
}

// specs are codecs of every kind.
var specs = []string{"int8", "int4", "int8:stochastic", "sign", "2bit:0.01", "ternary", "topk:3%", "topk:0.2", "fp8-e4m3",
	"fp8-e5m2"}

// compress gives some jobs codecs. It draws from randomness of its own, as crowd does.
func compress(s *Schedule) {
	d := draw{rand.New(rand.NewPCG(s.Seed, 5))}
	for _, j := range s.Jobs {
		if !d.chance(30) || j.Wire != chunk.F32 {
			continue
		}
		answers := j.Mode == aggregate.Eager || j.Mode == aggregate.Aggregate
		text := specs[d.IntN(len(specs))]
		if d.chance(30) {
			text += "/none"
		}
		p, err := codec.ParsePair(text, answers)
		if err != nil {
			panic(err)
		}
		if p.Up.Dense() || !j.squares() {
			j.Codecs = p
		}
	}
}

// squares reports whether the job's rule divides by the root of mean squares, which sparse codecs disturb.
func (j *JobSchedule) squares() bool { return slices.Contains(j.Rule.Takes(), "beta2") }

// batch draws the sizes of tensors: one element, about a chunk, several chunks.
func (d draw) batch(wire chunk.DType) (elems []uint64) {
	perChunk := chunkBytes / wire.Size()
	for range d.between(1, 5) {
		n := 0
		switch d.IntN(5) {
		case 0:
			n = 1
		case 1:
			n = d.between(1, perChunk)
		case 2:
			n = perChunk * d.between(1, 3)
		default:
			n = d.between(1, perChunk*6)
		}
		elems = append(elems, uint64(n))
	}
	return elems
}

// program draws the phases of all workers of a job.
func (d draw) program(j *JobSchedule) (phases []phase) {
	tensors := 0
	for b := range j.Batches {
		if b > 0 {
			phases = append(phases, phase{kind: phaseRegister, batch: b})
		}
		first := tensors
		tensors += len(j.Batches[b])
		if j.Mode != aggregate.Aggregate || d.chance(30) {
			phases = append(phases, phase{kind: phaseBroadcast, tensors: span(first, tensors)})
		}
		steps := d.between(1, 3)
		if d.chance(2) && tensors == 1 && j.Batches[0][0] < 50 {
			steps = 140 // more than the number of epochs
		}
		for range steps {
			phases = append(phases, d.step(j, tensors)...)
		}
	}
	return phases
}

func (d draw) step(j *JobSchedule, tensors int) []phase {
	some := d.some(tensors)
	switch j.Mode {
	case aggregate.Aggregate:
		return []phase{{kind: phasePushPull, tensors: some}}
	case aggregate.Eager:
		p := phase{kind: phasePushPull, tensors: some}
		if d.chance(40) {
			h := j.Hyper
			h.LR *= d.Float64() + 0.5
			p.hyper = &h
		}
		if d.chance(30) {
			p.kind = phasePush
			return []phase{p, {kind: phasePull, tensors: d.some(tensors)}}
		}
		return []phase{p}
	}
	var phases []phase
	for range d.between(1, 2) {
		phases = append(phases, phase{kind: phasePush, tensors: d.some(tensors)})
	}
	rec := chunk.TensorRecord{LR: d.Float32(), WD: 0.01, Scale: 1 / float32(len(j.Workers))}
	if d.chance(40) {
		rec.Clip = d.Float32() * 100
	}
	if d.chance(15) {
		rec.Flags = chunk.RecordSkip
	}
	return append(phases, phase{kind: phaseCommit, commit: rec}, phase{kind: phasePull, tensors: some})
}

// some returns some of the tensors, at least one and most often all.
func (d draw) some(n int) []int {
	all := span(0, n)
	if d.chance(60) {
		return all
	}
	d.Shuffle(n, func(a, b int) { all[a], all[b] = all[b], all[a] })
	return all[:d.between(1, n)]
}

func span(from, to int) (out []int) {
	for i := from; i < to; i++ {
		out = append(out, i)
	}
	return out
}

// nuisances draws events that must not fail a job.
func (d draw) nuisances(s *Schedule) {
	f := &s.Network
	if d.chance(40) {
		f.Delay, f.DelayMax = uint32(d.between(100, 8000)), d.duration(time.Microsecond, 5*time.Millisecond)
	}
	if d.chance(30) {
		f.Drop = uint32(d.between(50, 2000))
	}
	if d.chance(30) {
		f.RNR = uint32(d.between(50, 4000))
	}
	hosts := s.NICs
	for _, j := range s.Jobs {
		for w := range j.Workers {
			if d.chance(15) {
				from := d.duration(0, 3*time.Millisecond)
				j.Workers[w].Pauses = append(j.Workers[w].Pauses, pause{from: from, to: from + d.duration(0, 3*time.Second)})
			}
			hosts++
		}
	}
	if d.chance(15) {
		from := d.duration(0, 3*time.Millisecond)
		s.LanePauses = append(s.LanePauses, pause{d.IntN(s.Lanes), from, from + d.duration(0, 200*time.Millisecond)})
	}
	// A lost message is sent again every eighth of a second, for a second.
	for at := time.Duration(0); d.chance(20); {
		l := linkFault{host: d.IntN(hosts), from: at + d.duration(0, 3*time.Millisecond)}
		l.to = l.from + d.duration(0, 300*time.Millisecond)
		s.Links = append(s.Links, l)
		at = l.to + 400*time.Millisecond
	}
}

func (s *Schedule) String() string {
	var b strings.Builder
	fmt.Fprintf(&b,
		"seed %d: %d lanes on %d NICs, window %d, by reference %v (staging %d), copies at post %v, network %+v\n",
		s.Seed, s.Lanes, s.NICs, s.Window, s.ByReference, s.Staging, s.CopiesAtPost, s.Network)
	fmt.Fprintf(&b, "  weights: network %d, lanes %v; links %v; lane pauses %v; fault: %v\n", s.NetworkWeight, s.LaneWeights,
		s.Links, s.LanePauses, s.Fault)
	if s.Failovers != nil {
		fmt.Fprintf(&b, "  failovers: %+v\n", *s.Failovers)
	}
	for _, j := range s.Jobs {
		fmt.Fprintf(&b, "  %s: %s, retires %v; %v, %v, %v on the wire, %v in %s, codecs %v, in place %v, tensors %v, rows of %v, standard %v\n",
			j.Name, startNames[j.Starts], j.Retires, j.Mode, j.Rule, j.Wire, j.Type, memoryNames[j.Memory], j.Codecs, j.InPlace, j.Batches,
			j.Widths, j.Standard)
		if j.Mode == aggregate.Stream {
			fmt.Fprintf(&b, "    policy %v, change %+v\n", j.Policy, j.Change)
		}
		for i, w := range j.Workers {
			fmt.Fprintf(&b, "    worker %d: %+v\n", i, w)
		}
		for i, p := range j.Phases {
			fmt.Fprintf(&b, "    phase %d: %s %v", i, phaseNames[p.kind], p.tensors)
			if p.kind == phaseCommit {
				fmt.Fprintf(&b, " %+v", p.commit)
			}
			b.WriteByte('\n')
		}
	}
	return b.String()
}
