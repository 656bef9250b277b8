package aggregate

import (
	"time"

	"github.com/rackweave/rackweave/chunk"
)

// Workers may push tensors in different orders. A window of slots can then fill with chunks that others have not sent, while
// what the others wait for finds no slot: a deadlock that order alone causes. Its mark is a worker with a full window that
// lacks a chunk another has sent. (In one order for all, a full worker is ahead of everybody, and lacks nothing: a worker that
// is merely late is not a stall.) The lane breaks it when it has nothing else to do, by two rules.
//
//   - Follow: one worker leads, and the full ones are told which of its chunks they have not sent. They send those first, and
//     keep their last slot for them. To make room, as many of their own chunks are given back, of those that the leader has not
//     sent: a worker holds the gradient until it is answered, so nothing is lost, and sends it again later, behind all else. So
//     all go in the leader's order, and a chunk costs a follower at most one want and one give-back.
//   - Turn: after a while without any finished chunk another leads, and half of what the stalled hold is given back, so that
//     chunks nobody has sent get their turn. One chunk in progress is kept until the next turn, and wanted before others, so that
//     those who are stalled meet there; the next turn it is another, as some may not have submitted it.
//
// By reference a worker that copies its payloads runs out of staging buffers long before its window is full: it is full, too,
// when the box holds what lies in them, and keeps its last one as it keeps its last slot.
//
// A chunk that all workers have submitted is then finished after finitely many rounds: some worker's turn comes to send it,
// the others get a want for it, and have a slot for it.

// wantsAtOnce bounds the wants sent to a worker from which nothing came since: they must find posted receives.
const wantsAtOnce = recvMargin / 2

// lookEvery is how often a stalled job is looked at while nothing comes.
const lookEvery = time.Millisecond

// turnAfter is how many idle looks (at least lookEvery apart) without a finished chunk pass before it is somebody's turn. Where
// workers do not answer the last turn, which seldom look at their queues, it is twice as many the next time, up to turnAtLast.
const (
	turnAfter  = 8
	turnAtLast = 256
)

// Relieve looks at every share with a full worker and breaks a stall; it reports whether there is one, so that the lane looks
// again soon. A lane calls it before it sleeps; the simulation calls it directly.
func (l *Lane) Relieve() bool {
	stalled := false
	for _, s := range l.shares {
		if !s.ended && s.open > 0 && len(s.ready) == 0 && s.relieve() {
			stalled = true
		}
	}
	return stalled
}

func (s *share) relieve() bool {
	// What comes in wakes the lane for looks in between: those who wait for a processor have not had their turn by then.
	if now := s.lane.now(); s.lane.manual || now-s.lookedAt >= int64(lookEvery) {
		s.lookedAt = now
		s.stallRounds++
	}
	if s.finished != s.finishedAtStall {
		s.stallRounds, s.patience = 0, max(s.patience/2, turnAfter)
	}
	s.finishedAtStall = s.finished
	turn := s.stallRounds >= turnAfter && (s.stallRounds >= s.patience || s.answered()) && planted != plantNoTurn
	if turn {
		if s.stallRounds >= s.patience {
			s.patience = min(s.patience*2, turnAtLast)
		}
		s.stallRounds = 0
		s.kept = s.meeting()
		s.leader++
	}
	s.elect()
	stalled := false
	for rank, c := range s.conns {
		if c == nil {
			continue // it has not attached yet
		}
		if c.stalled = !c.dead && c.held > 0 && c.full() && s.lacks(c); !c.stalled {
			continue
		}
		stalled = true
		if c.room = 0; rank != s.leader {
			c.room = s.follow(c, rank)
		}
		if turn && !s.folds.arrival(s.kept, rank).present {
			s.want(c, s.kept, wantsAtOnce) // also if it was asked for: a worker sends first what was wanted last
		}
	}
	// Only now, as what one gives back others no longer lack.
	for rank, c := range s.conns {
		switch {
		case c == nil || !c.stalled:
		case turn && s.folds.arrival(s.kept, rank).present:
			s.giveBack(c, rank, noRank, c.held/2)
		case turn:
			s.giveBack(c, rank, noRank, (c.held+1)/2)
		case rank != s.leader && c.room == 0 && c.stuck():
			s.giveBack(c, rank, s.leader, 1)
		case rank != s.leader:
			s.giveBack(c, rank, s.leader, c.room)
		}
	}
	return stalled
}

