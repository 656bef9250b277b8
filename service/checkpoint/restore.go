package checkpoint

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/rackweave/rackweave/aggregate"
	"github.com/rackweave/rackweave/service/api"
	"github.com/rackweave/rackweave/service/checkpoint/format"
)

// Restore reads the job's state back.
func (s *State) Restore(ctx context.Context, r *api.RestoreRequest) (*api.RestoreResponse, error) {
	out := &api.RestoreResponse{}
	err := s.quietly(ctx, "restore", r, func(ctx context.Context, path string) (err error) {
		if out.Path = path; path == "" {
			out.Bytes, err = s.restoreRetained(ctx)
		} else {
			out.Bytes, err = s.read(ctx, r, path)
		}
		if err == nil && !r.Check {
			out.Step = *s.Model.Restored.Load()
		}
		return err
	})
	return out, err
}

// read reads the job's state from a file, twice: first to check that it is sound and fits, then into the engine.
func (s *State) read(ctx context.Context, call *api.RestoreRequest, path string) (size uint64, err error) {
	var sum []byte // that a part must have
	if s.spread() || call.Manifest != nil {
		own, err := s.ownPart(call.Name, call.Manifest)
		if err != nil {
			return 0, err
		}
		path, sum = filepath.Join(filepath.Dir(path), own.File), own.Hash
	}
	f, err := openRegular(path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	snap, err := s.snapshot(ctx)
	if err != nil {
		return 0, err
	}
	h, got, err := format.Verify(f)
	if err == nil && sum != nil && !bytes.Equal(got, sum) {
		err = fmt.Errorf("%w: its checksum is %x, and the manifest has %.4x", format.ErrCorrupt, got, sum)
	}
	if err != nil {
		return 0, fmt.Errorf("%s: %w", path, err)
	}
	order, err := s.fits(h, snap.Arrays())
	if err != nil {
		return 0, fmt.Errorf("%s: %w", path, err)
	}
	info, err := f.Stat()
	if err != nil || call.Check {
		return 0, err
	}
	if _, err := f.Seek(0, 0); err != nil {
		return 0, err
	}
	r, err := format.NewReader(f)
	if err != nil {
		return 0, err
	}
	updates := make([]uint32, s.Model.Plan.NumTensors())
	for i, t := range order {
		updates[t] = h.Tensors[i].Updates
	}
	err = s.rewrite(ctx, snap, order, updates, path, func(_ []aggregate.Piece, data []float32) error { return r.Read(data) })
	if err == nil && s.Spec.Part == 0 {
		err = s.store.Data.Restore(s.Job, h.Data)
	}
	if err != nil {
		return 0, err
	}
	return uint64(info.Size()), nil
}

// rewrite replaces the job's state by the values with which read fills batches. A job whose state is half replaced fails.
func (s *State) rewrite(ctx context.Context, snap *model, order []int, updates []uint32, from string,
	read func(pieces []aggregate.Piece, data []float32) error) (err error) {
	torn := false
	defer func() {
		if torn && err != nil {
			s.Agg.Fail(-1, fmt.Errorf("its restore from %s ended midway, half of the model is old: %w", from, err))
		}
	}()
	err = s.eachBatch(order, snap.Arrays(), func(pieces []aggregate.Piece, data []float32) error {
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

// fits checks a checkpoint against the job and returns the plan's numbers of the file's tensors, in the file's order.
func (s *State) fits(h *api.CheckpointHeader, arrays int) ([]int, error) {
	if err := errors.Join(s.fitsRacks(h), s.fitsPart(h)); err != nil {
		return nil, err
	}
	if h.Optimizer != s.Spec.Rule.String() || int(h.Arrays) != arrays {
		return nil, fmt.Errorf("%w: it holds %d arrays of optimizer %s, the job keeps %d of %v", errMismatch, h.Arrays, h.Optimizer,
			arrays, s.Spec.Rule)
	}
	order := make([]int, len(h.Tensors))
	seen := make([]bool, s.Model.Plan.NumTensors())
	for i, t := range h.Tensors {
		n, ok := s.Model.Plan.Lookup(t.Name)
		if !ok {
			return nil, fmt.Errorf("%w: it has tensor %q, which the job has not", errMismatch, t.Name)
		}
		if have := s.ownElems(n); have != t.Elems {
			return nil, fmt.Errorf("%w: tensor %q has %d elements in it and %d in the job", errMismatch, t.Name, t.Elems, have)
		}
		if have := s.Model.Plan.Tensor(n).Width; t.Width != have && t.Width > 0 && have > 0 {
			return nil, fmt.Errorf("%w: tensor %q has rows of %d elements in it and of %d in the job", errMismatch, t.Name, t.Width, have)
		}
		order[i], seen[n] = n, true
	}
	for n := range seen {
		if !seen[n] && s.ownElems(n) > 0 {
			return nil, fmt.Errorf("%w: it lacks tensor %q", errMismatch, s.Model.Plan.Tensor(n).Name)
		}
	}
	return order, nil
}

// fitsRacks checks that a checkpoint is of the same racks as the job if the racks of one of them train independently, because each
// has a state of its own.
func (s *State) fitsRacks(h *api.CheckpointHeader) error {
	racks, rule := s.outerRacks()
	switch {
	case slices.Equal(h.Racks, racks) && h.OuterRule == rule:
		return nil
	case len(racks) == 0:
		return fmt.Errorf("%w: racks %v have trained it independently, and this job has no outer optimizer: restore it in a job of these racks with an outer optimizer",
			errOtherRacks, h.Racks)
	case len(h.Racks) == 0:
		return fmt.Errorf("%w: it was saved without an outer optimizer, and this job has one: restore it in a job with outer none",
			errOtherRacks)
	}
	return fmt.Errorf("%w: racks %v have trained it with outer rule %q, the job has racks %v and rule %q: use the same racks, in the same order, and rule",
		errOtherRacks, h.Racks, h.OuterRule, racks, rule)
}
