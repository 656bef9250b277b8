package simrack

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/rackweave/rackweave/cgo/worker"
	"github.com/rackweave/rackweave/verbs"
)

// failoverSchedule is a rack whose NICs have links that fail, and connections that fail over to others. The schedule does not draw
// the new paths. The code of every worker chooses them (packages lanes and failover), and the schedule determines when it learns of
// links.
type failoverSchedule struct {
	WorkerNICs   int
	AckTimeout   time.Duration
	Ports        []linkFault   // faults during which another path stays open
	FalseReports int           // number of false reports of a broken connection
	Notice       time.Duration // longest time until workers are notified of the aggregator's links
	Slow         time.Duration // longest duration of each step of a failover
}

// failovers draws failovers from randomness of their own, so that the rest of the schedule does not depend on them.
func failovers(s *Schedule) {
	d := draw{rand.New(rand.NewPCG(s.Seed, 3))}
	if s.ByReference || s.CopiesAtPost || s.Fault.Kind == Rogue || d.chance(35) {
		return
	}
	f := &failoverSchedule{
		WorkerNICs: d.between(1, 3), AckTimeout: d.duration(100*time.Millisecond, time.Second), FalseReports: d.IntN(20),
		Notice: d.duration(0, 200*time.Millisecond), Slow: d.duration(0, 30*time.Millisecond),
	}
	if s.NICs == 1 && f.WorkerNICs == 1 {
		f.WorkerNICs = 2
	}
	workers := 0
	for _, j := range s.Jobs {
		workers += len(j.Workers)
	}
	for at := time.Duration(0); d.chance(60); {
		from := at + d.duration(0, 3*time.Millisecond)
		to := from + d.duration(0, 2*time.Second)
		// Hosts are numbered as in newCluster.
		if s.NICs > 1 && d.chance(60) {
			f.Ports = append(f.Ports, linkFault{d.IntN(s.NICs), from, to})
		}
		if f.WorkerNICs > 1 && d.chance(60) {
			f.Ports = append(f.Ports, linkFault{s.NICs + d.IntN(workers), from, to + d.duration(0, 100*time.Millisecond)})
		}
		at = to + d.duration(0, time.Second)
	}
	s.Failovers = f
}

// notifyLink notifies the workers of a link that went up or down: of their own at once, and of the aggregator's when its control
// plane reports it.
func (r *run) notifyLink(host int, up bool) {
	if r.Failovers == nil {
		return
	}
	if host >= r.NICs {
		for _, m := range r.members {
			if nic := slices.Index(m.nics, host); nic >= 0 && !m.job.closed {
				m.w.WorkerLink(nic, up)
			}
		}
		return
	}
	r.changes[host]++
	change := r.changes[host]
	after := time.Duration(r.rng.Int64N(int64(r.Failovers.Notice) + 1))
	if up {
		after += verbs.LinkSettles
	}
	r.later(after, func() error {
		if r.changes[host] == change {
			r.notifyAggregatorLink(host, up)
		}
		return nil
	})
}

func (r *run) notifyAggregatorLink(nic int, up bool) {
	r.aggregatorDown = slices.DeleteFunc(r.aggregatorDown, func(n int) bool { return n == nic })
	if !up {
		r.aggregatorDown = append(r.aggregatorDown, nic)
	}
	for _, m := range r.members {
		if !m.job.closed {
			m.w.AggregatorLinks(r.aggregatorDown)
		}
	}
}

// failOver takes the due steps of failovers.
func (r *run) failOver() {
	if r.Failovers == nil || r.aggregatorDead {
		return
	}
	for _, m := range r.members {
		if m.over() && !m.done || m.left || m.job.closed || m.job.failed != 0 || m.job.rack.Job.Failure() != nil {
			continue
		}
		r.notifyBreaks(m)
		m.w.Look()
		for lane := range m.due {
			r.advance(m, lane)
		}
	}
}

// notifyBreaks notifies a member of its connections that broke at the aggregator, and sometimes of one that did not break.
func (r *run) notifyBreaks(m *member) {
	if r.falseReports > 0 && r.rng.IntN(100) == 0 {
		r.falseReports--
		lane := r.rng.IntN(r.Lanes)
		m.w.Broke(lane, m.w.Attempt(lane))
	}
	for {
		select {
		case b := <-m.job.rack.Job.Breaks(m.rank):
			m.w.Broke(b.Lane, b.Attempt)
		default:
			return
		}
	}
}

func (r *run) advance(m *member, lane int) {
	if r.now < m.due[lane] {
		return
	}
	more, err := m.w.Advance(context.Background(), lane)
	if err != nil {
		err = fmt.Errorf("%v: %w", m, err)
		worker.Abort(m.w.C, err.Error())
		m.fail(err)
		return
	}
	if more {
		m.due[lane] = r.now + r.rng.Int64N(int64(r.Failovers.Slow)+1)
	}
}
