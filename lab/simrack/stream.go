package simrack

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/rackweave/rackweave/aggregate"
	"github.com/rackweave/rackweave/aggregate/optim"
	"github.com/rackweave/rackweave/aggregate/racktest"
	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/codec"
	"github.com/rackweave/rackweave/policy"
)

// traceEvents is the number of events that a lane's trace keeps between two rounds.
const traceEvents = 1 << 6

// pacing is a policy, and the bounds that it keeps.
type pacing struct {
	policy.Spec
	bound  uint64 // of the steps by which a worker may be ahead; [policy.Unbounded]: none
	spares int    // workers that may be lost while the others go on
}

func (d draw) pacing(workers int, rate string) pacing {
	s := d.IntN(4)
	text, bound := "asp", uint64(policy.Unbounded)
	switch d.IntN(6) {
	case 0:
		text = "ssp:s=none"
	case 1, 2:
		text, bound = fmt.Sprintf("ssp:s=%d", s), uint64(s)
	case 3:
		upper := s + d.IntN(4)
		text, bound = fmt.Sprintf("lagtuner:sl=%d,su=%d", s, upper), uint64(upper)
	case 4:
		text = fmt.Sprintf("lagtuner:sl=%d,su=%d,reading=%s", s, s+d.IntN(4), []string{"literal", "loose"}[d.IntN(2)])
	}
	if rate != "" {
		text = addParameter(text, "rate="+rate)
	}
	spec, err := policy.Parse(text)
	if err != nil {
		panic(err)
	}
	return pacing{spec, bound, workers - 1}
}

// sets draws a policy of sets.
func (d draw) sets(workers int) pacing {
	k := d.between(1, workers)
	some := workers - k
	drawn := []struct {
		text   string
		spares int
	}{
		{"bsp", 0}, {fmt.Sprintf("k-bsp:k=%d", k), some}, {fmt.Sprintf("k-batch-bsp:k=%d", k), some},
		{fmt.Sprintf("k-asp:k=%d", k), some}, {fmt.Sprintf("k-batch-asp:k=%d", k), some},
		{fmt.Sprintf("softsync:m=%d", k), workers - workers/k}, {fmt.Sprintf("backup:b=%d", k-1), k - 1},
	}[d.IntN(7)]
	spec, err := policy.Parse(drawn.text)
	if err != nil {
		panic(err)
	}
	return pacing{spec, policy.Unbounded, drawn.spares}
}

func addParameter(spec, parameter string) string {
	for _, c := range spec {
		if c == ':' {
			return spec + "," + parameter
		}
	}
	return spec + ":" + parameter
}

// DrawPaced returns the schedule of a seed in which workers are out of step. Most of its jobs are in mode stream, under policies
// that may change during the run.
func DrawPaced(seed uint64) *Schedule {
	s := Draw(seed)
	d := draw{rand.New(rand.NewPCG(seed, 5))}
	for i, j := range s.Jobs {
		if i == 0 || d.chance(75) {
			d.pace(j)
		}
	}
	if f := &s.Fault; f.Kind == Rogue && f.Rogue == rogueTwice && s.Jobs[f.Job].Mode == aggregate.Stream {
		f.Rogue = rogueLate // a gradient that is applied at once can only be late
	} else if f.Kind == Rogue && f.Rogue >= rogueKinds && s.Jobs[f.Job].Widths == nil {
		f.Rogue = rogueNoise
	}
	return s
}

