package aggregate

import (
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/rackweave/rackweave/aggregate/reduce"
	"github.com/rackweave/rackweave/aggregate/session"
	"github.com/rackweave/rackweave/hierarchy"
	"github.com/rackweave/rackweave/verbs"
)

// share is one job's part of one lane: the machine that decides, and what it decides about. Only the lane's goroutine touches it.
type share struct {
	*core
	name       string
	chunkBytes int
	linkNS     int64 // how long a broken connection may take to resume
	maps       bool  // results can be stored in the workers' memory directly
	machine    *reduce.Machine
	fate       *fate
	across     *across
	pace       *pace   // mode stream
	trace      *trace  // nil: off
	spare      *trace  // that Traced gives the lane next
	above      *above  // the job runs in several racks
	quorum     *quorum // racks may miss meetings; else nil
	byRack     *byRack // its workers are in several racks, and their gradients come here; else nil
	store      store
	results    results
	links      []*link // by rank; nil: not attached
	breaks     []chan Break
	left       []atomic.Bool // by rank
	wakeLanes  func()        // makes the job's lanes look at a barrier
	arrivals   arrivals
	replaced   *atomic.Bool
	handOver   func(index uint32, to int, a arrival) // a chunk to another of the job's lanes

	target   int64     // of the barrier that this lane waits at
	decision decision  // of the commit under way
	update   setUpdate // under way
	lookedAt int64     // ns, the last tick that counted
	listed   bool      // on the lane's busy list
	deferred uint64    // of the machine's, those that are counted
	inbox    inbox
	weight   uint64
	credit   int64 // bytes it may move now; negative: those it owes
	lent     bool  // a caller has borrowed it: the lane leaves it alone
	dead     bool  // it panicked: its state may be torn
}

// Break is a connection that waits for its worker to resume it.
type Break struct {
	Lane    int
	Attempt uint64 // what the worker's last [Resume] of the lane gave
}

// sent takes note that n messages to the worker have arrived.
func (s *share) sent(k *link, n int) {
	for range n {
		if result := k.Sent(); result != noResult {
			s.release(result)
		}
	}
	s.machine.Sent(k.rank, n)
}

func (s *share) release(result int32) {
	if s.results.release(result) {
		s.machine.Freed()
	}
}

// post rings a connection's doorbell.
func (s *share) post(k *link) {
	if err := k.Post(); err != nil {
		s.refused(k, err)
	}
}

// flush ends a connection's part of a round.
func (s *share) flush(k *link) {
	if err := k.Replenish(); err != nil {
		s.refused(k, err)
	}
	s.post(k)
}

// refused handles a queue pair that takes no work.
func (s *share) refused(k *link, err error) {
	switch {
	case k.State() != session.Up:
	case k.Refused():
		s.breakOff(k)
	default:
		s.lose(k, err)
	}
}

// failed handles a completion in error: the path to the worker is broken, or the worker is gone, or did what its keys forbid.
func (s *share) failed(k *link, status verbs.Status) {
	switch {
	case k.State() != session.Up:
	case k.Survives(status):
		s.breakOff(k)
	default:
		s.lose(k, errors.New(status.String()))
	}
}

// breakOff takes note that a connection's queue pair has failed: messages wait until the worker resumes it.
func (s *share) breakOff(k *link) {
	k.Break()
	s.local.Breaks++
	s.broken = true
	k.deadline = s.now() + s.linkNS
	s.tell(k)
}

// tell tells the worker that its connection broke, later where it has not yet heard of those before.
func (s *share) tell(k *link) {
	select {
	case s.breaks[k.rank] <- Break{s.lane, k.attempt}:
		k.untold = false
	default:
		k.untold = true
	}
}

// lose gives a worker up for lost.
func (s *share) lose(k *link, err error) {
	if k.peer {
		s.losePeer(k, err)
		return
	}
	s.leave(k)
	if s.left[k.rank].Load() {
		return
	}
	s.fate.lost(k.rank, fmt.Errorf("%w: worker %d: %w", ErrWorkerLost, k.rank, err))
}

// told reports whether all workers that can be reached have been told that the job has failed.
func (s *share) told() bool {
	if s.machine.State() != reduce.Ended {
		return false
	}
	for _, k := range s.links {
		if k != nil && k.State() == session.Up && k.Held() > 0 {
			return false
		}
	}
	return true
}

// leave lets go of a worker: from here on losing its connection fails nothing.
func (s *share) leave(k *link) {
	k.Close()
	s.machine.Leave(k.rank)
	// It has its answers, or wants none: what they hold is free, although it may never be known that they arrived.
	for i := range k.Held() {
		if result := k.Forget(i); result != noResult {
			s.release(result)
		}
	}
}

// put appends a message to a worker. It holds a result buffer until it has arrived.
func (s *share) put(k *link, imm uint32, result int32) *verbs.SendWR {
	if result != noResult {
		s.results.hold(result)
	}
	s.touch(k)
	return k.Put(imm, result)
}

// losePeer gives another rack's aggregator up for lost.
func (s *share) losePeer(k *link, err error) {
	k.Close()
	if !s.above.left[k.rank] {
		s.fate.fail(noRank, fmt.Errorf("%w: %s, by %s: %w", ErrPeerLost, s.above.name(k.rank), s.above.name(s.above.cfg.Rack), err))
	}
}

func (s *share) peerViolates(k *link, format string, args ...any) {
	s.local.Dropped++
	s.fate.fail(noRank, fmt.Errorf("%w: %s %w", hierarchy.ErrProtocol, s.above.name(k.rank), fmt.Errorf(format, args...)))
}

// meetLanes tells the job's other lanes that this one has come to their next barrier.
func (s *share) meetLanes() {
	var all bool
	if s.target, all = s.across.meet(); all {
		s.wakeLanes()
	}
}

// owns reports whether a chunk's optimizer runs in this rack.
func (s *share) owns(c *storedChunk) bool { return s.above == nil || int(c.owner) == s.above.cfg.Rack }
