package checkpoint

import (
	"bytes"
	"cmp"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"

	"github.com/rackweave/rackweave/aggregate"
	"github.com/rackweave/rackweave/service/api"
	"github.com/rackweave/rackweave/service/job"
	"github.com/rackweave/rackweave/service/rpc"
)

// Store holds the checkpoints on an aggregator's disk and the states of failed jobs in its memory.
type Store struct {
	dir     string // If empty, the aggregator has no checkpoints.
	log     *slog.Logger
	refused func(reason string)  // counts a refusal
	Racks   func(*job.Job) Racks // returns the racks of a job
	closing <-chan struct{}      // closed when the service ends

	mu       sync.Mutex
	retained map[job.Tenant]*retained
}

// NewStore returns a store of checkpoints in a directory, without states of failed jobs.
func NewStore(dir string, log *slog.Logger, refused func(string), racks func(*job.Job) Racks, closing <-chan struct{}) *Store {
	return &Store{dir: dir, log: log, refused: refused, Racks: racks, closing: closing, retained: map[job.Tenant]*retained{}}
}

// Of returns a job's state.
func (st *Store) Of(j *job.Job) *State {
	return &State{local: local{j}, store: st, others: st.Racks(j)}
}

// DropAll drops all states of failed jobs.
func (st *Store) DropAll() {
	for st.DropOldest(job.Tenant{}) {
	}
}

// State saves, restores, reads and writes a job's parameters and optimizer state.
type State struct {
	local
	store  *Store
	others Racks
}

// Status describes the states of failed jobs that the caller may know of.
func (st *Store) Status(mayKnow func(job.Tenant) bool) (out []*api.JobStatus) {
	st.mu.Lock()
	all := slices.DeleteFunc(slices.Collect(maps.Values(st.retained)), func(k *retained) bool { return !mayKnow(k.Tenant) })
	st.mu.Unlock()
	slices.SortFunc(all, func(a, b *retained) int { return cmp.Compare(a.Job, b.Job) })
	for _, k := range all {
		out = append(out, k.status())
	}
	return out
}

// local is this aggregator's part of a job's model: all of it, unless the job is spread over several aggregators.
type local struct{ *job.Job }

// spread reports whether other aggregators have parts of the job.
func (l local) spread() bool { return l.Spec.Parts > 1 }

// owns reports whether this aggregator has a chunk.
func (l local) owns(chunk int) bool {
	return !l.spread() || l.Model.Plan.Chunk(chunk).Lane/len(l.Lanes) == l.Spec.Part
}

// ownElems returns the number of a tensor's elements that this aggregator has, in so many chunks.
func (l local) ownElems(tensor int) (elems uint64, chunks int) {
	first, end := l.Model.Plan.TensorChunks(tensor)
	for id := first; id < end; id++ {
		if l.owns(id) {
			elems += uint64(l.Model.Plan.Chunk(id).Elems)
			chunks++
		}
	}
	return elems, chunks
}

// ownPart returns this aggregator's part of a checkpoint. It refuses parts of different checkpoints or of another job.
func (l local) ownPart(name string, m *api.CheckpointManifest) (*api.CheckpointPart, error) {
	parts := m.GetParts()
	if !l.spread() {
		return nil, fmt.Errorf("%w: it is in parts, and the job is at one aggregator", errMismatch)
	}
	if len(parts) == 0 {
		return nil, fmt.Errorf("%w: it has no parts, because a job at one aggregator saved it, and the job is spread over %d", errMismatch,
			l.Spec.Parts)
	}
	var chunks uint64
	var first *api.CheckpointPart // that has chunks
	for i, p := range parts {
		switch {
		case len(parts) != l.Spec.Parts || int(p.Parts) != l.Spec.Parts:
			return nil, fmt.Errorf("%w: it is in %d parts, and the job is spread over %d aggregators: use as many", errMismatch,
				max(len(parts), int(p.Parts)), l.Spec.Parts)
		case int(p.Part) != i || !partFiles(name, fmt.Sprint(i+1)).MatchString(p.File):
			return nil, fmt.Errorf("%w: part %d is missing, there is part %d in %q", errMismatch, i+1, p.Part+1,
				rpc.Printable(p.File, rpc.MaxNameBytes))
		case first != nil && p.Chunks > 0 && p.Step != first.Step:
			return nil, fmt.Errorf("%w: part %d is of step %d and part %d of step %d: let every worker wait at a barrier before and after",
				errMismatch, first.Part+1, first.Step, i+1, p.Step)
		case first == nil && p.Chunks > 0:
			first = p
		}
		chunks += p.Chunks
	}
	if want := uint64(l.Model.Plan.NumChunks()); chunks != want {
		return nil, fmt.Errorf("%w: its parts have %d chunks, and the job has %d: use the aggregators, the lanes and the chunk size of the job that saved it",
			errMismatch, chunks, want)
	}
	return parts[l.Spec.Part], nil
}