// pace converts a job to mode stream.
func (d draw) pace(j *JobSchedule) {
	j.Mode = aggregate.Stream
	rules := optim.Rules()[1:]
	for !suits(j.Rule, j.Mode) {
		j.Rule = rules[d.IntN(len(rules))]
		j.Hyper = j.Rule.Defaults()
	}
	j.Codecs.Down = codec.Spec{}
	if !j.Codecs.Up.Dense() && j.squares() {
		j.Codecs = codec.Pair{}
	}
	rate := []string{"", "", "staleness", "0.5"}[d.IntN(4)]
	draws := func() pacing { return d.pacing(len(j.Workers), rate) }
	if j.Sets = d.chance(50); j.Sets {
		draws = func() pacing { return d.sets(len(j.Workers)) }
		j.InPlace = false         // pushpulls are answered empty
		j.Widths = nil            // sets are of whole tensors
		j.Batches = j.Batches[:1] // a worker that waits to register pushes nothing, for which others may wait
		for w := range j.Workers {
			j.Workers[w].Leaves = true // or a set could wait for ever
		}
	}
	j.Policy = draws()
	j.Phases = nil
	tensors, ops := 0, 0
	for b := range j.Batches {
		if b > 0 {
			j.Phases = append(j.Phases, phase{kind: phaseRegister, batch: b})
		}
		first := tensors
		tensors += len(j.Batches[b])
		j.Phases = append(j.Phases, phase{kind: phaseBroadcast, tensors: span(first, tensors)})
		for range d.between(1, 8) {
			j.Phases = append(j.Phases, d.streamStep(tensors)...)
			ops += tensors
		}
	}
	for w := range j.Workers {
		if j.Workers[w].Leaves && len(j.Batches) == 1 {
			j.Workers[w].Skips = 3 * d.IntN(len(j.Phases)/3) // steps, of three phases each
		}
	}
	if d.chance(40) {
		j.Change = &policyChange{d.IntN(ops*len(j.Workers) + 1), draws()}
	}
}

// streamStep draws a worker's step: gradients, its end, and pulls of the next step's parameters where they are needed.
func (d draw) streamStep(tensors int) []phase {
	all := span(0, tensors)
	step := phase{kind: phasePushPull, tensors: all}
	if d.chance(30) {
		step.tensors = d.some(tensors)
	}
	if d.chance(30) {
		step.kind = phasePush
	}
	got := step.kind == phasePushPull && len(step.tensors) == tensors
	return []phase{step, {kind: phaseEnd}, {kind: phasePull, tensors: all, ifPullDue: got}}
}

// policyChange is a change of a job's policy.
type policyChange struct {
	After int // number of operations of the job that complete first
	To    pacing
}

// changePolicies makes the due changes of policies.
func (r *run) changePolicies() error {
	for _, j := range r.jobs {
		if j.Change == nil || j.changed || j.rack == nil || j.closed || j.failed != 0 || j.ops < j.Change.After {
			continue
		}
		j.changed = true
		r.trace("%v: %s: policy %v becomes %v", time.Duration(r.now), j.Name, j.Policy, j.Change.To)
		if _, err := j.rack.Job.Gate.Change(j.Change.To.Spec, j.rack.Job.Now()); err != nil {
			return fmt.Errorf("%s: %w", j.Name, err)
		}
	}
	return nil
}

// streamOracle follows a job in mode stream by its trace. It applies every gradient in plain Go when the trace reports it.
type streamOracle struct {
	job   *job
	hyper optim.Hyper
	ref   *racktest.Reference // a tensor for each chunk
	// workers holds, by chunk of the plan, the worker's applied gradients, the updates it has seen, and the updates after each of its
	// steps.
	workers []streamFollowed
	updates []uint32
	decided []policy.Act // updates of sets
	void    map[int]int  // by number of a set that makes no update: the worker that was lost in it
	made    []int        // of those, by chunk
}

// streamFollowed is the oracle's state of a worker.
type streamFollowed struct {
	applied, seen []uint32
	after         [][]uint32     // by step
	phases        map[uint64]int // by step: the phase in which it was pushed
	got           [][]float32    // by tensor: the values that its memory must hold
	coded         []*codec.Stream
	decoded       []map[int][]float32 // by tensor, then phase: its gradients as a codec leaves them
	reached       map[[2]int]uint32   // by sparse tensor and lane: the rows of the stream under way that are applied
	ended         []int               // number of steps ended, by lane
	begun         int                 // number of steps that it was released to
}

