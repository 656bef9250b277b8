package simrack

import (
	"math/rand/v2"
	"time"

	"github.com/rackweave/rackweave/cgo/worker"
)

// moveSchedule is a rack whose NICs have links that fail, and connections that move from one to another.
type moveSchedule struct {
	WorkerNICs int
	AckTimeout time.Duration
	Ports      []linkFault   // in which another way stays open
	Idle       int           // moves that nothing asks for
	Slow       time.Duration // the most that each step of a move takes
}

// moves draws them, from randomness of their own: the rest of the schedule is what it would be without.
func moves(s *Schedule) {
	d := draw{rand.New(rand.NewPCG(s.Seed, 3))}
	if s.ByReference || s.CopiesAtPost || s.Fault.Kind == Rogue || d.chance(35) {
		return
	}
	m := &moveSchedule{
		WorkerNICs: d.between(1, 3), AckTimeout: d.duration(100*time.Millisecond, time.Second), Idle: d.IntN(20), Slow: d.duration(0, 30*time.Millisecond),
	}
	if s.NICs == 1 && m.WorkerNICs == 1 {
		m.WorkerNICs = 2
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
			m.Ports = append(m.Ports, linkFault{d.IntN(s.NICs), from, to})
		}
		if m.WorkerNICs > 1 && d.chance(60) {
			m.Ports = append(m.Ports, linkFault{s.NICs + d.IntN(workers), from, to + d.duration(0, 100*time.Millisecond)})
		}
		at = to + d.duration(0, time.Second)
	}
	s.Moves = m
}

// lanePhase is how far a lane's move is.
type lanePhase int

const (
	inService lanePhase = iota
	detached
	asked
)

// laneMove is a lane of a member.
type laneMove struct {
	phase   lanePhase
	box, at int // NICs: of the box's, and of the member's
	due     int64
}

// moveLanes does what is due of the moves of all members.
func (r *run) moveLanes() error {
	if r.Moves == nil || r.boxDead {
		return nil
	}
	for _, m := range r.members {
		if m.over() && !m.done || m.left || m.job.closed || m.job.failed != 0 || m.job.rack.Job.Failure() != nil {
			continue
		}
		broken := r.brokenLanes(m)
		for lane := range m.lanes {
			if err := r.moveLane(m, lane, broken[lane] != 0); err != nil {
				return err
			}
		}
	}
	return nil
}

// brokenLanes are the lanes of a member whose queue pair failed, at either end.
func (r *run) brokenLanes(m *member) []uint8 {
	broken := make([]uint8, r.Lanes)
	worker.Broken(m.w.C, broken)
	for {
		select {
		case b := <-m.job.rack.Job.Breaks(m.rank):
			if b.Attempt == m.w.Attempt(b.Lane) {
				broken[b.Lane] = 1
			}
		default:
			return broken
		}
	}
}

func (r *run) moveLane(m *member, lane int, broken bool) error {
	l := &m.lanes[lane]
	if r.now < l.due {
		return nil
	}
	switch l.phase {
	case inService:
		idle := r.idleMoves > 0 && r.rng.IntN(100) == 0
		if idle {
			r.idleMoves--
		}
		if !broken && !idle && r.open(m, l.box, l.at) {
			return nil
		}
		r.trace("%v: %v: lane %d is detached; broken: %v", time.Duration(r.now), m, lane, broken)
		if err := m.w.Detach(lane); err != nil {
			m.fail(err)
			return nil
		}
		l.phase = detached
	case detached:
		if l.box, l.at = r.rng.IntN(r.NICs), r.rng.IntN(len(m.nics)); !r.open(m, l.box, l.at) {
			return nil
		}
		if err := m.job.rack.Ask(m.w, lane, l.box, l.at); err != nil {
			r.trace("%v: %v: lane %d: %v", time.Duration(r.now), m, lane, err)
			return nil // the next time; if that does not help, the job fails in the end
		}
		l.phase = asked
	case asked:
		l.phase = detached
		if !r.open(m, l.box, l.at) {
			return nil
		}
		if err := m.job.rack.GoOn(m.w, lane); err != nil {
			r.trace("%v: %v: lane %d: %v", time.Duration(r.now), m, lane, err)
			return nil
		}
		r.trace("%v: %v: lane %d goes on over NICs %d and %d", time.Duration(r.now), m, lane, l.box, l.at)
		l.phase = inService
	}
	l.due = r.now + r.rng.Int64N(int64(r.Moves.Slow)+1)
	return nil
}

// open reports whether both NICs of a way have a link.
func (r *run) open(m *member, box, at int) bool { return !r.down[box] && !r.down[m.nics[at]] }
