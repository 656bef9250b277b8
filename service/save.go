package service

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"connectrpc.com/connect"
	"github.com/google/renameio/v2"

	"github.com/rackweave/rackweave/aggregate"
	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/service/api"
	"github.com/rackweave/rackweave/service/checkpoint"
	"github.com/rackweave/rackweave/service/quota"
)

// batchElems is the number of elements that pass between engine and file at once, and batchPieces the most arrays of chunks that
// hold them. A larger chunk is a batch of its own.
const (
	batchElems  = 256 << 10
	batchPieces = 1024
)

// carriedElems is what passes at once where a worker carries it: its requests are charged to the job with many times their length.
const carriedElems = 32 << 10

// batch is the number of elements that pass at once.
func (m *modelState) batch() int {
	if m.others != nil && !m.others.replicated() {
		return carriedElems
	}
	return batchElems
}

// checkpointSuffix ends the names of checkpoint files, DIR/JOB/NAME.rwck.
const checkpointSuffix = ".rwck"

// Save implements the schema's Save.
func (s *Service) Save(ctx context.Context, r *api.SaveRequest) (*api.SaveResponse, error) {
	out := &api.SaveResponse{}
	err := s.quietly(ctx, "save", r, func(ctx context.Context, j *job, others elsewhere, path string) error {
		n, err := j.save(ctx, others, path)
		out.Path, out.Bytes = path, uint64(n)
		return err
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// Restore implements the schema's Restore.
func (s *Service) Restore(ctx context.Context, r *api.RestoreRequest) (*api.RestoreResponse, error) {
	out := &api.RestoreResponse{}
	err := s.quietly(ctx, "restore", r, func(ctx context.Context, j *job, others elsewhere, path string) (err error) {
		var n int64
		if path == "" {
			n, err = j.restoreKept(ctx, others)
		} else {
			n, err = j.restore(ctx, others, path)
		}
		if out.Path, out.Bytes = path, uint64(n); err == nil {
			out.Step = *j.restored.Load()
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// checkpointCall is what the calls for checkpoints have in common.
type checkpointCall interface {
	GetName() string
	GetTimeoutMs() uint32
	GetCarry() string
}

// quietly runs f for a member's checkpoint while nothing else uses the job's tensors, and gives its error a code. What racks keep
// of each other has no path.
func (s *Service) quietly(ctx context.Context, what string, r checkpointCall,
	f func(context.Context, *job, elsewhere, string) error) error {
	m, err := s.active(ctx)
	if err != nil {
		return err
	}
	name := r.GetName()
	inMemory := name == api.BuddyName
	switch {
	case inMemory && what == "save":
		return refuse(connect.CodeInvalidArgument, "save %q: that is the name of what racks keep of each other: use another", name)
	case !inMemory && s.opts.CheckpointDir == "":
		return refuse(connect.CodeFailedPrecondition, "%s: the aggregator has no checkpoint directory: start it with --checkpoint-dir DIR", what)
	}
	if err := checkName("checkpoint", name); err != nil {
		return connect.NewError(connect.CodeInvalidArgument, err)
	}
	j := m.job
	if !j.model.TryLock() {
		return refuse(connect.CodeFailedPrecondition, "%s %q: tensors of job %q are being registered, saved or restored", what, name,
			j.name)
	}
	defer j.unlockModel()
	release, err := j.hold()
	if err != nil {
		return err
	}
	defer release()
	if j.plan.NumTensors() == 0 {
		return refuse(connect.CodeFailedPrecondition, "%s %q: job %q has no tensors: register them first", what, name, j.name)
	}
	if err := j.chargeCall(ctx, what, j.checkpointCost()); err != nil {
		return err
	}
	ctx, cancel := bounded(ctx, r.GetTimeoutMs())
	defer cancel()
	others, end, err := m.elsewhere(r.GetCarry())
	if err != nil {
		return err
	}
	defer end()
	path, began := "", time.Now()
	if !inMemory {
		path = filepath.Join(s.opts.CheckpointDir, j.name, name+checkpointSuffix)
		if err := j.ownsFolder(filepath.Dir(path)); err != nil {
			return err
		}
	}
	if err := f(ctx, j, others, path); err != nil {
		s.log.Warn(what+" failed", "job", j.name, "path", path, "err", err)
		return refuse(checkpointCode(err), "%s %q: %w", what, name, err)
	}
	s.log.Info(what+" done", "job", j.name, "path", path, "took", time.Since(began))
	return nil
}

func checkpointCode(err error) connect.Code {
	switch {
	case errors.Is(err, quota.ErrExceeded):
		return connect.CodeResourceExhausted
	case errors.Is(err, aggregate.ErrNotQuiet), errors.Is(err, aggregate.ErrNoSnapshot), errors.Is(err, errMismatch),
		errors.Is(err, errOtherRacks):
		return connect.CodeFailedPrecondition
	case errors.Is(err, os.ErrNotExist), errors.Is(err, errNotKept), errors.Is(err, aggregate.ErrNotKept):
		return connect.CodeNotFound
	case errors.Is(err, checkpoint.ErrCorrupt):
		return connect.CodeDataLoss
	case errors.Is(err, context.DeadlineExceeded):
		return connect.CodeDeadlineExceeded
	}
	return connect.CodeInternal
}

// save writes the job's state to a file. The file appears whole or not at all.
func (j *job) save(ctx context.Context, others elsewhere, path string) (bytes int64, err error) {
	snap, err := j.snapshot(ctx, others)
	if err != nil {
		return 0, err
	}
	updates, err := snap.Updates(ctx)
	if err != nil {
		return 0, err
	}
	h := &api.CheckpointHeader{
		Job: j.name, Mode: j.spec.mode.String(), Optimizer: j.spec.rule.String(), Arrays: uint32(snap.Arrays()),
		SavedUnix: time.Now().Unix(),
	}
	h.Racks, h.OuterRule = j.trainAlone()
	order := make([]int, j.plan.NumTensors())
	for i := range order {
		t := j.plan.Tensor(i)
		order[i] = i
		h.Tensors = append(h.Tensors, &api.CheckpointTensor{Name: t.Name, Elems: t.Elems, Updates: updates[i]})
	}
	if err := removeUnfinished(path); err != nil {
		return 0, err
	}
	if err := j.roomFor(path, h, snap.Arrays()); err != nil {
		return 0, err
	}
	// The temporary file lies beside the final one: TMPDIR may be small, and a killed aggregator should not leave a model there.
	f, err := renameio.NewPendingFile(path, renameio.WithTempDir(filepath.Dir(path)), renameio.WithPermissions(0o640))
	if err != nil {
		return 0, err
	}
	defer f.Cleanup()
	buffered := bufio.NewWriterSize(f, 1<<20)
	w, err := checkpoint.NewWriter(buffered, h)
	if err != nil {
		return 0, err
	}
	err = eachBatch(j.plan, order, snap.Arrays(), snap.batch(), func(pieces []aggregate.Piece, data []float32) error {
		if err := snap.Read(ctx, pieces); err != nil {
			return err
		}
		return w.Write(data)
	})
	if err == nil {
		err = errors.Join(w.Close(), buffered.Flush())
	}
	if err != nil {
		return 0, err
	}
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	if err := f.CloseAtomicallyReplace(); err != nil {
		return 0, err
	}
	return info.Size(), syncDir(filepath.Dir(path))
}

// removeUnfinished removes temporary files of an aggregator that was killed while it saved.
func removeUnfinished(path string) error {
	dir, base := filepath.Split(path)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), "."+base) {
			continue
		}
		if err := os.Remove(filepath.Join(dir, e.Name())); err != nil {
			return err
		}
	}
	return nil
}

// openRegular opens a regular file for reading. It refuses what a reader could wait for or read without end.
func openRegular(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is no regular file", path)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// syncDir makes a renamed file's new name durable.
func syncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// restore reads the job's state from a file, twice: first to check that it is sound and fits, then into the engine.
func (j *job) restore(ctx context.Context, others elsewhere, path string) (bytes int64, err error) {
	f, err := openRegular(path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	snap, err := j.snapshot(ctx, others)
	if err != nil {
		return 0, err
	}
	h, err := checkpoint.Verify(bufio.NewReaderSize(f, 1<<20))
	if err != nil {
		return 0, fmt.Errorf("%s: %w", path, err)
	}
	order, err := j.fits(h, snap.Arrays())
	if err != nil {
		return 0, fmt.Errorf("%s: %w", path, err)
	}
	if _, err := f.Seek(0, 0); err != nil {
		return 0, err
	}
	r, err := checkpoint.NewReader(bufio.NewReaderSize(f, 1<<20))
	if err != nil {
		return 0, err
	}
	updates := make([]uint32, len(order))
	for i, t := range order {
		updates[t] = h.Tensors[i].Updates
	}
	err = j.rewrite(ctx, snap, order, updates, path, func(_ []aggregate.Piece, data []float32) error { return r.Read(data) })
	if err != nil {
		return 0, err
	}
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}

// rewrite replaces the job's state by what read fills batches with. A job whose state is half replaced fails.
func (j *job) rewrite(ctx context.Context, snap *modelState, order []int, updates []uint32, from string,
	read func(pieces []aggregate.Piece, data []float32) error) (err error) {
	torn := false
	defer func() {
		if torn && err != nil {
			j.agg.Fail(-1, fmt.Errorf("its restore from %s ended midway, half of the model is old: %w", from, err))
		}
	}()
	err = eachBatch(j.plan, order, snap.Arrays(), snap.batch(), func(pieces []aggregate.Piece, data []float32) error {
		if err := read(pieces, data); err != nil {
			return err
		}
		err := snap.Write(ctx, pieces)
		torn = torn || !errors.Is(err, errUnwritten)
		return err
	})
	if err != nil {
		return err
	}
	return snap.SetUpdates(ctx, updates)
}

var (
	errMismatch   = errors.New("the checkpoint is of another model")
	errOtherRacks = errors.New("the checkpoint is of other racks")
)

// fits checks a checkpoint against the job and returns the plan's numbers of the file's tensors, in the file's order.
func (j *job) fits(h *api.CheckpointHeader, arrays int) ([]int, error) {
	if err := j.fitsRacks(h); err != nil {
		return nil, err
	}
	if h.Optimizer != j.spec.rule.String() || int(h.Arrays) != arrays {
		return nil, fmt.Errorf("%w: it holds %d arrays of optimizer %s, the job keeps %d of %v", errMismatch, h.Arrays, h.Optimizer,
			arrays, j.spec.rule)
	}
	order := make([]int, len(h.Tensors))
	seen := make([]bool, j.plan.NumTensors())
	for i, t := range h.Tensors {
		n, ok := j.plan.Lookup(t.Name)
		if !ok {
			return nil, fmt.Errorf("%w: it has tensor %q, which the job has not", errMismatch, t.Name)
		}
		if have := j.plan.Tensor(n).Elems; have != t.Elems {
			return nil, fmt.Errorf("%w: tensor %q has %d elements in it and %d in the job", errMismatch, t.Name, t.Elems, have)
		}
		order[i], seen[n] = n, true
	}
	if n := slices.Index(seen, false); n >= 0 {
		return nil, fmt.Errorf("%w: it lacks tensor %q", errMismatch, j.plan.Tensor(n).Name)
	}
	return order, nil
}

// eachBatch walks through tensors in the order of a checkpoint, array by array and chunk by chunk, one batch of so many
// elements at a time. data holds the batch's, and pieces describes them.
func eachBatch(plan *chunk.Plan, order []int, arrays, elems int, f func(pieces []aggregate.Piece, data []float32) error) error {
	buf := make([]float32, max(elems, plan.ChunkBytes()/2))
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
