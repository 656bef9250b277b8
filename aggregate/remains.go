package aggregate

import (
	"errors"
	"fmt"
	"math"
	"unsafe"

	"github.com/rackweave/rackweave/numa"
)

// ErrNotKept is what the errors of [Remains] wrap whose state is not there.
var ErrNotKept = errors.New("the state is not kept")

// Remains is what a rack still has of a job that has ended: the state of its own chunks and of those of the rack whose buddy it is,
// as they were after their last change and before it. Its methods may run side by side, but for Close.
type Remains struct {
	arenas []*numa.Arena
	states int
	chunks []*keptChunk // by number in the plan; nil: it is kept elsewhere
}

// keptChunk is a chunk of them.
type keptChunk struct {
	history
	addr    uint64
	owner   int
	tensor  int // in the plan
	elems   uint32
	updates uint32
}

// CloseKeeping ends the job as [Job.Close] does, and keeps the state that owners and buddies have in this rack. It returns nil if
// owners have no buddies, or no state is whole: none was broadcast or restored, its replacement was cut off, or a lane panicked.
func (j *Job) CloseKeeping() (*Remains, error) {
	if j.above == nil || !j.above.Buddies || !j.shut() {
		return nil, j.Close()
	}
	err := j.end()
	r := j.gatherKept()
	if r == nil || err != nil {
		return nil, errors.Join(err, j.memory.close())
	}
	r.arenas = j.memory.keep()
	if err := j.memory.close(); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

// gatherKept lists the chunks that are kept; nil: some are not as they should be. The lanes have let go of the job.
func (j *Job) gatherKept() *Remains {
	r := &Remains{states: j.shares[0].store.states}
	if j.replaced.Load() {
		return nil
	}
	for _, s := range j.shares {
		if s.dead {
			return nil
		}
		for i := range s.store.chunks {
			c := &s.store.chunks[i]
			for int(c.number) >= len(r.chunks) {
				r.chunks = append(r.chunks, nil)
			}
			if c.history == nil {
				continue
			}
			r.chunks[c.number] = &keptChunk{history: *c.history, addr: c.addr, owner: int(c.owner), elems: c.elems,
				tensor: s.store.tensors[c.tensor].number, updates: c.updates}
		}
	}
	for _, c := range r.chunks {
		if c != nil && c.changes > 0 {
			return r
		}
	}
	return nil
}

// Range returns the least and the most changes of an owner's chunks that are kept; kept: there are some. The state of all chunks
// after so many changes is that of one step.
func (r *Remains) Range(owner int) (least, most uint32, kept bool) {
	least = math.MaxUint32
	for _, c := range r.chunks {
		if c != nil && c.owner == owner {
			least, most, kept = min(least, c.changes), max(most, c.changes), true
		}
	}
	return least, most, kept
}

// WholeStep returns how many optimizer steps all chunks had had at least.
func (r *Remains) WholeStep() uint32 {
	least := uint32(math.MaxUint32)
	for _, c := range r.chunks {
		if c != nil {
			least = min(least, c.updates)
		}
	}
	return least
}

// Read copies pieces of the chunks that are kept of one of the owners, as they were after so many changes, and reports by piece
// which those are.
func (r *Remains) Read(changes uint32, owners []bool, pieces []Piece) (read []bool, err error) {
	read = make([]bool, len(pieces))
	for i := range pieces {
		p := &pieces[i]
		c := r.of(owners, p.Chunk)
		if c == nil {
			continue
		}
		if p.Array < 0 || p.Array > r.states || len(p.Data) != int(c.elems) {
			return nil, fmt.Errorf("%w: array %d of chunk %d with %d elements: there are %d of %d", ErrNotKept, p.Array, p.Chunk, len(p.Data),
				1+r.states, c.elems)
		}
		array := p.Array
		if back, err := c.back(changes); err != nil {
			return nil, fmt.Errorf("chunk %d: %w", p.Chunk, err)
		} else if back {
			array += 1 + r.states
		}
		at := c.addr + uint64(array)*stride(c.elems)
		copy(p.Data, unsafe.Slice((*float32)(address(at)), c.elems))
		read[i] = true
	}
	return read, nil
}

// of returns a chunk that is kept of one of the owners, or nil.
func (r *Remains) of(owners []bool, id int) *keptChunk {
	if id >= len(r.chunks) || r.chunks[id] == nil || r.chunks[id].owner >= len(owners) || !owners[r.chunks[id].owner] {
		return nil
	}
	return r.chunks[id]
}

// back reports whether the state after so many changes is that from before the last.
func (c *keptChunk) back(changes uint32) (bool, error) {
	switch {
	case c.changes == changes:
		return false, nil
	case c.changes == changes+1 && c.undo:
		return true, nil
	}
	return false, fmt.Errorf("%w after %d changes, it has had %d", ErrNotKept, changes, c.changes)
}

// Updates returns how many optimizer steps each tensor had had after so many changes, by its number in the plan, or [NoUpdates]
// where no chunk of it is kept of one of the owners.
func (r *Remains) Updates(changes uint32, owners []bool, tensors int) ([]uint32, error) {
	out := make([]uint32, tensors)
	for t := range out {
		out[t] = NoUpdates
	}
	for id := range r.chunks {
		c := r.of(owners, id)
		if c == nil {
			continue
		}
		n := c.updates
		if back, err := c.back(changes); err != nil {
			return nil, fmt.Errorf("chunk %d: %w", id, err)
		} else if back {
			n = c.before
		}
		if c.tensor >= tensors {
			return nil, fmt.Errorf("%w: it has tensor %d, of %d", ErrNotKept, c.tensor, tensors)
		}
		if was := out[c.tensor]; was != NoUpdates && was != n {
			return nil, fmt.Errorf("%w: tensor %d had %d updates in one chunk and %d in another", ErrNotKept, c.tensor, was, n)
		}
		out[c.tensor] = n
	}
	return out, nil
}

// Bytes is how much memory is held.
func (r *Remains) Bytes() (n int64) {
	for _, a := range r.arenas {
		n += int64(a.Len())
	}
	return n
}

// Close frees it. No other call may be under way, and none may follow.
func (r *Remains) Close() (err error) {
	for _, a := range r.arenas {
		err = errors.Join(err, a.Close())
	}
	r.arenas, r.chunks = nil, nil
	return err
}