func newStreamOracle(j *job) *streamOracle {
	o := &streamOracle{
		job: j, hyper: j.Rule.Rounded(j.Hyper), ref: racktest.NewReference(aggregate.Eager, j.Rule, j.Hyper, j.Wire, nil),
		workers: make([]streamFollowed, len(j.Workers)),
		void:    make(map[int]int),
	}
	for w := range o.workers {
		o.workers[w].phases = make(map[uint64]int)
		o.workers[w].reached = make(map[[2]int]uint32)
	}
	return o
}

// grow adds the plan's new tensors.
func (o *streamOracle) grow() {
	plan := o.job.rack.Plan
	for id := len(o.updates); id < plan.NumChunks(); id++ {
		o.ref.Add(make([]float32, plan.Chunk(id).Elems))
		o.updates = append(o.updates, 0)
	}
	for w := range o.workers {
		f := &o.workers[w]
		for t := len(f.got); t < plan.NumTensors(); t++ {
			f.got = append(f.got, make([]float32, o.job.oracle.elems[t]))
		}
		f.applied = append(f.applied, make([]uint32, len(o.updates)-len(f.applied))...)
		f.seen = append(f.seen, make([]uint32, len(o.updates)-len(f.seen))...)
	}
	o.made = append(o.made, make([]int, len(o.updates)-len(o.made))...)
}

// follow processes the lanes' events since the last call.
func (o *streamOracle) follow() error {
	if o == nil || o.job.doubtful || o.job.rack == nil || o.job.closed {
		return nil
	}
	o.grow()
	lanes, lost, err := o.job.rack.Job.Trace(context.Background(), traceEvents)
	if err != nil || lost > 0 {
		return fmt.Errorf("%s: %d events are lost: %w", o.job.Name, lost, err)
	}
	for lane, events := range lanes {
		for i := range events {
			if err := o.event(lane, &events[i]); err != nil {
				return fmt.Errorf("%s: lane %d: %w", o.job.Name, lane, err)
			}
		}
	}
	return nil
}

func (o *streamOracle) event(lane int, e *aggregate.TraceEvent) error {
	plan := o.job.rack.Plan
	switch e.Kind {
	case aggregate.TraceArrive:
		return nil
	case aggregate.TraceEnd:
		return o.end(lane, int(e.Worker))
	case aggregate.TraceGo:
		return o.release(int(e.Worker))
	}
	id := int(plan.LaneChunks(lane)[e.Chunk])
	switch e.Kind {
	case aggregate.TraceFold:
		if e.Op == chunk.OpCommit {
			return o.update(id)
		}
		return o.broadcast(id)
	case aggregate.TracePull:
		if e.Rows > 0 {
			return o.pullRows(lane, int(e.Worker), id, e)
		}
		o.give(int(e.Worker), id, racktest.OnWire(o.job.Wire, o.parameters(id)))
		o.workers[e.Worker].seen[id] = o.updates[id]
		return nil
	}
	if e.Rows > 0 {
		return o.applyRows(lane, int(e.Worker), id, e)
	}
	return o.apply(int(e.Worker), id, e)
}

// gradient returns a worker's gradient in a phase, as the aggregator has it.
func (o *streamOracle) gradient(phase, w, t int) []float32 {
	if o.job.Codecs.Up.ID != codec.Raw {
		return o.workers[w].decoded[t][phase]
	}
	return o.job.oracle.gradient(phase, w, t)
}

// part returns a chunk's part of a tensor's values.
func (o *streamOracle) part(id int, of []float32) []float32 {
	c := o.job.rack.Plan.Chunk(id)
	return of[c.Offset : c.Offset+uint64(c.Elems)]
}

func (o *streamOracle) tensor(id int) int { return int(o.job.rack.Plan.Chunk(id).Tensor) }

// give records the values of a chunk that a worker is sent.
func (o *streamOracle) give(w, id int, values []float32) {
	copy(o.part(id, o.workers[w].got[o.tensor(id)]), racktest.OnWire(o.job.Type, values))
}