// follow tells a worker which of the leader's chunks it has not sent, and returns how many it did not know of. The youngest first:
// of what is wanted, the worker begins with the last.
func (s *share) follow(c *conn, rank int) (n int) {
	for i := s.folds.last; i != noFold && c.hears(wantsAtOnce-1); i = s.folds.at(i).prev {
		if !c.asked[s.folds.at(i).chunk] && !s.folds.arrival(i, rank).present && s.folds.arrival(i, s.leader).present {
			s.want(c, i, wantsAtOnce-1)
			n++
		}
	}
	return n
}

// answered reports whether all that were given something back, and can send, have sent something since.
func (s *share) answered() bool {
	for _, c := range s.conns {
		if c != nil && c.owing && !c.dead && !c.full() {
			return false
		}
	}
	return true
}

// full reports whether the worker can send no more, but for the slot and the buffer that it keeps while something is wanted.
func (c *conn) full() bool { return c.holds(min(c.wants, 1)) }

// stuck reports whether it cannot even send what is wanted.
func (c *conn) stuck() bool { return c.holds(0) }

// holds reports whether all slots, or all buffers, but so many are held here.
func (c *conn) holds(but int) bool {
	return c.held >= c.share.job.window-but || c.staged > 0 && c.staged >= c.staging-but
}

// heard takes note that the worker has sent a chunk.
func (c *conn) heard(chunk int) {
	if c.asked[chunk] {
		c.asked[chunk] = false
		c.wants--
	}
}

// hears reports whether the worker can be sent a want: it may be deaf, with so many on their way.
func (c *conn) hears(most int) bool { return c.unheard < most && c.canAnswer() }

// want tells a worker that others have sent a chunk and it has not.
func (s *share) want(c *conn, fold int32, most int) {
	if !c.hears(most) {
		return
	}
	index := s.folds.at(fold).chunk
	if !c.asked[index] {
		c.asked[index] = true
		c.wants++
	}
	c.unheard++
	s.lane.local.Wants++
	c.control(chunk.Pack(chunk.OpNotice, chunk.NoticeRequest, index))
}

// meeting chooses the fold of a turn: by turns the one that was chosen least recently, of those the one that lacks the fewest,
// and any.
func (s *share) meeting() int32 {
	s.turns++
	any := int(s.turns*0x9e3779b1>>8) % s.open
	best := int32(noFold)
	for i := s.folds.first; i != noFold; i = s.folds.at(i).next {
		f := s.folds.at(i)
		if any--; any < 0 && s.turns%2 == 0 {
			best = i
			break
		}
		if b := best; b == noFold || f.met < s.folds.at(b).met || (f.met == s.folds.at(b).met && f.count > s.folds.at(b).count) {
			best = i
		}
	}
	s.folds.at(best).met = s.turns
	return best
}

// lacks reports whether a chunk in progress misses this worker's gradient.
func (s *share) lacks(c *conn) bool { return c.folded < s.open }

// elect makes sure that the one who leads has sent something that is not finished.
func (s *share) elect() {
	for range s.conns {
		s.leader %= len(s.conns)
		if c := s.conns[s.leader]; c != nil && c.folded > 0 {
			return
		}
		s.leader++
	}
	s.leader = 0
}

// giveBack returns up to n of a worker's chunks, those last begun first, never the one that is kept, nor what the leader has sent,
// if there is one; only such in staging buffers where it is these that the worker lacks.
func (s *share) giveBack(c *conn, rank, leader, n int) {
	slots := c.held >= s.job.window-1
	for i, before := s.folds.last, int32(noFold); n > 0 && i != noFold && c.canAnswer(); i = before {
		f, a := s.folds.at(i), s.folds.arrival(i, rank)
		before = f.prev
		if i == s.kept || !a.present || !(slots || c.stages(a.source)) || (leader != noRank && s.folds.arrival(i, leader).present) {
			continue
		}
		n--
		c.next(chunk.Pack(chunk.OpNotice, chunk.NoticeNACK, f.chunk), noResult)
		c.owing = true
		if planted != plantLeakedSlot {
			c.giveSlot(a.slot, a.source)
		}
		*a = arrival{}
		s.lane.local.GiveBacks++
		c.folded--
		c.counters.Chunks--
		if f.count--; f.count == 0 {
			s.closeFold(i)
		}
	}
	c.post()
}
