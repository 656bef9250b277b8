package aggregate

import (
	"errors"
	"fmt"
)

// Audit checks what must hold in a lane between two rounds: every pool within its bound, every slot, fold, want, result buffer
// and send-queue entry accounted for once. It names the first thing that does not hold. On the lane's goroutine; tests and the
// simulation call it.
func (l *Lane) Audit() error {
	open := 0
	for _, s := range l.shares {
		if err := s.audit(); err != nil {
			return fmt.Errorf("lane %d: job %q: %w", l.index, s.job.name, err)
		}
		open += s.open
	}
	if uint64(open) != l.local.FoldsOpen {
		return fmt.Errorf("lane %d: %d folds open, counted %d", l.index, open, l.local.FoldsOpen)
	}
	conns := 0
	for _, c := range l.conns {
		if c != nil {
			conns++
		}
	}
	if conns != l.connCount || conns > l.depths.MaxConns {
		return fmt.Errorf("lane %d: %d connections, counted %d, room for %d", l.index, conns, l.connCount, l.depths.MaxConns)
	}
	return nil
}

func (s *share) audit() error {
	if s.ended || s.job.failure.Load() != nil {
		return nil // its messages are dropped where they are
	}
	if n := len(s.ready); n > len(s.folds.folds) {
		return fmt.Errorf("%d folds ready of %d", n, len(s.folds.folds))
	}
	if n, most := len(s.deferred), s.job.workers*s.job.window; n > most {
		return fmt.Errorf("%d messages deferred, at most %d can be held", n, most)
	}
	if s.waiting() && !s.listed {
		return errors.New("something waits and the lane does not know")
	}
	held, err := s.auditFolds()
	if err != nil {
		return err
	}
	for i := range s.deferred {
		rank := s.deferred[i].conn.rank
		held[rank] = append(held[rank], s.deferred[i].slot)
	}
	for rank := range s.commit.messages {
		if m := &s.commit.messages[rank]; m.conn != nil {
			held[rank] = append(held[rank], m.slot)
		}
	}
	refs := [resultBuffers]int32{}
	for rank, c := range s.conns {
		if c == nil || c.dead {
			continue
		}
		if err := c.audit(held[rank], &refs); err != nil {
			return fmt.Errorf("worker %d: %w", rank, err)
		}
	}
	return s.results.audit(&refs, s.someDead())
}

func (s *share) someDead() bool {
	for _, c := range s.conns {
		if c != nil && c.dead {
			return true
		}
	}
	return false
}

// auditFolds checks the folds and returns, by rank, the slots that their arrivals hold.
func (s *share) auditFolds() (held [][]uint16, err error) {
	held = make([][]uint16, s.job.workers)
	open := 0
	for i := range s.folds.folds {
		f := &s.folds.folds[i]
		if !f.open {
			continue
		}
		open++
		if got := s.chunks[f.chunk].fold; got != int32(i) {
			return nil, fmt.Errorf("fold %d is of chunk %d, which has fold %d", i, f.chunk, got)
		}
		count := 0
		for rank := range s.job.workers {
			a := s.folds.arrival(int32(i), rank)
			if a.present {
				count++
				held[rank] = append(held[rank], a.slot)
			}
			if a.present && s.conns[rank].asked[f.chunk] {
				return nil, fmt.Errorf("fold %d of chunk %d still wants what worker %d sent", i, f.chunk, rank)
			}
		}
		if count != f.count || count == 0 {
			return nil, fmt.Errorf("fold %d of chunk %d counts %d arrivals, %d are there", i, f.chunk, f.count, count)
		}
	}
	for rank, c := range s.conns {
		if c != nil && c.folded != len(held[rank]) {
			return nil, fmt.Errorf("worker %d has %d gradients in folds, counted %d", rank, len(held[rank]), c.folded)
		}
	}
	listed, prev := 0, int32(noFold)
	for i := s.folds.first; i != noFold && listed <= open; prev, i = i, s.folds.at(i).next {
		listed++
		if f := s.folds.at(i); !f.open || f.prev != prev {
			return nil, fmt.Errorf("fold %d stands behind fold %d, and says behind %d; open: %v", i, prev, f.prev, f.open)
		}
	}
	if listed != open || s.folds.last != prev {
		return nil, fmt.Errorf("%d folds open, %d listed up to fold %d, the last is %d", open, listed, prev, s.folds.last)
	}
	if open != s.open || open+len(s.folds.free) != len(s.folds.folds) {
		return nil, fmt.Errorf("%d folds open, counted %d, %d free of %d", open, s.open, len(s.folds.free), len(s.folds.folds))
	}
	return held, nil
}

func (c *conn) audit(held []uint16, refs *[resultBuffers]int32) error {
	if len(held) != c.held || c.held > c.share.job.window {
		return fmt.Errorf("holds %d messages of a window of %d, counted %d", len(held), c.share.job.window, c.held)
	}
	if c.unheard > wantsAtOnce {
		return fmt.Errorf("was sent %d wants without a sign of life", c.unheard)
	}
	asked := 0
	for _, open := range c.asked {
		if open {
			asked++
		}
	}
	if asked != c.wants {
		return fmt.Errorf("was asked for %d chunks, counted %d", asked, c.wants)
	}
	taken := make([]bool, c.share.job.window)
	for i := range c.share.job.window - c.held {
		held = append(held, c.free[(c.freeHead+i)%len(c.free)])
	}
	for _, slot := range held {
		if taken[slot] {
			return fmt.Errorf("slot %d is free twice, held twice, or both", slot)
		}
		taken[slot] = true
	}
	r := &c.ring
	if (r.unposted != 0 || c.consumed != 0) && !c.mend.broken {
		return fmt.Errorf("%d answers and %d receives were not posted", r.unposted, c.consumed)
	}
	if r.used < 0 || r.used > len(r.wrs) || r.unposted > r.used {
		return fmt.Errorf("%d messages wait for the worker, %d of them unposted, in a ring of %d", r.used, r.unposted, len(r.wrs))
	}
	for i := range r.used {
		if r := r.results[r.index(i)]; r != noResult {
			refs[r]++
		}
	}
	return nil
}

// audit checks the buffers against the answers on their way that hold them. A lost connection keeps what it held.
func (p *resultPool) audit(refs *[resultBuffers]int32, lost bool) error {
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
