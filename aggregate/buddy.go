package aggregate

import (
	"errors"

	"github.com/rackweave/rackweave/cgo/kernel"
	"github.com/rackweave/rackweave/hierarchy"
)

// checkBuddies reports what of a job cannot have buddies.
func checkBuddies(c *JobConfig) error {
	switch {
	case !c.Above.Buddies:
		return nil
	case c.Mode != Eager:
		return errors.New("buddies keep the state of mode eager: use that mode, or a cluster without buddies")
	case c.Outer != hierarchy.Outer{}:
		return errors.New("buddies keep the state of racks that meet in every step: use outer none, or a cluster without buddies")
	}
	return nil
}

// mirrored reports whether this rack keeps a chunk as the owner's buddy.
func (s *share) mirrored(c *storedChunk) bool { return c.history != nil && !s.owns(c) }

// remember keeps a chunk's state from before its next change.
func (s *share) remember(c *storedChunk) {
	h := c.history
	if h == nil {
		return
	}
	arrays := 1 + s.store.states
	for i := range arrays {
		copy(s.store.values(c, arrays+i), s.store.values(c, i))
	}
	h.before, h.undo = c.updates, true
	h.changes++
	if s.replaced.Load() {
		s.replaced.Store(false)
	}
}

// gradient adds up what a chunk's owner has gathered, for its buddy to make the same update.
func (s *share) gradient(index uint32, c *storedChunk, in []uint64) []uint64 {
	a := s.above
	a.one[0] = a.sums.gradient(a.buffer[index])
	kernel.SumTo(s.isa, a.one[:], kernel.F32, in, a.cfg.core(), uint64(c.elems), false, false)
	return a.one[:]
}

// mirror makes the update that the chunk's owner has made, with the sum that came as the answer, and its result.
func (s *share) mirror(index uint32, c *storedChunk) {
	a := s.above
	s.remember(c)
	a.src = append(a.src[:0], a.sums.gradient(a.buffer[index]))
	a.one[0] = a.sums.result(a.buffer[index])
	s.step(&s.store, c, a.src, kernel.F32, a.one[:], false)
}

// answerTo is where the answer to this rack's sum of a chunk goes: the result, or, to the owner's buddy, the sum of all racks.
func (s *share) answerTo(c *storedChunk, buffer int32, broadcast bool) uint64 {
	if !broadcast && s.mirrored(c) {
		return s.above.sums.gradient(buffer)
	}
	return s.above.sums.result(buffer)
}
