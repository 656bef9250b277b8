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

// checkpointSuffix ends the names of checkpoint files, DIR/JOB/NAME.rwck.
const checkpointSuffix = ".rwck"

// Save implements the schema's Save.
func (s *Service) Save(ctx context.Context, r *api.SaveRequest) (*api.SaveResponse, error) {
	out := &api.SaveResponse{}
	err := s.quietly(ctx, "save", r.Name, r.TimeoutMs, func(ctx context.Context, j *job, path string) error {
		n, err := j.save(ctx, path)
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
	err := s.quietly(ctx, "restore", r.Name, r.TimeoutMs, func(ctx context.Context, j *job, path string) error {
		n, err := j.restore(ctx, path)
		out.Path, out.Bytes = path, uint64(n)
		return err
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// quietly runs f for a member's checkpoint while nothing else uses the job's tensors, and gives its error a code.
func (s *Service) quietly(ctx context.Context, what, name string, ms uint32,
	f func(context.Context, *job, string) error) error {
	m, err := s.active(ctx)
	if err != nil {
		return err
	}
	if s.opts.CheckpointDir == "" {
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
	defer j.model.Unlock()
	release, err := j.hold()
	if err != nil {
		return err
	}
	defer release()
	if j.plan.NumTensors() == 0 {
		return refuse(connect.CodeFailedPrecondition, "%s %q: job %q has no tensors: register them first", what, name, j.name)
	}
	ctx, cancel := bounded(ctx, ms)
	defer cancel()
	path := filepath.Join(s.opts.CheckpointDir, j.name, name+checkpointSuffix)
	began := time.Now()
	if err := j.ownsFolder(filepath.Dir(path)); err != nil {
		return err
	}
	if err := f(ctx, j, path); err != nil {
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
	case errors.Is(err, aggregate.ErrNotQuiet), errors.Is(err, errMismatch):
		return connect.CodeFailedPrecondition
	case errors.Is(err, os.ErrNotExist):
		return connect.CodeNotFound
	case errors.Is(err, checkpoint.ErrCorrupt):
		return connect.CodeDataLoss
	case errors.Is(err, context.DeadlineExceeded):
		return connect.CodeDeadlineExceeded
	}
	return connect.CodeInternal
}

// save writes the job's state to a file. The file appears whole or not at all.
func (j *job) save(ctx context.Context, path string) (bytes int64, err error) {
	snap, err := j.agg.Snapshot(ctx, j.plan)
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
	err = eachBatch(j.plan, order, snap.Arrays(), func(pieces []aggregate.Piece, data []float32) error {
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
func (j *job) restore(ctx context.Context, path string) (bytes int64, err error) {
	f, err := openRegular(path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	snap, err := j.agg.Snapshot(ctx, j.plan)
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
	torn := false
	defer func() {
		if torn && err != nil {
			j.agg.Fail(-1, fmt.Errorf("its restore from %s ended midway, half of the model is old: %w", path, err))
		}
	}()
	err = eachBatch(j.plan, order, snap.Arrays(), func(pieces []aggregate.Piece, data []float32) error {
		if err := r.Read(data); err != nil {
			return err
		}
		torn = true
		return snap.Write(ctx, pieces)
	})
	if err != nil {
		return 0, err
	}
	updates := make([]uint32, len(order))
	for i, t := range order {
		updates[t] = h.Tensors[i].Updates
	}
	if err := snap.SetUpdates(ctx, updates); err != nil {
		return 0, err
	}
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}

var errMismatch = errors.New("the checkpoint is of another model")

// fits checks a checkpoint against the job and returns the plan's numbers of the file's tensors, in the file's order.
func (j *job) fits(h *api.CheckpointHeader, arrays int) ([]int, error) {
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

// eachBatch walks through tensors in the order of a checkpoint, array by array and chunk by chunk, one batch at a time. data holds
// the batch's elements, and pieces describes them.
func eachBatch(plan *chunk.Plan, order []int, arrays int, f func(pieces []aggregate.Piece, data []float32) error) error {
	buf := make([]float32, max(batchElems, plan.ChunkBytes()/2))
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
