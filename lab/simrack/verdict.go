package simrack

import (
	"errors"
	"fmt"
	"slices"
	"time"
)

// look checks what must hold at any time.
func (r *run) look() error {
	for i, l := range r.engine.Lanes() {
		if r.lost[i] || r.aggregatorDead {
			continue
		}
		if err := l.Audit(); err != nil {
			return err
		}
	}
	now := time.Duration(r.now)
	for _, j := range r.jobs {
		if r.notice(j); j.failed == 0 || j.closed {
			continue
		}
		if !j.struck {
			return fmt.Errorf("%s failed, which nothing struck: %w", j.Name, j.reason())
		}
		for _, m := range j.members {
			if !m.over() && now > j.failed+noticed {
				return fmt.Errorf("%v still waits %v after its job failed (%w)", m, now-j.failed, j.reason())
			}
		}
	}
	return r.stuck(now)
}

// stuck returns an error if nothing has been finished for too long.
func (r *run) stuck(now time.Duration) error {
	p := progress{}
	for _, l := range r.engine.Lanes() {
		p.chunks += l.Counters().Chunks
	}
	for _, j := range r.jobs {
		p.ops += uint64(j.ops)
	}
	if p != r.mark || r.over() || r.paused(now) {
		r.mark, r.markTime, r.markTurns = p, now, r.turns
		return nil
	}
	if now-r.markTime > stuckAfter || r.turns-r.markTurns > stuckTurns {
		return fmt.Errorf("stuck: nothing was finished in %v of virtual time, %d turns; %s", now-r.markTime, r.turns-r.markTurns,
			r.waits())
	}
	if r.turns > longestTurns {
		return fmt.Errorf("not done after %d turns; %s", r.turns, r.waits())
	}
	return nil
}

// paused reports whether something that is still to come may explain a standstill.
func (r *run) paused(now time.Duration) bool {
	for _, m := range r.members {
		for _, p := range m.pauses {
			if now < p.to {
				return true
			}
		}
	}
	for _, p := range r.LanePauses {
		if now < p.to {
			return true
		}
	}
	return len(r.links) > 0 || len(r.events) > 0
}

// waits says who waits for what.
func (r *run) waits() (text string) {
	for _, m := range r.members {
		if !m.over() {
			text += fmt.Sprintf("%v is in phase %d with %d operations in flight, %d to submit; ", m, m.phase, len(m.pending), len(m.todo))
		}
	}
	return text
}

func (j *job) reason() error {
	if f := j.rack.Job.Failure(); f != nil {
		return fmt.Errorf("because of worker %d: %w", f.Rank, f.Err)
	}
	for _, m := range j.members {
		if m.err != nil {
			return m.err
		}
	}
	return errors.New("for no reason given")
}

// verdict checks what must hold at the end.
func (r *run) verdict() error {
	broken, dead := 0, r.aggregatorDead
	for _, j := range r.jobs {
		if j.skipped {
			continue
		}
		if !j.closed {
			if err := r.judge(j); err != nil {
				return err
			}
		}
		if j.failed != 0 {
			broken++
		}
		for _, m := range j.members {
			dead = dead || m.dead
		}
	}
	if broken > 1 && !r.aggregatorDead && !slices.Contains(r.lost, true) {
		return errors.New("one fault brought down two jobs")
	}
	if broken == 0 && !dead {
		return r.count()
	}
	return nil
}

// judge checks what must hold of a job that is over.
func (r *run) judge(j *job) error {
	r.notice(j)
	if err := r.rogueFate(j); err != nil {
		return err
	}
	for _, l := range r.engine.Lanes() {
		l.Counters() // publishes the workers' counters
	}
	for _, m := range j.members {
		for t := range m.last {
			if err := m.check(t); err != nil {
				return fmt.Errorf("at the end: %w", err)
			}
		}
	}
	if j.failed != 0 {
		if !j.struck {
			return fmt.Errorf("%s failed, which nothing struck: %w", j.Name, j.reason())
		}
		return nil
	}
	if got := j.rack.Job.Memory(); got != j.memory {
		return fmt.Errorf("%s holds %+v, after its last registration it held %+v", j.Name, got, j.memory)
	}
	for _, m := range j.members {
		if m.dead {
			continue
		}
		if err := m.audit(); err != nil {
			return err
		}
	}
	if j.stream != nil {
		return j.stream.atEnd()
	}
	return nil
}

// count checks that every chunk was summed once, and none was dropped.
func (r *run) count() error {
	var got, dropped, want uint64
	for _, l := range r.engine.Lanes() {
		c := l.Counters()
		got += c.Chunks
		dropped += c.Dropped
	}
	sets := false
	for _, j := range r.jobs {
		want += j.finished()
		sets = sets || j.Sets // which drop some, by their policy
	}
	if got > want || got < want && !sets || dropped != 0 {
		return fmt.Errorf("%d chunks were finished, expected %d; %d messages were dropped", got, want, dropped)
	}
	return nil
}

// finished is how many chunks the aggregator finishes: in mode stream every worker's gradient by itself.
func (j *job) finished() (chunks uint64) {
	for i, m := range j.members {
		if i == 0 {
			chunks += m.gradients
		} else {
			chunks += m.alone
		}
	}
	return chunks
}

func (r *run) result() Result {
	res := Result{NetworkHash: r.sim.LogHash(), Turns: r.turns, Virtual: time.Duration(r.now)}
	for _, l := range r.engine.Lanes() {
		c := l.Counters()
		res.Lanes += fmt.Sprintf("%+v\n", c)
		res.Moves += int(c.Moves)
	}
	for _, m := range r.members {
		res.Failovers += int(m.w.Failovers())
	}
	for _, j := range r.jobs {
		res.Failed = res.Failed || j.failed != 0
	}
	return res
}
