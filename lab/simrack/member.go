package simrack

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/rackweave/rackweave/aggregate/racktest"
	"github.com/rackweave/rackweave/cgo/worker"
)

// member is one worker of a job, which runs the job's phases at its own pace and in its own order.
type member struct {
	*WorkerSchedule
	job    *job
	rank   int
	host   int
	nics   []int   // indexes in cluster.hosts, host first
	due    []int64 // by lane: time at which the next step of a failover may be taken
	w      *racktest.Worker
	rng    *rand.Rand
	pauses []pause // the worker's pauses, empty after it must hurry
	seldom bool    // the worker's value, false after it must hurry

	phase     int         // under way
	begun     bool        // todo holds the phase's tensors
	todo      []int       // tensors of the phase to submit
	pending   []operation // in flight, at most one per tensor
	active    []bool      // by tensor
	pushes    []int       // by tensor: number of gradients submitted
	sent      []int       // by tensor: the last phase that sent it
	last      []int       // by tensor: the last phase that answered it, or -1
	ops       []worker.Op // operations to start in this turn
	starting  []operation
	pullDue   bool        // the last answer to the end of a step demands a pull
	step      uint64      // in mode stream: the step under way
	chunks    uint64      // number of chunks of the completed operations
	gradients uint64      // number of these chunks that were folded
	alone     uint64      // number of these chunks that were applied alone
	streams   uint64      // number of streams of gradients' rows, of the completed operations
	listed    bool        // it completed operations on rows, whose messages only the two ends count
	memory    [][]float32 // by sparse tensor: what the memory for results must hold

	done bool          // it went through all phases
	left bool          // it left the job after that
	err  error         // why it could not go on
	dead bool          // its host stopped
	lost time.Duration // when its loss, which its job may survive, was first noticed, or 0

	contrary bool // it commits with other values than the other members
	rogue    bool // it sent a message that the aggregator may have answered or folded
}

type operation struct {
	handle uint64
	phase  int
	tensor int            // -1 for the commit
	rows   *rowsOperation // nil for an operation on chunks
}

func newMember(c *cluster, j *job, rank, host int) *member {
	tensors := len(j.oracle.elems)
	m := &member{
		WorkerSchedule: &j.Workers[rank], job: j, rank: rank, host: host, pauses: j.Workers[rank].Pauses, seldom: j.Workers[rank].Seldom,
		rng:    rand.New(rand.NewPCG(c.schedule.Seed, uint64(2+host))),
		active: make([]bool, tensors), pushes: make([]int, tensors), sent: make([]int, tensors), last: make([]int, tensors),
	}
	for t, n := range j.oracle.elems {
		m.last[t] = -1
		if j.oracle.widths[t] == 0 {
			n = 0
		}
		m.memory = append(m.memory, make([]float32, n))
	}
	return m
}

// lastPhase returns the phase at which the member is done.
func (m *member) lastPhase() int { return len(m.job.Phases) - m.Skips }

// over reports whether the member has ended.
func (m *member) over() bool { return m.done || m.err != nil || m.dead }

// turn runs one turn of the worker's process: it submits operations, makes progress and checks the completed ones.
func (m *member) turn(now time.Duration) error {
	for _, p := range m.pauses {
		if now >= p.from && now < p.to {
			return nil
		}
	}
	if !m.over() {
		if err := m.submit(); err != nil {
			return err
		}
	}
	worker.Progress(m.w.C)
	if err := m.job.stream.follow(); err != nil {
		return err
	}
	return m.reap()
}

// submit starts up to AtOnce operations.
func (m *member) submit() error {
	m.ops, m.starting = m.ops[:0], m.starting[:0]
	for n := 0; n < m.AtOnce && m.next(); n++ {
		t := m.todo[0]
		m.todo = m.todo[1:]
		if err := m.prepare(t); err != nil {
			return err
		}
	}
	if len(m.ops) == 0 {
		return m.finishPhases()
	}
	handles, err := m.w.Submit(m.ops...)
	if err != nil {
		m.fail(err)
		return nil
	}
	for i, op := range m.starting {
		op.handle = handles[i]
		m.pending = append(m.pending, op)
	}
	return m.finishPhases()
}

