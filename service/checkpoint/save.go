package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"connectrpc.com/connect"
	"github.com/google/renameio/v2"

	"github.com/rackweave/rackweave/aggregate"
	"github.com/rackweave/rackweave/service/api"
	"github.com/rackweave/rackweave/service/checkpoint/format"
	"github.com/rackweave/rackweave/service/rpc"
)

// Save writes the job's state to the aggregator's disk.
func (s *State) Save(ctx context.Context, r *api.SaveRequest) (out *api.SaveResponse, err error) {
	err = s.quietly(ctx, "save", r, func(ctx context.Context, path string) (err error) {
		dir := filepath.Dir(path)
		if !s.spread() {
			if out, err = s.write(ctx, r.Name, path); err == nil {
				err = removeParts(dir, partFiles(r.Name, anyPart), nil)
			}
			return err
		}
		if err := removeParts(dir, partFiles(r.Name, fmt.Sprint(s.Spec.Part+1)), r.Replaces); err != nil {
			return err
		}
		file := fmt.Sprintf("%s.%dof%d-%s%s", r.Name, s.Spec.Part+1, s.Spec.Parts, rpc.NewID(), checkpointSuffix)
		out, err = s.write(ctx, r.Name, filepath.Join(dir, file))
		return err
	})
	return out, err
}

// checkpointCall is a request of a call about a checkpoint.
type checkpointCall interface {
	GetName() string
	GetTimeoutMs() uint32
}

// quietly runs f for a member's checkpoint while nothing else uses the job's tensors, and gives its error a code. The path is empty
// for the state that racks retain.
func (s *State) quietly(ctx context.Context, what string, r checkpointCall,
	f func(context.Context, string) error) error {
	name := r.GetName()
	inMemory := name == api.BuddyName
	switch {
	case inMemory && what == "save":
		return rpc.Refuse(connect.CodeInvalidArgument, "save %q: that is the name of the state that racks retain: use another", name)
	case !inMemory && s.store.dir == "":
		return rpc.Refuse(connect.CodeFailedPrecondition, "%s: the aggregator has no checkpoint directory: start it with --checkpoint-dir DIR", what)
	}
	if err := rpc.CheckName("checkpoint", name); err != nil {
		return connect.NewError(connect.CodeInvalidArgument, err)
	}
	if !s.Model.TryLock() {
		return rpc.Refuse(connect.CodeFailedPrecondition, "%s %q: tensors of job %q are being registered, saved or restored", what, name,
			s.Name)
	}
	defer s.unlockModel()
	release, err := s.Hold()
	if err != nil {
		return err
	}
	defer release()
	if s.Model.Plan.NumTensors() == 0 {
		return rpc.Refuse(connect.CodeFailedPrecondition, "%s %q: job %q has no tensors: register them first", what, name, s.Name)
	}
	if err := s.ChargeCall(ctx, what, s.checkpointCost()); err != nil {
		return err
	}
	ctx, cancel := rpc.Bounded(ctx, r.GetTimeoutMs())
	defer cancel()
	path, began := "", time.Now()
	if !inMemory {
		path = filepath.Join(s.store.dir, s.Name, name+checkpointSuffix)
		if err := s.ownsFolder(filepath.Dir(path)); err != nil {
			return err
		}
	}
	if err := f(ctx, path); err != nil {
		s.store.log.Warn(what+" failed", "job", s.Name, "path", path, "err", err)
		return rpc.Refuse(checkpointCode(err), "%s %q: %w", what, name, err)
	}
	s.store.log.Info(what+" done", "job", s.Name, "path", path, "took", time.Since(began))
	return nil
}

