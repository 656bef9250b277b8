package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"

	"connectrpc.com/connect"

	"github.com/rackweave/rackweave/aggregate"
	"github.com/rackweave/rackweave/service/api"
	"github.com/rackweave/rackweave/service/checkpoint/format"
	"github.com/rackweave/rackweave/service/job"
	"github.com/rackweave/rackweave/service/quota"
	"github.com/rackweave/rackweave/service/rpc"
)

// Store holds the checkpoints on an aggregator's disk and the states of failed jobs in its memory.
type Store struct {
	dir   string // If empty, the aggregator has no checkpoints.
	log   *slog.Logger
	Racks func(*job.Job) Racks // returns the racks of a job
	Data  Progress

	mu       sync.Mutex
	retained map[job.Tenant]*retained
}

// Progress keeps the places that jobs have reached in their training sets. Checkpoints hold them beside the model.
type Progress interface {
	// States returns the progress of a job's sets.
	States(j *job.Job) ([]*api.DataState, error)
	// Restore lets a job's sets go on from states. Sets without one begin.
	Restore(j *job.Job, states []*api.DataState) error
}

// NewStore returns a store of checkpoints in a directory, without states of failed jobs.
func NewStore(dir string, log *slog.Logger, racks func(*job.Job) Racks, data Progress) *Store {
	return &Store{dir: dir, log: log, Racks: racks, Data: data, retained: map[job.Tenant]*retained{}}
}

// Of returns a job's state.
func (st *Store) Of(j *job.Job) *State {
	return &State{local: local{j}, store: st, others: st.Racks(j)}
}

// State saves, restores, reads and writes a job's parameters and optimizer state.
type State struct {
	local
	store  *Store
	others Racks
}

// local is this aggregator's part of a job's model: all of it, unless the job is spread over several aggregators.
type local struct{ *job.Job }

// spread reports whether other aggregators have parts of the job.
func (l local) spread() bool { return l.Spec.Parts > 1 }

// owns reports whether this aggregator has a chunk.
func (l local) owns(chunk int) bool {
	return !l.spread() || l.Model.Plan.Chunk(chunk).Lane/len(l.Lanes) == l.Spec.Part
}

// ownElems returns the number of a tensor's elements that this aggregator has.
func (l local) ownElems(tensor int) (elems uint64) {
	first, end := l.Model.Plan.TensorChunks(tensor)
	for id := first; id < end; id++ {
		if l.owns(id) {
			elems += uint64(l.Model.Plan.Chunk(id).Elems)
		}
	}
	return elems
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

// Racks asks the racks of a job about its state.
type Racks interface {
	// Own returns the place of this rack.
	Own() int
	// Names returns the names of all racks.
	Names() []string
	// Buddies reports whether racks of the cluster keep each other's state.
	Buddies() bool
	// Run identifies the run in the first rack.
	Run() string
	// Ask puts questions to all other racks at once, and returns the answers by rack. It asks a rack nothing if about returns nil.
	Ask(ctx context.Context, about func(rack int) *api.StateQuestion) ([][]byte, error)
	// Replace lets the racks that are asked replace what the questions name by a payload. It reports whether some may have done so.
	Replace(ctx context.Context, about func(rack int) *api.StateQuestion, payload func() []byte) (some bool, err error)
}

// OneRack is the racks of a job whose state is all here.
type OneRack struct{}

func (OneRack) Own() int { return 0 }

func (OneRack) Replace(context.Context, func(int) *api.StateQuestion, func() []byte) (bool, error) {
	return false, nil
}

// batchElems is the number of elements that pass between engine and file at once, and batchPieces the largest number of arrays of
// chunks that hold them. A larger chunk is a batch of its own.
const (
	batchElems  = 256 << 10
	batchPieces = 1024
)

// checkpointSuffix ends the names of checkpoint files, DIR/JOB/NAME.rwck.
const checkpointSuffix = ".rwck"

var (
	errMismatch   = errors.New("the checkpoint is of another model")
	errOtherRacks = errors.New("the checkpoint is of other racks")
)

func checkpointCode(err error) connect.Code {
	switch {
	case errors.Is(err, quota.ErrExceeded):
		return connect.CodeResourceExhausted
	case errors.Is(err, aggregate.ErrNotQuiet), errors.Is(err, aggregate.ErrNoSnapshot), errors.Is(err, errMismatch),
		errors.Is(err, errOtherRacks):
		return connect.CodeFailedPrecondition
	case errors.Is(err, os.ErrNotExist), errors.Is(err, errNotRetained), errors.Is(err, aggregate.ErrNotRetained):
		return connect.CodeNotFound
	case errors.Is(err, format.ErrCorrupt):
		return connect.CodeDataLoss
	case errors.Is(err, context.DeadlineExceeded):
		return connect.CodeDeadlineExceeded
	}
	return connect.CodeInternal
}

// errNotRetained is wrapped by the errors of a state that cannot be restored.
var errNotRetained = errors.New("the state is not retained")
