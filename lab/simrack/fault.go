package simrack

import (
	"errors"
	"fmt"
	"time"

	"github.com/rackweave/rackweave/cgo/fabric/simfabric"
	"github.com/rackweave/rackweave/cgo/worker"
)

// Fault is the one fatal fault of a schedule.
type Fault struct {
	Kind              FaultKind
	Job, Worker, Lane int
	After             int           // number of operations of its job that complete first
	Notice            time.Duration // time until the control plane notices the fault
	Silent            bool          // peers of a queue pair that fails are not notified
	Rogue             rogueKind
}

// FaultKind is the kind of a fatal fault.
type FaultKind int

// These are the faults. A host that is dead or cut off sends nothing, so the data path cannot notice it. The control plane notices
// it, as the service does, by a membership stream that ends.
const (
	NoFault        FaultKind = iota
	KillWorker               // its host stops
	CutWorker                // its host loses its link for good
	KillAggregator           // the aggregator's host stops
	StaleKey                 // a message of a worker is refused as if its key were stale
	QPFail                   // a worker's queue pair fails
	AnyStaleKey              // a message of any queue pair, including the aggregator's, is refused as if its key were stale
	AnyQPFail                // any queue pair fails
	AnyOverrun               // a completion queue overruns, a worker's or a lane's
	ShrinkCQ                 // a worker's completion queue becomes too small
	WorkerAborts             // a worker's program ends
	WorkerTimeout            // a worker's wait reaches its deadline
	JobFailed                // the control plane ends the job
	JobClosed                // the control plane closes the job
	Rogue                    // a worker sends messages that the protocol forbids
	faultKinds
)

var faultNames = [...]string{
	"none", "worker killed", "worker cut off", "aggregator killed", "stale key", "queue pair failed", "stale key anywhere",
	"queue pair failed anywhere", "completion queue overrun anywhere", "worker's completion queue shrunk", "worker aborts",
	"worker's deadline passed", "job failed by the control plane", "job closed", "rogue worker",
}

func (f Fault) String() string {
	if f.Kind == NoFault {
		return "none"
	}
	text := fmt.Sprintf("%s (job %d, worker %d, lane %d, after %d operations, noticed after %v, silent %v)",
		faultNames[f.Kind], f.Job, f.Worker, f.Lane, f.After, f.Notice, f.Silent)
	if f.Kind == Rogue {
		text += ": " + f.Rogue.String()
	}
	return text
}

func (d draw) fault(s *Schedule) Fault {
	j := d.IntN(len(s.Jobs))
	ops := 0
	for _, p := range s.Jobs[j].Phases {
		ops += max(len(p.tensors), 1) * len(s.Jobs[j].Workers)
	}
	f := Fault{
		Kind: FaultKind(d.between(1, int(faultKinds)-1)), Job: j, Worker: d.IntN(len(s.Jobs[j].Workers)), Lane: d.IntN(s.Lanes),
		After: d.IntN(ops), Notice: d.duration(time.Millisecond, 500*time.Millisecond), Silent: d.chance(20),
	}
	if d.chance(30) {
		f.Kind, f.Rogue = Rogue, rogueKind(d.IntN(int(rogueKinds)))
		if d.chance(20) {
			f.Rogue = rogueTwice // few faults find their moment
		}
	}
	return f
}

// noticed bounds the time from a failure's first notice anywhere to the end of all survivors.
const noticed = time.Second

// due reports whether the fault's time has come. A rogue waits until none of its worker's messages is in flight, so that it does
// not overwrite one.
func (r *run) due() bool {
	j := r.jobs[r.Fault.Job]
	m := j.members[r.Fault.Worker]
	if r.struck || j.ops < r.Fault.After || j.rack == nil || j.closed {
		return false
	}
	if m.over() {
		return false
	}
	if r.Fault.Kind == Rogue && r.Fault.Rogue == rogueRowsChange {
		return m.pushesRows()
	}
	if r.Fault.Kind == Rogue && r.Fault.Rogue.rejected() {
		return len(m.pending) == 0
	}
	return r.Fault.Kind != Rogue || r.Fault.Rogue != rogueTwice || forger{r, m}.waiting() >= 0
}

