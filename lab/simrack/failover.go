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

// failoverSchedule is a rack whose NICs have links that fail, and connections that go on over others. Where they go is not drawn:
// the code that every worker runs decides (packages lanes and failover), and the schedule says when it learns what.
type failoverSchedule struct {
	WorkerNICs int
	AckTimeout time.Duration
	Ports      []linkFault   // in which another path stays open
	Rumours    int           // times that a connection is said to be broken which is not
	Notice     time.Duration // the most that it takes to tell workers of the aggregator's links
	Slow       time.Duration // the most that each step of a failover takes
}

// failovers draws them, from randomness of their own: the rest of the schedule is what it would be without.
func failovers(s *Schedule) {
	d := draw{rand.New(rand.NewPCG(s.Seed, 3))}
	if s.ByReference || s.CopiesAtPost || s.Fault.Kind == Rogue || d.chance(35) {
		return
	}
	f := &failoverSchedule{
		WorkerNICs: d.between(1, 3), AckTimeout: d.duration(100*time.Millisecond, time.Second), Rumours: d.IntN(20),
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
		// Hosts are numbered as newCluster makes them.
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

// tellLink lets the workers know of a link that went up or down: their own at once, the aggregator's when its control plane
// says so.
func (r *run) tellLink(host int, up bool) {
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
			r.tellAggregatorLink(host, up)
		}
		return nil
	})
}

func (r *run) tellAggregatorLink(nic int, up bool) {
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

// failOver takes the steps of failovers that are due.
func (r *run) failOver() {
	if r.Failovers == nil || r.aggregatorDead {
		return
	}
	for _, m := range r.members {
		if m.over() && !m.done || m.left || m.job.closed || m.job.failed != 0 || m.job.rack.Job.Failure() != nil {
			continue
		}
		r.tellBreaks(m)
		m.w.Look()
		for lane := range m.due {
			r.advance(m, lane)
		}
	}
}

// tellBreaks lets a member know of its connections that broke at the aggregator, and at times of one that did not.
func (r *run) tellBreaks(m *member) {
	if r.rumours > 0 && r.rng.IntN(100) == 0 {
		r.rumours--
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
