package store

import (
	"errors"
	"fmt"
	"unsafe"

	"github.com/rackweave/rackweave/cgo/kernel"
	"github.com/rackweave/rackweave/chunk"
)

var (
	// ErrPassed is wrapped by the error of a capture of a step that some chunk has left behind.
	ErrPassed = errors.New("the step has passed")
	// ErrReplaced is the error of a capture during which the job's state was restored.
	ErrReplaced = errors.New("the parameters were replaced meanwhile")
)

// Capture copies the parameters of a lane's chunks as they are after one step of each, and holds no chunk up. The lane's goroutine
// alone uses it from [Store.Arm] until it has ended.
type Capture struct {
	Values []float32 // of all the lane's chunks, in their order; outside Go's memory

	plan    *chunk.Plan
	isa     kernel.ISA
	step    uint32
	ended   func(error)
	offsets []uint64 // by chunk of the lane: of its copy, in elements
	taken   []bool   // by chunk of the lane
	left    int      // chunks that are not copied
}

// NewCapture lays out a capture of the chunks that a plan, to which nothing is added, has in a lane. Values needs room for so many
// elements. Once all chunks are copied, or cannot be, the lane calls ended.
func NewCapture(plan *chunk.Plan, lane int, isa kernel.ISA, ended func(error)) (c *Capture, elems uint64) {
	ids := plan.LaneChunks(lane)
	c = &Capture{plan: plan, isa: isa, ended: ended, offsets: make([]uint64, len(ids)), taken: make([]bool, len(ids))}
	for i, id := range ids {
		c.offsets[i] = elems
		elems += uint64(plan.Chunk(int(id)).Elems)
	}
	return c, elems
}

// Of returns the copy of a chunk, by its index in the lane.
func (p *Capture) Of(index int) []float32 {
	end := uint64(len(p.Values))
	if index+1 < len(p.offsets) {
		end = p.offsets[index+1]
	}
	return p.Values[p.offsets[index]:end]
}

// Behind returns the number of chunks that are not copied, and the one of them with the fewest updates.
func (p *Capture) Behind(s *Store) (left int, least *Chunk) {
	for i, taken := range p.taken {
		if c := &s.Chunks[i]; !taken && (least == nil || c.Updates < least.Updates) {
			least = c
		}
	}
	return p.left, least
}

// Arm begins a capture, anew if it was used: from now on each of its chunks is copied once it has had the step. [Store.Look] finds
// chunks that have had it already.
func (s *Store) Arm(p *Capture, step uint32) {
	clear(p.taken)
	p.step, p.left = step, len(p.taken)
	s.capture = p
	if p.left == 0 {
		p.end(s, nil)
	}
}

// Disarm ends a capture before its time, if it is under way.
func (s *Store) Disarm(p *Capture) {
	if s.capture == p {
		s.capture = nil
	}
}

// Look finds out whether a chunk of a capture that has just begun has had its step already. Some rows of a sparse tensor may have
// had the next one, too.
func (s *Store) Look(c *Chunk) {
	p := s.capture
	if p != nil && c.Updates == p.step && s.Tensors[c.Tensor].Rows != nil {
		p.end(s, p.passed(s, c))
	}
	s.Updated(c)
}

// Updated tells the capture under way, if there is one, that a chunk has had an update.
func (s *Store) Updated(c *Chunk) {
	if s.capture != nil {
		s.capture.take(s, c)
	}
}

// Overwritten ends the capture under way, if there is one, because a restore replaces parameters and the count of updates.
func (s *Store) Overwritten() {
	if s.capture != nil {
		s.capture.end(s, ErrReplaced)
	}
}

// take copies a chunk that has had the step. An update has two parts for rules with norms, and where racks that train apart meet.
func (p *Capture) take(s *Store, c *Chunk) {
	if int(c.Number) >= p.plan.NumChunks() {
		return
	}
	index := p.plan.Chunk(int(c.Number)).LaneIndex
	switch {
	case p.taken[index] || c.Updates < p.step || c.Stepped || c.Dirty && s.Rule.NeedsNorms():
	case c.Updates > p.step:
		p.end(s, p.passed(s, c))
	default:
		to := uint64(uintptr(unsafe.Pointer(unsafe.SliceData(p.Of(index)))))
		kernel.Convert(p.isa, to, kernel.F32, c.Addr, kernel.F32, uint64(c.Elems), true) // past the cache: nothing here reads it
		p.taken[index] = true
		if p.left--; p.left == 0 {
			p.end(s, nil)
		}
	}
}

func (p *Capture) passed(s *Store, c *Chunk) error {
	return fmt.Errorf("%w: tensor %q has had %d updates, and the capture is of step %d", ErrPassed, s.Tensors[c.Tensor].Name, c.Updates,
		p.step)
}

func (p *Capture) end(s *Store, err error) {
	s.capture = nil
	p.ended(err)
}
