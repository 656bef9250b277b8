package simrack

import (
	"errors"
	"fmt"
	"slices"
	"time"
)

// checkInvariants checks the invariants that hold at any time.
func (r *run) checkInvariants() error {
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
		r.notice(j)
		if err := r.lookAtLost(j, now); err != nil {
			return err
		}
		if j.failed == 0 || j.closed {
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

// lookAtLost checks that a job goes on without lost workers only where its policy can, and soon.
func (r *run) lookAtLost(j *job, now time.Duration) error {
	lost := 0
	for _, m := range j.members {
		spared := j.goesOnWithout(m.rank)
		if spared {
			lost++
		}
		switch late := m.lost != 0 && j.failed == 0 && !j.closed && now > m.lost+noticed; {
		case (m.lost != 0 || spared) && !j.struck:
			return fmt.Errorf("%v is lost, which nothing struck: %v", m, m.err)
		case late && !spared:
			return fmt.Errorf("%v has been lost for %v, and its job neither failed nor goes on without it", m, now-m.lost)
		case late && !m.over():
			return fmt.Errorf("%v still waits %v after its job went on without it", m, now-m.lost)
		}
	}
	if lost > j.spares() {
		return fmt.Errorf("%s continues without %d workers: %v tolerates the loss of %d", j.Name, lost, j.rack.Job.Gate.Spec(), j.spares())
	}
	return nil
}

// spares returns the number of workers that the policy of the job can do without.
func (j *job) spares() int {
	if j.changed {
		return max(j.Policy.spares, j.Change.To.spares)
	}
	return j.Policy.spares
}

// goesOnWithout reports whether the aggregator has lost a worker and the job goes on.
func (j *job) goesOnWithout(rank int) bool {
	if j.stream == nil || j.rack == nil {
		return false
	}
	p := j.rack.Job.Gate.Look(rank)
	return p.Lost
}

// harmed reports whether the job has failed or has lost a worker.
func (j *job) harmed() bool {
	return j.failed != 0 || slices.ContainsFunc(j.members, func(m *member) bool { return m.lost != 0 })
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

// paused reports whether a pause or fault that is not over may explain a standstill.
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

// waits describes the members that wait, and for which operations.
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

// verdict checks the invariants that hold at the end.
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
		if j.harmed() {
			broken++
		}
		for _, m := range j.members {
			dead = dead || m.dead
		}
	}
	if broken > 1 && !r.aggregatorDead && !slices.Contains(r.lost, true) {
		return errors.New("one fault harmed two jobs")
	}
	if broken == 0 && !dead {
		return r.count()
	}
	return nil
}

// judge checks the invariants of a job that is over.
func (r *run) judge(j *job) error {
	r.notice(j)
	if err := r.checkRogue(j); err != nil {
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
		if m.dead || m.lost != 0 || m.rogue && r.Fault.Rogue.mayPass() {
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
		sets = sets || j.Sets // whose policy drops some gradients
	}
	if got > want || got < want && !sets || dropped != 0 {
		return fmt.Errorf("%d chunks were finished, expected %d; %d messages were dropped", got, want, dropped)
	}
	return nil
}

// finished returns the number of chunks that the aggregator finishes. In mode stream it finishes every worker's gradient by itself.
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
		res.Lanes += fmt.Sprintf("%+v\n", l.Counters())
	}
	for _, m := range r.members {
		res.Failovers += int(m.w.Failovers())
	}
	for _, j := range r.jobs {
		res.Failed = res.Failed || j.failed != 0
		res.Spared = res.Spared || j.failed == 0 && j.harmed()
	}
	return res
}
