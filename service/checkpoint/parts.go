package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"

	"github.com/google/renameio/v2"

	"github.com/rackweave/rackweave/service/api"
	"github.com/rackweave/rackweave/service/checkpoint/format"
	"github.com/rackweave/rackweave/service/rpc"
)

// newPart returns the path of a new part file of a checkpoint.
func (s *State) newPart(name string) string {
	file := fmt.Sprintf("%s.%dof%d-%s%s", name, s.Spec.Part+1, s.Spec.Parts, rpc.NewID(), checkpointSuffix)
	return filepath.Join(s.store.dir, s.Name, file)
}

// partFiles matches the part files of a checkpoint. The number is a part's, or a pattern.
func partFiles(name, number string) *regexp.Regexp {
	name, suffix := regexp.QuoteMeta(name), regexp.QuoteMeta(checkpointSuffix)
	return regexp.MustCompile("^" + name + `\.` + number + "of[0-9]+-[0-9a-f]{32}" + suffix + "$")
}

const anyPart = "[0-9]+"

// removeParts removes part files of a checkpoint, except the files of a manifest.
func removeParts(dir string, parts *regexp.Regexp, but *api.CheckpointManifest) error {
	keep := map[string]bool{}
	for _, p := range but.GetParts() {
		keep[p.File] = true
	}
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		if parts.MatchString(e.Name()) && !keep[e.Name()] {
			err = errors.Join(err, os.Remove(filepath.Join(dir, e.Name())))
		}
	}
	return err
}

// savePart writes this aggregator's part of the job's state to a file.
func (s *State) savePart(ctx context.Context, name string, replaces *api.CheckpointManifest) (*api.SaveResponse, error) {
	path := s.newPart(name)
	if err := removeParts(filepath.Dir(path), partFiles(name, fmt.Sprint(s.Spec.Part+1)), replaces); err != nil {
		return nil, err
	}
	h, saved, err := s.write(ctx, name, path)
	if err != nil {
		return nil, err
	}
	saved.Part.File, saved.Part.Part, saved.Part.Parts = filepath.Base(path), uint32(s.Spec.Part), uint32(s.Spec.Parts)
	for _, t := range h.Tensors {
		saved.Part.Step = max(saved.Part.Step, t.Updates)
	}
	for id := range s.Model.Plan.NumChunks() {
		if s.owns(id) {
			saved.Part.Chunks++
		}
	}
	return saved, nil
}

// WriteManifest makes the parts that all aggregators have saved the job's checkpoint.
func (s *State) WriteManifest(ctx context.Context, r *api.WriteManifestRequest) (*api.WriteManifestResponse, error) {
	out := &api.WriteManifestResponse{}
	err := s.quietly(ctx, "save", r, func(_ context.Context, path string) error {
		own, err := s.ownPart(r.Name, r.Manifest)
		if err != nil {
			return err
		}
		dir := filepath.Dir(path)
		if _, err := os.Stat(filepath.Join(dir, own.File)); err != nil {
			return fmt.Errorf("part %d of %d: %w", own.Part+1, own.Parts, err)
		}
		text, err := format.EncodeManifest(r.Manifest)
		if err != nil {
			return err
		}
		if err := removeUnfinished(dir, r.Name+checkpointSuffix); err != nil {
			return err
		}
		if err := renameio.WriteFile(path, text, 0o640, renameio.WithTempDir(dir)); err != nil {
			return err
		}
		if err := syncDir(dir); err != nil {
			return err
		}
		out.Path = path
		return removeParts(dir, partFiles(r.Name, anyPart), r.Manifest)
	})
	return out, err
}

// ReadManifest returns the parts of a checkpoint.
func (s *State) ReadManifest(ctx context.Context, r *api.ReadManifestRequest) (*api.ReadManifestResponse, error) {
	out := &api.ReadManifestResponse{}
	err := s.quietly(ctx, "find", r, func(_ context.Context, path string) error {
		f, err := openRegular(path)
		if err != nil {
			return err
		}
		defer f.Close()
		out.Manifest, err = format.ReadManifest(f)
		return err
	})
	return out, err
}

// sourceOf returns the file that a restore reads, and the checksum that it must have if it is a part.
func (s *State) sourceOf(r *api.RestoreRequest, path string) (string, []byte, error) {
	if !s.spread() && r.Manifest == nil {
		return path, nil, nil
	}
	own, err := s.ownPart(r.Name, r.Manifest)
	if err != nil {
		return "", nil, err
	}
	return filepath.Join(filepath.Dir(path), own.File), own.Hash, nil
}
