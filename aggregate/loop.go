package aggregate

import (
	"fmt"
	"runtime/debug"
	"time"

	"github.com/rackweave/rackweave/numa"
)

const (
	awayNap   = 200 * time.Microsecond // how long a lane sleeps while it has several queues to look at
	tickEvery = time.Millisecond       // how often a stalled job is looked at while nothing comes
	longNap   = 100 * time.Millisecond // how long a lane sleeps when nothing is due
)

// run is the lane's loop until stop. It says first whether it has its core; without, it does not run.
func (l *Lane) run(pinned chan<- error) {
	defer close(l.done)
	var err error
	if l.cfg.CPU >= 0 {
		if err = numa.Pin(l.cfg.CPU); err != nil {
			err = fmt.Errorf("lane %d: %w", l.index, err)
		}
	}
	if pinned <- err; err != nil {
		return
	}
	debug.SetPanicOnFault(true) // memory that a worker takes back fails its job
	for !l.stopping.Load() {
		if err := l.turn(); err != nil {
			l.err = err
			l.stopping.Store(true)
		}
	}
	l.runCommands()
}

// turn is one round of the lane's loop and, when there is nothing to do, a sleep. A panic ends the job that the lane was serving;
// an error is one that ends the lane.
func (l *Lane) turn() (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = l.contain(v)
		}
	}()
	worked, err := l.Step()
	if err != nil {
		return err
	}
	if worked {
		l.idle = 0
	} else if l.idle++; l.idle > l.spin {
		l.sleep()
	}
	return nil
}

// sleep waits for the next completion. A stalled job is looked at every millisecond; otherwise the wait is only bounded.
func (l *Lane) sleep() {
	limit := longNap
	if l.Tick() {
		limit = tickEvery
	}
	if l.away() || l.broken {
		limit = awayNap
	}
	l.publish()
	if l.cqLost[l.primary] {
		time.Sleep(awayNap) // it would wake at once, for ever
		return
	}
	if l.cqs[l.primary].Arm(1) != nil {
		return
	}
	if worked, _ := l.Step(); worked {
		return
	}
	l.local.Sleeps++
	l.cqs[l.primary].Wait(limit)
}

// Tick looks for workers whose orders keep each other waiting, and breaks such a stall; it reports whether there is one, so that
// the lane looks again soon. A lane calls it before it sleeps; the simulation calls it directly.
func (l *Lane) Tick() bool {
	l.stamp = l.now()
	stalled := false
	for _, s := range l.shares {
		if s.lent {
			continue
		}
		l.serving = s
		// What comes in wakes the lane for ticks in between: they do not count, as others have not had a processor since.
		counts := l.manual || l.stamp-s.lookedAt >= int64(tickEvery)
		if counts {
			s.lookedAt = l.stamp
		}
		stalled = s.tick(counts) || stalled
	}
	l.flush()
	return stalled
}

// Step is one round: take completions, fold what is complete, post answers and receives. It reports whether it did anything.
// An error means that a completion queue is lost and no other can do its work: the lane's jobs have failed with it. The
// simulation calls it directly.
func (l *Lane) Step() (bool, error) {
	if l.broken {
		l.recover()
	}
	l.serving = nil
	n, err := l.poll()
	alone := l.alone()
	if err == nil && !alone {
		err = l.dealAll()
	}
	if err != nil {
		err = fmt.Errorf("lane %d: %w", l.index, err)
		l.failAll(err)
		return false, err
	}
	attention := l.attention.Load()
	if n == 0 && len(l.busy) == 0 && !attention && l.queued == 0 {
		return false, nil
	}
	l.stamp = l.now()
	if alone {
		l.completeAll()
	}
	if attention {
		l.attention.Store(false)
		l.runCommands()
		for _, s := range l.shares {
			if s.fate.failure.Load() != nil && !s.lent {
				l.serving = s
				s.end()
			}
		}
	}
	worked := n > 0 || attention
	if !alone {
		worked = l.serve() || worked
	}
	for i := 0; i < len(l.busy); {
		s := l.busy[i]
		if alone {
			l.serving = s
			worked = s.advance() || worked
		}
		if s.lent || s.waiting() {
			i++
			continue
		}
		s.listed = false
		l.busy[i] = l.busy[len(l.busy)-1]
		l.busy[len(l.busy)-1] = nil
		l.busy = l.busy[:len(l.busy)-1]
	}
	l.flush()
	if worked {
		l.local.Rounds++
	}
	if l.stamp-l.last > int64(time.Millisecond) {
		l.publish()
	}
	return worked, nil
}

func (l *Lane) stop() {
	l.stopping.Store(true)
	l.notify()
	<-l.done
}
