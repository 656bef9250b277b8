package aggregate

import (
	"errors"
	"fmt"
	"math"

	"github.com/rackweave/rackweave/aggregate/store"
	"github.com/rackweave/rackweave/numa"
)

// ErrNotRetained is wrapped by the errors of a [Retained] that does not have the state.
var ErrNotRetained = errors.New("the state is not retained")

// Retained is the state that a rack retains of a job after its end: the state of the rack's own chunks and of the chunks that it
// has as a buddy, each after its last change and before it. Its methods except Close are safe for concurrent use.
type Retained struct {
	arenas []*numa.Arena
	states int
	chunks []*retainedChunk // by number in the plan; nil where another rack has the chunk
}

// retainedChunk is a chunk whose state is retained.
type retainedChunk struct {
	store.Chunk
	tensor int // in the plan
}

// CloseRetaining ends the job as [Job.Close] does, and keeps the state that owners and buddies have in this rack. It returns nil if
// owners do not have buddies, or if the state is not whole: nothing was broadcast or restored, its replacement was cut off, or a
// lane panicked.
func (j *Job) CloseRetaining() (*Retained, error) {
	if j.place == nil || !j.place.Buddies || !j.shut() {
		return nil, j.Close()
	}
	err := j.end()
	r := j.gatherRetained()
	if r == nil || err != nil {
		return nil, errors.Join(err, j.memory.Close())
	}
	r.arenas = j.memory.Keep()
	if err := j.memory.Close(); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

// gatherRetained lists the retained chunks, or returns nil if some of them are not whole. The lanes have released the job.
func (j *Job) gatherRetained() *Retained {
	r := &Retained{states: j.shards[0].Store.States}
	if j.replacing.Load() {
		return nil
	}
	for _, s := range j.shards {
		if s.Flow.Dead() {
			return nil
		}
		for i := range s.Store.Chunks {
			c := &s.Store.Chunks[i]
			for int(c.Number) >= len(r.chunks) {
				r.chunks = append(r.chunks, nil)
			}
			if c.History == nil {
				continue
			}
			r.chunks[c.Number] = &retainedChunk{*c, s.Store.Tensors[c.Tensor].Number}
		}
	}
	for _, c := range r.chunks {
		if c != nil && c.History.Changes > 0 {
			return r
		}
	}
	return nil
}

// Range returns the least and the most changes of the retained chunks of an owner. ok is false if it has none. The states of all
// chunks after equally many changes are those of one step.
func (r *Retained) Range(owner int) (least, most uint32, ok bool) {
	least = math.MaxUint32
	for _, c := range r.chunks {
		if c != nil && int(c.Owner) == owner {
			least, most, ok = min(least, c.History.Changes), max(most, c.History.Changes), true
		}
	}
	return least, most, ok
}

// WholeStep returns the number of optimizer steps that all chunks have had.
func (r *Retained) WholeStep() uint32 {
	least := uint32(math.MaxUint32)
	for _, c := range r.chunks {
		if c != nil {
			least = min(least, c.Updates)
		}
	}
	return least
}

// of returns a chunk of one of the owners as it was after so many changes, with the number of its first array and its optimizer
// steps then. It returns nil if the chunk is retained elsewhere.
func (r *Retained) of(owners []bool, id int, changes uint32) (c *retainedChunk, first int, updates uint32, err error) {
	if id >= len(r.chunks) || r.chunks[id] == nil || int(r.chunks[id].Owner) >= len(owners) || !owners[r.chunks[id].Owner] {
		return nil, 0, 0, nil
	}
	c = r.chunks[id]
	switch h := c.History; {
	case h.Changes == changes:
		return c, 0, c.Updates, nil
	case h.Changes == changes+1 && h.Undo:
		return c, 1 + r.states, h.Before, nil
	}
	return nil, 0, 0, fmt.Errorf("chunk %d: %w after %d changes, it has had %d", id, ErrNotRetained, changes, c.History.Changes)
}

// Read copies pieces of the retained chunks of the owners, as the chunks were after so many changes. It reports which pieces it has
// copied.
func (r *Retained) Read(changes uint32, owners []bool, pieces []Piece) (read []bool, err error) {
	read = make([]bool, len(pieces))
	for i := range pieces {
		p := &pieces[i]
		c, first, _, err := r.of(owners, p.Chunk, changes)
		if err != nil {
			return nil, err
		}
		if c == nil {
			continue
		}
		if p.Array < 0 || p.Array > r.states || len(p.Data) != int(c.Elems) {
			return nil, fmt.Errorf("%w: array %d of chunk %d with %d elements: there are %d of %d", ErrNotRetained, p.Array, p.Chunk,
				len(p.Data), 1+r.states, c.Elems)
		}
		copy(p.Data, store.Floats(c.Addr+uint64(first+p.Array)*store.Stride(c.Elems), c.Elems))
		read[i] = true
	}
	return read, nil
}

// Updates returns the number of optimizer steps of each tensor after so many changes, by the tensor's number in the plan. It is
// [NoUpdates] for a tensor without a retained chunk of the owners.
func (r *Retained) Updates(changes uint32, owners []bool, tensors int) ([]uint32, error) {
	out := make([]uint32, tensors)
	for t := range out {
		out[t] = NoUpdates
	}
	for id := range r.chunks {
		c, _, n, err := r.of(owners, id, changes)
		if err != nil {
			return nil, err
		}
		if c == nil {
			continue
		}
		if c.tensor >= tensors {
			return nil, fmt.Errorf("%w: it has tensor %d, of %d", ErrNotRetained, c.tensor, tensors)
		}
		if was := out[c.tensor]; was != NoUpdates && was != n {
			return nil, fmt.Errorf("%w: tensor %d had %d updates in one chunk and %d in another", ErrNotRetained, c.tensor, was, n)
		}
		out[c.tensor] = n
	}
	return out, nil
}

// Bytes returns the size of the memory that is held.
func (r *Retained) Bytes() (n int64) {
	for _, a := range r.arenas {
		n += int64(a.Len())
	}
	return n
}

// Close frees the memory. Other calls must have returned, and none may follow.
func (r *Retained) Close() (err error) {
	for _, a := range r.arenas {
		err = errors.Join(err, a.Close())
	}
	r.arenas, r.chunks = nil, nil
	return err
}
