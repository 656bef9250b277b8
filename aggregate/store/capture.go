package store

import (
	"errors"

	"github.com/rackweave/rackweave/cgo/kernel"
)

// ErrReplaced is the error of a capture during which the job's state was restored.
var ErrReplaced = errors.New("the parameters were replaced meanwhile")

// Capture copies the parameters of a lane's chunks as they are after one step of each, and holds no chunk up.
type Capture struct {
	Step  uint32
	ISA   kernel.ISA
	Ended chan<- error // with room: receives nil once all chunks are copied, or why they cannot be

	left int // chunks that are not copied
}

// Arm begins to capture the lane's first n chunks, and replaces the capture under way. No chunk may have had the step. The copies
// lie one after the other at an address.
func (s *Store) Arm(p *Capture, n int, to uint64) {
	for i := range s.Chunks[:n] {
		s.Chunks[i].Copy = to
		to += 4 * uint64(s.Chunks[i].Elems)
	}
	p.left, s.capture = n, p
	if n == 0 {
		s.end(nil)
	}
}

// Disarm ends a capture if it is under way.
func (s *Store) Disarm(p *Capture) {
	if s.capture == p {
		s.capture = nil
	}
}

// Updated copies a chunk, which has had an update, for the capture under way, if it has had the step. An update has two parts for
// rules with norms, and where racks that train apart meet.
func (s *Store) Updated(c *Chunk) {
	p := s.capture
	if p == nil || c.Copy == 0 || c.Updates < p.Step || c.Stepped || c.Dirty && s.Rule.NeedsNorms() {
		return
	}
	kernel.Convert(p.ISA, c.Copy, kernel.F32, c.Addr, kernel.F32, uint64(c.Elems), true) // past the cache: nothing here reads it
	c.Copy = 0
	if p.left--; p.left == 0 {
		s.end(nil)
	}
}

// Overwritten ends the capture under way, if there is one, because a restore replaces parameters and the count of updates.
func (s *Store) Overwritten() {
	if s.capture != nil {
		s.end(ErrReplaced)
	}
}

func (s *Store) end(err error) {
	s.capture.Ended <- err
	s.capture = nil
}
