package aggregate

import (
	"fmt"

	"github.com/rackweave/rackweave/aggregate/reduce"
	"github.com/rackweave/rackweave/aggregate/session"
)

// audit checks the share where its parts must agree: the machine's count of each send queue with what the connection holds, and
// the result buffers with the answers that read them.
func (s *share) audit() error {
	if s.machine.State() != reduce.Running || s.fate.failure.Load() != nil {
		return nil // its messages are dropped where they are
	}
	if err := s.machine.Check(); err != nil {
		return err
	}
	refs, lost := [resultBuffers]int32{}, false
	for rank, k := range s.links {
		if k == nil {
			continue
		}
		lost = lost || k.State() == session.Closed
		if k.State() == session.Up && k.Unposted() > 0 {
			return fmt.Errorf("worker %d: %d answers were not posted", rank, k.Unposted())
		}
		if free := s.machine.Sends(rank); k.State() != session.Closed && free+k.Held() != k.Depth() {
			return fmt.Errorf("worker %d: %d messages in a ring of %d, of which %d are free", rank, k.Held(), k.Depth(), free)
		}
		for i := range k.Held() {
			if r := k.Token(i); r != noResult {
				refs[r]++
			}
		}
	}
	return s.results.audit(&refs, lost)
}

// audit checks the buffers against the answers on their way that hold them. A lost connection keeps what it held.
func (p *results) audit(refs *[resultBuffers]int32, lost bool) error {
	free := [resultBuffers]bool{}
	for _, i := range p.free {
		if free[i] {
			return fmt.Errorf("result buffer %d is free twice", i)
		}
		free[i] = true
	}
	for i, n := range p.refs {
		if free[i] != (n == 0) || n < refs[i] || (n > refs[i] && !lost) {
			return fmt.Errorf("result buffer %d is held %d times, by %d answers; free: %v", i, n, refs[i], free[i])
		}
	}
	return nil
}

// Audit checks what must hold in a lane between two rounds, for tests and the simulation: every slot, fold, result buffer and
// send-queue entry is accounted for once. It names the first thing that does not hold. On the lane's goroutine.
func (l *Lane) Audit() error {
	for _, s := range l.shares {
		if err := s.audit(); err != nil {
			return fmt.Errorf("lane %d: job %q: %w", l.index, s.name, err)
		}
		if s.machine.Waiting() && !s.listed {
			return fmt.Errorf("lane %d: job %q: something waits and the lane does not know", l.index, s.name)
		}
	}
	return nil
}