// write writes this aggregator's part of the job's state to a file of the checkpoint with a name. The file appears whole or not
// at all.
func (s *State) write(ctx context.Context, name, path string) (*api.SaveResponse, error) {
	snap, err := s.snapshot(ctx)
	if err != nil {
		return nil, err
	}
	h, err := s.header(ctx, snap)
	if err != nil {
		return nil, err
	}
	stale := name + checkpointSuffix
	if s.spread() {
		stale = fmt.Sprintf("%s.%dof", name, s.Spec.Part+1)
	}
	if err := removeUnfinished(filepath.Dir(path), stale); err != nil {
		return nil, err
	}
	if err := s.roomFor(name, path, h, snap.Arrays()); err != nil {
		return nil, err
	}
	// The temporary file lies beside the final one: TMPDIR may be small, and a killed aggregator should not leave a model there.
	f, err := renameio.NewPendingFile(path, renameio.WithTempDir(filepath.Dir(path)), renameio.WithPermissions(0o640))
	if err != nil {
		return nil, err
	}
	defer f.Cleanup()
	w, err := format.NewWriter(f, h)
	if err != nil {
		return nil, err
	}
	err = s.eachBatch(s.order(), snap.Arrays(), func(pieces []aggregate.Piece, data []float32) error {
		if err := snap.Read(ctx, pieces); err != nil {
			return err
		}
		return w.Write(data)
	})
	if err != nil {
		return nil, err
	}
	sum, err := w.Close()
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if err := f.CloseAtomicallyReplace(); err != nil {
		return nil, err
	}
	out := &api.SaveResponse{Path: path, Bytes: uint64(info.Size())}
	if s.spread() {
		out.Part = &api.CheckpointPart{Hash: sum, File: filepath.Base(path), Part: uint32(s.Spec.Part), Parts: uint32(s.Spec.Parts)}
		for id := range s.Model.Plan.NumChunks() {
			if s.owns(id) {
				out.Part.Chunks++
			}
		}
		for _, t := range h.Tensors {
			out.Part.Step = max(out.Part.Step, t.Updates)
		}
	}
	return out, syncDir(filepath.Dir(path))
}

// header returns the header of the job's checkpoint, or of this aggregator's part of it.
func (s *State) header(ctx context.Context, snap *model) (*api.CheckpointHeader, error) {
	updates, err := snap.Updates(ctx)
	if err != nil {
		return nil, err
	}
	h := &api.CheckpointHeader{
		Job: s.Name, Mode: s.Spec.Mode.String(), Optimizer: s.Spec.Rule.String(), Arrays: uint32(snap.Arrays()),
		SavedUnix: time.Now().Unix(),
	}
	h.Racks, h.OuterRule = s.outerRacks()
	if s.Spec.Part == 0 {
		if h.Data, err = s.store.Data.States(s.Job); err != nil {
			return nil, err
		}
	}
	if s.spread() {
		hash := s.Model.Plan.Hash()
		h.Part, h.Parts, h.Plan = uint32(s.Spec.Part), uint32(s.Spec.Parts), hash[:]
	}
	for i := range s.Model.Plan.NumTensors() {
		if elems := s.ownElems(i); elems > 0 {
			t := s.Model.Plan.Tensor(i)
			h.Tensors = append(h.Tensors, &api.CheckpointTensor{Name: t.Name, Elems: elems, Updates: updates[i], Width: t.Width})
		}
	}
	return h, nil
}

// removeUnfinished removes temporary files, of files whose names begin so, that an aggregator left when it was killed.
func removeUnfinished(dir, base string) error {
	return removeFiles(dir, func(name string) bool { return strings.HasPrefix(name, "."+base) })
}

// removeFiles removes the files of a directory whose names match.
func removeFiles(dir string, match func(name string) bool) error {
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		if match(e.Name()) {
			err = errors.Join(err, os.Remove(filepath.Join(dir, e.Name())))
		}
	}
	return err
}

// openRegular opens a regular file for reading. It refuses others, because a reader could wait for them or read them without end.
func openRegular(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is not a regular file", path)
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

// outerRacks returns the job's racks, in order, and the rule of their outer optimizer, if they train independently.
func (s *State) outerRacks() (racks []string, rule string) {
	if s.Spec.Outer.Every == 0 {
		return nil, ""
	}
	return s.others.Names(), s.Spec.Outer.Rule
}

// checkpointCost returns the memory for a save or a restore: a batch, which other racks may answer, the buffers of the file, and
// its header.
func (s *State) checkpointCost() int64 {
	copies := 1
	if len(s.others.Names()) > 1 {
		copies = 4
	}
	bytes := 4*int64(copies*s.mostElems()) + s.updatesCost() + 2<<20
	for i := range s.Model.Plan.NumTensors() {
		bytes += 2 * int64(rpc.MessageCost+len(s.Model.Plan.Tensor(i).Name))
	}
	return bytes
}