// fitsPart checks that a file holds this aggregator's part of the job.
func (l local) fitsPart(h *api.CheckpointHeader) error {
	switch hash := l.Model.Plan.Hash(); {
	case !l.spread() && h.Parts == 0:
		return nil
	case h.Parts != uint32(max(l.Spec.Parts, 0)) || h.Part != uint32(l.Spec.Part):
		return fmt.Errorf("%w: it is part %d of %d, and this aggregator has part %d of %d", errMismatch, h.Part+1, max(h.Parts, 1),
			l.Spec.Part+1, max(l.Spec.Parts, 1))
	case !bytes.Equal(h.Plan, hash[:]):
		return fmt.Errorf("%w: the job that saved it places chunks differently: use its tensors, chunk size and lanes", errMismatch)
	}
	return nil
}

// order returns the numbers of the job's tensors.
func (l local) order() []int {
	order := make([]int, l.Model.Plan.NumTensors())
	for i := range order {
		order[i] = i
	}
	return order
}

// eachBatch walks through this aggregator's part of the tensors in the order of a checkpoint, array by array and chunk by chunk,
// one batch at a time. data holds the batch's elements, and pieces describes them.
func (l local) eachBatch(order []int, arrays int, f func(pieces []aggregate.Piece, data []float32) error) error {
	plan := l.Model.Plan
	buf := make([]float32, l.mostElems())
	pieces := make([]aggregate.Piece, 0, batchPieces)
	n := 0
	flush := func() error {
		if n == 0 {
			return nil
		}
		err := f(pieces, buf[:n])
		pieces, n = pieces[:0], 0
		return err
	}
	for _, t := range order {
		first, end := plan.TensorChunks(t)
		for array := range arrays {
			for id := first; id < end; id++ {
				if !l.owns(id) {
					continue
				}
				elems := plan.Chunk(id).Elems
				if n+elems > len(buf) || len(pieces) == batchPieces {
					if err := flush(); err != nil {
						return err
					}
				}
				pieces = append(pieces, aggregate.Piece{Chunk: id, Array: array, Data: buf[n : n+elems]})
				n += elems
			}
		}
	}
	return flush()
}

// mostElems returns the number of elements of the state that pass at once.
func (l local) mostElems() int { return max(batchElems, l.Model.Plan.ChunkBytes()/2) }

// pieces returns the pieces that a question names, with room for their values.
func (l local) pieces(q *api.StateQuestion, arrays int) (pieces []aggregate.Piece, data []float32, err error) {
	if len(q.Chunks) != len(q.Arrays) || len(q.Chunks) > batchPieces {
		return nil, nil, fmt.Errorf("%d chunks and %d arrays: %w", len(q.Chunks), len(q.Arrays), rpc.ErrVersions)
	}
	n := 0
	for i, id := range q.Chunks {
		if int64(id) >= int64(l.Model.Plan.NumChunks()) || int64(q.Arrays[i]) >= int64(arrays) {
			return nil, nil, fmt.Errorf("array %d of chunk %d, there are %d of %d: %w", q.Arrays[i], id, arrays, l.Model.Plan.NumChunks(),
				rpc.ErrVersions)
		}
		n += l.Model.Plan.Chunk(int(id)).Elems
	}
	if most := l.mostElems(); n > most {
		return nil, nil, fmt.Errorf("%d elements: at most %d are asked for at once: %w", n, most, rpc.ErrVersions)
	}
	data = make([]float32, n)
	rest := data
	for i, id := range q.Chunks {
		elems := l.Model.Plan.Chunk(int(id)).Elems
		pieces = append(pieces, aggregate.Piece{Chunk: int(id), Array: int(q.Arrays[i]), Data: rest[:elems]})
		rest = rest[elems:]
	}
	return pieces, data, nil
}