// next reports whether a tensor can be submitted now. It begins the next phase when the last one is submitted.
func (m *member) next() bool {
	for m.phase < m.lastPhase() {
		if p := &m.job.Phases[m.phase]; !m.begun && !m.begin(p) {
			return false
		}
		if len(m.todo) > 0 {
			return !m.active[m.todo[0]]
		}
		if m.job.Phases[m.phase].kind >= phaseCommit {
			return false // finishPhases ends it
		}
		m.phase++
		m.begun = false
	}
	return false
}

// begin starts a phase of operations on tensors. It returns false if the phase must wait, or if it is of another kind.
func (m *member) begin(p *phase) bool {
	busy := len(m.pending) > 0 || len(m.ops) > 0
	// A gradient that waits for a set to be decided holds a slot that others' broadcasts may need.
	waits := m.job.Sets && m.phase > 0 && m.job.Phases[m.phase-1].kind == phaseBroadcast
	if p.kind >= phaseCommit || (busy && (waits || !m.Pipelined)) {
		return false
	}
	m.begun = true
	m.todo = append(m.todo[:0], p.tensors...)
	if p.ifPullDue && !m.pullDue {
		m.todo = m.todo[:0]
	}
	m.rng.Shuffle(len(m.todo), func(a, b int) { m.todo[a], m.todo[b] = m.todo[b], m.todo[a] })
	return true
}

// finishPhases runs the phases without operations on tensors, and records the end of the last phase.
func (m *member) finishPhases() error {
	if len(m.pending) > 0 || m.err != nil {
		return nil
	}
	if m.phase == m.lastPhase() {
		m.done = true
		return nil
	}
	p := &m.job.Phases[m.phase]
	switch {
	case (p.kind == phaseCommit || p.kind == phaseEnd) && !m.begun:
		m.begun = true
		record := p.commit
		if m.contrary {
			record.LR++
		}
		handle, rc := m.w.CommitStart(record)
		if rc < 0 {
			m.fail(m.w.Error(rc))
			return nil
		}
		m.pending = append(m.pending, operation{handle: handle, phase: m.phase, tensor: -1})
	case p.kind == phaseRegister:
		m.begun = true
		// The control plane takes no more tensors of a job that has failed.
		if m.job.batches == p.batch && m.job.meets(m.phase) && m.job.rack.Job.Failure() == nil {
			if err := m.job.register(); err != nil {
				return fmt.Errorf("register the next tensors: %w", err)
			}
		}
	}
	if rc, text := worker.Failure(m.w.C); rc < 0 && p.kind == phaseRegister {
		m.fail(fmt.Errorf("%v: %d: %s", m, rc, text)) // nothing else notifies it
		return nil
	}
	if p.kind == phaseRegister && m.job.batches > p.batch {
		m.phase++
		m.begun = false
	}
	return nil
}

// prepare makes the phase's operation on a tensor.
func (m *member) prepare(t int) error {
	p := &m.job.Phases[m.phase]
	if p.hyper != nil {
		record := m.job.Rule.Record(*p.hyper)
		worker.Hyper(m.w.C, uint32(t), &record)
	}
	if p.kind == phasePush || p.kind == phasePushPull || (p.kind == phaseBroadcast && m.rank == 0) {
		// Of a sparse tensor's rows, the first that are needed are sent.
		store(m.job.Type, m.w.Src(t), m.job.oracle.gradient(m.phase, m.rank, t))
	}
	if p.kind == phasePush || p.kind == phasePushPull {
		if m.job.stream != nil {
			if err := m.job.stream.push(m, t); err != nil {
				return err
			}
		}
		m.pushes[t]++
	}
	if p.kind != phasePull {
		m.sent[t] = m.phase
	}
	op := m.w.Op(p.kind.op(), t, int32(m.rng.IntN(m.Priorities)))
	starting := operation{phase: m.phase, tensor: t}
	if m.job.oracle.widths[t] > 0 {
		starting.rows = m.listRows(p, t, &op)
	} else if m.job.InPlace {
		op.Dst = op.Src
	}
	m.ops = append(m.ops, op)
	m.starting = append(m.starting, starting)
	m.active[t] = true
	return nil
}

// reap removes and checks the operations that have completed.
func (m *member) reap() error {
	kept := m.pending[:0]
	for _, op := range m.pending {
		done, err := m.w.Done(op.handle)
		switch {
		case err != nil:
			m.fail(err)
		case !done:
			kept = append(kept, op)
		default:
			if err := m.complete(op); err != nil {
				return err
			}
		}
	}
	m.pending = kept
	if m.err != nil && len(m.pending) > 0 {
		return fmt.Errorf("%v failed (%w), but %d of its operations did not end", m, m.err, len(m.pending))
	}
	return nil
}