// strike carries out the fault.
func (r *run) strike() error {
	f := &r.Fault
	j := r.jobs[f.Job]
	m := j.members[f.Worker]
	r.trace("%v: %v", time.Duration(r.now), f)
	if f.Silent {
		network := r.Network
		network.SilentClose = 65536
		r.sim.SetNetwork(network)
	}
	j.struck = true
	switch f.Kind {
	case KillWorker:
		for _, nic := range m.nics {
			simfabric.Kill(r.hosts[nic])
		}
		m.dead = true
		r.later(f.Notice, func() error { return r.expel(m) })
	case CutWorker:
		r.cut = m.nics
		for _, nic := range m.nics {
			r.setLink(nic, false)
		}
		r.later(f.Notice, func() error { return r.expel(m) })
	case KillAggregator:
		for _, nic := range r.hosts[:r.NICs] {
			simfabric.Kill(nic)
		}
		r.aggregatorDead = true
		for _, j := range r.jobs {
			j.struck = true
		}
		r.later(f.Notice, r.abortAll)
	case StaleKey, QPFail:
		how := simfabric.StaleKey
		if f.Kind == QPFail {
			how = simfabric.QPFail
		}
		if qp := m.w.QPs[f.Lane]; qp != nil {
			simfabric.Trigger(qp, how)
		}
	case AnyStaleKey, AnyQPFail, AnyOverrun:
		r.strikeAnywhere()
	case ShrinkCQ:
		simfabric.ShrinkCQ(m.w.NICs[0].CQ, 1+f.After%4)
	case WorkerAborts:
		worker.Abort(m.w.C, "the program gave up")
	case WorkerTimeout:
		if len(m.pending) > 0 && worker.Wait(m.w.C, m.pending[0].handle, 0) < 0 {
			worker.Abort(m.w.C, "no answer in time")
		}
	case JobFailed:
		j.rack.Job.Fail(-1, errors.New("ended by the control plane"))
	case JobClosed:
		return j.rack.Job.Close()
	case Rogue:
		return r.misbehave(m)
	}
	return nil
}

// expel expels a worker, as the control plane does when a worker's stream ends. If the worker lives, its own stream ends too.
func (r *run) expel(m *member) error {
	if m.job.closed {
		return nil
	}
	m.job.rack.Job.Lose(m.rank, errGone)
	if !m.dead {
		worker.Abort(m.w.C, errGone.Error())
	}
	return nil
}

var errGone = errors.New("its membership stream ended")

// strikeAnywhere lets one fatal fault hit anything.
func (r *run) strikeAnywhere() {
	network := r.Network
	network.FatalMax = 1
	switch r.Fault.Kind {
	case AnyStaleKey:
		network.StaleKey = 2000
	case AnyQPFail:
		network.QPFail = 2000
	case AnyOverrun:
		network.CQOverrun = 2000
	}
	if r.Fault.Silent {
		network.SilentClose = 65536
	}
	r.sim.SetNetwork(network)
	for _, j := range r.jobs {
		j.struck = true
	}
}

// abortAll aborts all workers, as their control plane does when the aggregator has ended.
func (r *run) abortAll() error {
	for _, m := range r.members {
		if !m.dead && !m.job.closed {
			worker.Abort(m.w.C, "the aggregator is gone")
		}
	}
	return nil
}

// notice looks for failures. The control plane notifies others only where the data path may not: where queue pairs fail silently,
// where links go down, and where a queue pair that fails may only mean a failover.
func (r *run) notice(j *job) {
	if j.failed != 0 || j.rack == nil || j.closed {
		return
	}
	seen := j.rack.Job.Failure() != nil
	for _, m := range j.members {
		failed := m.err != nil && !m.dead
		if j.spares() == 0 || r.aggregatorDead {
			seen = seen || failed
		} else if m.lost == 0 && (failed || j.goesOnWithout(m.rank)) {
			r.noticeLoss(m)
		}
	}
	if !seen {
		return
	}
	j.failed = max(time.Duration(r.now), 1)
	r.hurry(j)
	if r.spreads() {
		r.later(r.Fault.Notice, func() error { return r.spread(j) })
	}
}

// spreads reports whether the data path may not spread the news of a failure.
func (r *run) spreads() bool { return r.Fault.Silent || len(r.Links) > 0 || r.Failovers != nil }

// noticeLoss begins the time within which a job must go on without a worker or fail, and the worker must end.
func (r *run) noticeLoss(m *member) {
	m.lost = max(time.Duration(r.now), 1)
	r.trace("%v: %v is lost", m.lost, m)
	r.hurry(m.job)
	if r.spreads() {
		r.later(r.Fault.Notice, func() error { return r.expel(m) })
	}
}

// hurry ends all pauses, so that the job's members can be told.
func (r *run) hurry(j *job) {
	for _, m := range j.members {
		m.pauses = nil
		m.seldom = false
	}
	r.LanePauses = nil
	r.weigh()
}

// spread notifies the aggregator of a worker that failed, and the workers of a job that failed.
func (r *run) spread(j *job) error {
	if j.closed {
		return nil
	}
	for _, m := range j.members {
		if m.err != nil {
			j.rack.Job.Fail(m.rank, m.err)
		}
	}
	for _, m := range j.members {
		if !m.dead && !m.left {
			worker.Abort(m.w.C, "the control plane says that the job failed")
		}
	}
	return nil
}
