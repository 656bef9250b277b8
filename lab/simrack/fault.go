package simrack

import (
	"errors"
	"fmt"
	"time"

	"github.com/rackweave/rackweave/cgo/fabric"
	"github.com/rackweave/rackweave/cgo/worker"
)

// Fault is the one fatal thing that happens in a schedule.
type Fault struct {
	Kind              FaultKind
	Job, Worker, Lane int
	After             int           // operations of its job that complete first
	Notice            time.Duration // how long the control plane takes to notice what it must
	Silent            bool          // peers of a queue pair that fails are not told
	Rogue             rogueKind
}

// FaultKind is what goes wrong for good.
type FaultKind int

// The faults. The data path cannot notice that a host is dead or cut off, which sends nothing. There the control plane notices, as
// the service does, by a membership stream that ends.
const (
	NoFault        FaultKind = iota
	KillWorker               // its host stops
	CutWorker                // its host loses its link for good
	KillAggregator           // the aggregator's host stops
	StaleKey                 // a message of a worker's is refused as if its key were stale
	QPFail                   // a worker's queue pair fails
	AnyStaleKey              // a message of any queue pair is refused so, the aggregator's included
	AnyQPFail                // any queue pair fails
	AnyOverrun               // a completion queue overruns, a worker's or a lane's
	ShrinkCQ                 // a worker's completion queue becomes too small
	WorkerAborts             // a worker's program gives up
	WorkerTimeout            // a worker's wait reaches its deadline
	JobFailed                // the control plane ends the job
	JobClosed                // the control plane closes the job
	Rogue                    // a worker sends what the protocol forbids
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
		text += ": " + rogueNames[f.Rogue]
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
			f.Rogue = rogueTwice // few of these find their moment
		}
	}
	return f
}

// noticed is how soon all survivors must have ended after a failure was first seen anywhere.
const noticed = time.Second

// due reports whether it is time for the fault. A rogue waits until none of its worker's messages is in flight, so that it does
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
	if r.Fault.Kind == Rogue && r.Fault.Rogue.rejected() {
		return len(m.pending) == 0
	}
	return r.Fault.Kind != Rogue || r.Fault.Rogue != rogueTwice || r.waiting(m) >= 0
}

// strike makes the fault happen.
func (r *run) strike() error {
	f := &r.Fault
	j := r.jobs[f.Job]
	m := j.members[f.Worker]
	r.trace("%v: %v", time.Duration(r.now), f)
	if f.Silent {
		network := r.Network
		network.SilentClose = 65536
		r.sim.SetFaults(network)
	}
	j.struck = true
	switch f.Kind {
	case KillWorker:
		for _, nic := range m.nics {
			fabric.KillSim(fabric.Device(r.hosts[nic].Handle()))
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
			fabric.KillSim(fabric.Device(nic.Handle()))
		}
		r.aggregatorDead = true
		for _, j := range r.jobs {
			j.struck = true
		}
		r.later(f.Notice, r.abortAll)
	case StaleKey, QPFail:
		how := fabric.SimStaleKey
		if f.Kind == QPFail {
			how = fabric.SimQPFail
		}
		if qp := m.w.QPs[f.Lane]; qp != nil {
			fabric.TriggerSim(fabric.QP(qp.Handle()), how)
		}
	case AnyStaleKey, AnyQPFail, AnyOverrun:
		r.strikeAnywhere()
	case ShrinkCQ:
		fabric.ShrinkSimCQ(fabric.CQ(m.w.NICs[0].CQ.Handle()), 1+f.After%4)
	case WorkerAborts:
		worker.Abort(m.w.C, "the program gave up")
	case WorkerTimeout:
		if len(m.pending) > 0 {
			worker.Wait(m.w.C, m.pending[0].handle, 0)
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

// expel does what the control plane does when it hears no more of a worker. If the worker lives, it hears no more of the
// aggregator either.
func (r *run) expel(m *member) error {
	if m.job.closed {
		return nil
	}
	m.job.rack.Job.Fail(m.rank, errGone)
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
	r.sim.SetFaults(network)
	for _, j := range r.jobs {
		j.struck = true
	}
}

// abortAll does what the workers' control plane does when the aggregator is gone.
func (r *run) abortAll() error {
	for _, m := range r.members {
		if !m.dead && !m.job.closed {
			worker.Abort(m.w.C, "the aggregator is gone")
		}
	}
	return nil
}

// notice looks for failures. The control plane spreads the news only where the data path may not: where queue pairs fail
// silently, where links go down, and where a queue pair that fails may only mean a failover.
func (r *run) notice(j *job) {
	if j.failed != 0 || j.rack == nil || j.closed {
		return
	}
	seen := j.rack.Job.Failure() != nil
	for _, m := range j.members {
		seen = seen || (m.err != nil && !m.dead)
	}
	if !seen {
		return
	}
	j.failed = max(time.Duration(r.now), 1)
	r.hurry(j)
	if r.Fault.Silent || len(r.Links) > 0 || r.Failovers != nil {
		r.later(r.Fault.Notice, func() error { return r.spread(j) })
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

// spread tells the aggregator of a worker that failed, and the workers of a job that failed.
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