func (o *streamOracle) broadcast(id int) error {
	t := o.tensor(id)
	root := o.job.oracle.gradient(o.job.members[0].sent[t], 0, t)
	copy(o.parameters(id), racktest.OnWire(o.job.Wire, o.part(id, root)))
	for w := range o.workers {
		o.give(w, id, o.parameters(id))
	}
	return nil
}

// apply makes the update of one worker's gradient.
func (o *streamOracle) apply(w, id int, e *aggregate.TraceEvent) error {
	f, t, m := &o.workers[w], o.tensor(id), o.job.members[w]
	if f.applied[id]++; int(f.applied[id]) != m.pushes[t] {
		return fmt.Errorf("worker %d has pushed tensor %d %d times, and its chunk %d is applied %d times", w, t, m.pushes[t], id,
			f.applied[id])
	}
	o.ref.Hyper = o.hyper
	o.ref.Hyper.Scale *= float64(len(o.workers))
	o.ref.Hyper.LR *= o.job.Policy.Rate(len(o.workers), uint64(o.updates[id]-f.seen[id]))
	gradient := o.part(id, o.gradient(m.sent[t], w, t))
	values := o.ref.StepTensor(id, [][]float32{gradient})
	o.updates[id]++
	for len(f.after) <= f.begun {
		f.after = append(f.after, make([]uint32, 0))
	}
	for len(f.after[f.begun]) < len(o.updates) {
		f.after[f.begun] = append(f.after[f.begun], 0)
	}
	f.after[f.begun][id] = o.updates[id]
	if e.Op == chunk.OpPushPull {
		o.give(w, id, values)
		f.seen[id] = o.updates[id]
	}
	return nil
}

// decide records an update of a set, or that a set makes none.
func (o *streamOracle) decide(a policy.Act) {
	if a.Kind == policy.Cancel {
		o.void[int(a.Step)] = a.W
	} else {
		o.decided = append(o.decided, a)
	}
}

// update makes the next update of a set.
func (o *streamOracle) update(id int) error {
	if o.made[id] == len(o.decided) {
		return fmt.Errorf("chunk %d has had %d updates of sets, and no more are decided", id, o.made[id])
	}
	set := o.decided[o.made[id]]
	lost, void := o.void[o.made[id]]
	o.made[id]++
	if void {
		if !o.job.goesOnWithout(lost) || !slices.ContainsFunc(set.Parts, func(p policy.Part) bool { return p.W == lost }) {
			return fmt.Errorf("the set %v makes no update because worker %d was lost in it, which was not", set.Parts, lost)
		}
		return nil
	}
	t := o.tensor(id)
	o.ref.Hyper = o.job.Hyper
	wrong := error(nil)
	o.ref.ReplayTensor(id, set, len(o.workers), func(w int, step uint64) []float32 {
		phase, ok := o.workers[w].phases[step]
		if !ok {
			wrong = fmt.Errorf("the set has worker %d's step %d, which it did not push", w, step)
		}
		if !slices.Contains(o.job.Phases[phase].tensors, t) {
			return nil
		}
		return o.part(id, o.gradient(phase, w, t))
	})
	return wrong
}

// end records that a lane has all of a worker's step.
func (o *streamOracle) end(lane, w int) error {
	f := &o.workers[w]
	if f.ended == nil {
		f.ended = make([]int, o.job.rack.Config.Lanes)
	}
	f.ended[lane]++
	for _, id := range o.job.rack.Plan.LaneChunks(lane) {
		if o.job.Sets {
			break // they are in an accumulator, or dropped
		}
		if t := o.tensor(int(id)); int(f.applied[id]) != o.job.members[w].pushes[t] {
			return fmt.Errorf("worker %d has ended its step, and of chunk %d %d gradients of %d are applied", w, id, f.applied[id],
				o.job.members[w].pushes[t])
		}
	}
	return nil
}

// steps returns the number of a worker's steps that are applied in all lanes.
func (f *streamFollowed) steps() int {
	n := math.MaxInt
	for _, ended := range f.ended {
		n = min(n, ended)
	}
	if f.ended == nil {
		n = 0
	}
	return n
}