func (m *member) complete(op operation) error {
	m.job.ops++
	p := &m.job.Phases[op.phase]
	if op.tensor < 0 {
		m.phase++
		m.begun = false
		if p.kind == phaseEnd {
			return m.endStep()
		}
		answer, err := m.w.Answer()
		if err != nil {
			return fmt.Errorf("%v: phase %d: the answer to its commit: %w", m, op.phase, err)
		}
		if want := m.job.oracle.norm(op.phase); answer.Norm != want && !m.job.doubtful {
			return fmt.Errorf("%v: phase %d: committed with norm %v, plain Go says %v", m, op.phase, answer.Norm, want)
		}
		return nil
	}
	m.active[op.tensor] = false
	if op.rows != nil {
		return m.completeRows(op)
	}
	n := m.job.oracle.chunks(op.tensor)
	m.chunks += n
	if p.kind != phasePull {
		m.gradients += n
	}
	if m.job.stream != nil && (p.kind == phasePush || p.kind == phasePushPull) {
		m.alone += n
	}
	if p.kind == phasePush {
		if m.job.InPlace {
			m.last[op.tensor] = -1
		}
		return nil
	}
	if m.job.oracle.widths[op.tensor] > 0 && m.job.stream == nil && !m.job.doubtful {
		copy(m.memory[op.tensor], m.job.oracle.result(op.phase, op.tensor))
	}
	m.last[op.tensor] = op.phase
	return m.check(op.tensor)
}

// check compares a tensor's last result with plain Go's, and looks for writes past its end.
func (m *member) check(t int) error {
	phase := m.last[t]
	if phase < 0 || m.active[t] || m.job.doubtful {
		return nil
	}
	memory, sparse := m.w.Dst(t), m.job.oracle.widths[t] > 0
	if m.job.InPlace && !sparse {
		memory = m.w.Src(t)
	}
	var want []float32
	switch {
	case m.job.stream != nil:
		want = m.job.stream.workers[m.rank].got[t]
	case sparse:
		want = m.memory[t]
	default:
		want = m.job.oracle.result(phase, t)
	}
	got := load(m.job.Type, memory, len(want))
	if i, same := racktest.SameBits(want, got); !same {
		return fmt.Errorf("%v: phase %d (%s): tensor %d element %d is %v, plain Go says %v",
			m, phase, phaseNames[m.job.Phases[phase].kind], t, i, got[i], want[i])
	}
	for i, x := range memory[len(want)*m.job.Type.Size():] {
		if x != 0 {
			return fmt.Errorf("%v: phase %d: %#x was written %d bytes past the end of tensor %d", m, phase, x, i, t)
		}
	}
	return nil
}

func (m *member) fail(err error) {
	if m.err == nil {
		m.err = err
	}
}

func (m *member) String() string { return fmt.Sprintf("%s worker %d", m.job.Name, m.rank) }

// leave ends the worker's membership in peace.
func (m *member) leave(detach func(rank int) error) error {
	m.left = true
	if err := detach(m.rank); err != nil {
		return err
	}
	for _, qp := range m.w.QPs {
		if qp == nil {
			continue // the lane has no connection now
		}
		if err := qp.Fail(); err != nil {
			return err
		}
	}
	return nil
}

// audit checks the worker's counts after a run without failures, in which every chunk was answered once.
func (m *member) audit() error {
	var st worker.Stats
	worker.StatsOf(m.w.C, &st)
	answered := st.ReceivedChunks == m.chunks || m.listed && st.ReceivedChunks > m.chunks
	if !answered || st.SentChunks-st.NACKs != st.ReceivedChunks {
		return fmt.Errorf("%v: its operations have %d chunks; sent %d, NACKed %d, answered %d", m, m.chunks, st.SentChunks,
			st.NACKs, st.ReceivedChunks)
	}
	got, least := m.job.rack.Job.WorkerCounters()[m.rank], m.gradients+m.streams
	if got.Chunks < least || got.Chunks > least && m.streams == 0 {
		return fmt.Errorf("%v: its operations have %d gradients, the aggregator folded %d", m, m.gradients, got.Chunks)
	}
	return nil
}