// bound returns the largest lead that the job's policy allows.
func (o *streamOracle) bound() uint64 {
	if o.job.changed {
		return max(o.job.Policy.bound, o.job.Change.To.bound)
	}
	return o.job.Policy.bound
}

// release checks that a worker that is released to its next step may begin it.
func (o *streamOracle) release(w int) error {
	f := &o.workers[w]
	step := 0
	for _, ended := range f.ended {
		step = max(step, ended)
	}
	if f.steps() != step {
		return fmt.Errorf("worker %d goes on with step %d, and its lanes have ended %v", w, step, f.ended)
	}
	f.begun = step
	for other, m := range o.job.members {
		if m.left || o.job.goesOnWithout(other) {
			continue
		}
		if done := o.workers[other].steps(); uint64(step) > uint64(done) && uint64(step-done) > o.bound() {
			return fmt.Errorf("worker %d goes on with step %d, and worker %d has made %d: %v allows a lead of %d", w, step, other, done,
				o.job.rack.Job.Gate.Spec(), o.bound())
		}
	}
	return nil
}

// push records that a worker pushes a tensor.
func (o *streamOracle) push(m *member, t int) error {
	f, up := &o.workers[m.rank], o.job.Codecs.Up
	f.phases[m.step] = m.phase
	if up.ID != codec.Raw {
		for len(f.coded) <= t {
			i := len(f.coded)
			key := codec.Key{Tensor: uint32(i), Rank: uint32(m.rank)}
			f.coded = append(f.coded, codec.NewStream(up, int(o.job.oracle.elems[i]), chunkBytes/4, key))
			f.decoded = append(f.decoded, map[int][]float32{})
		}
		f.decoded[t][m.phase] = f.coded[t].Gradient(o.job.oracle.gradient(m.phase, m.rank, t), 1)
	}
	return o.fresh(m, t)
}

// fresh checks that a worker that pushes a tensor has seen the updates of it that the policy demands.
func (o *streamOracle) fresh(m *member, t int) error {
	f := &o.workers[m.rank]
	if o.job.doubtful || o.bound() == policy.Unbounded || uint64(f.begun) < o.bound()+1 {
		return nil
	}
	last := f.begun - int(o.bound()) - 1
	for other := range o.workers {
		after := o.workers[other].after
		for step := range min(last+1, len(after)) {
			for id, updates := range after[step] {
				if o.tensor(id) == t && f.seen[id] < updates {
					return fmt.Errorf("%v begins step %d without worker %d's gradient of step %d of chunk %d", m, f.begun, other, step, id)
				}
			}
		}
	}
	return nil
}

// endStep takes the answer to the end of a step.
func (m *member) endStep() error {
	r, err := m.w.Answer()
	if err != nil && m.rogue {
		m.step++ // an unrequested answer overwrites the record
		return nil
	} else if err != nil {
		return fmt.Errorf("%v: the answer to the end of its step: %w", m, err)
	}
	m.pullDue = r.Pull
	m.step = uint64(r.Step)
	if m.job.Sets {
		return nil // the steps of slow workers are left out
	}
	if begun := m.job.stream.workers[m.rank].begun; int(r.Step) != begun && !m.job.doubtful {
		return fmt.Errorf("%v is told to begin step %d, and its next is %d", m, r.Step, begun)
	}
	return nil
}

// atEnd checks the invariants of a job that has ended well.
func (o *streamOracle) atEnd() error {
	steps := 0
	for i := range o.job.Phases {
		if o.job.Phases[i].kind == phaseEnd {
			steps++
		}
	}
	for _, m := range o.job.members {
		p := o.job.rack.Job.Gate.Look(m.rank)
		if !o.job.Sets && !m.dead && !m.left && m.lost == 0 && !o.job.doubtful && (p.Step != uint64(steps) || p.Waits) {
			return fmt.Errorf("%v has made %d steps, and the aggregator says %+v", m, steps, p)
		}
	}
	return nil
}
