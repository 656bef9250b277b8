package checkpoint

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"

	"connectrpc.com/connect"
	"github.com/google/renameio/v2"

	"github.com/rackweave/rackweave/service/api"
	"github.com/rackweave/rackweave/service/checkpoint/format"
	"github.com/rackweave/rackweave/service/quota"
	"github.com/rackweave/rackweave/service/rpc"
)

// partFiles matches the part files of a checkpoint. The number is a part's, or a pattern.
func partFiles(name, number string) *regexp.Regexp {
	name, suffix := regexp.QuoteMeta(name), regexp.QuoteMeta(checkpointSuffix)
	return regexp.MustCompile("^" + name + `\.` + number + "of[0-9]+-[0-9a-f]{32}" + suffix + "$")
}

const anyPart = "[0-9]+"

// removeParts removes part files of a checkpoint, except the files of a manifest.
func removeParts(dir string, parts *regexp.Regexp, but *api.CheckpointManifest) error {
	return removeFiles(dir, func(name string) bool {
		is := func(p *api.CheckpointPart) bool { return p.File == name }
		return parts.MatchString(name) && !slices.ContainsFunc(but.GetParts(), is)
	})
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
		if out.Manifest, err = format.ReadManifest(f); errors.Is(err, format.ErrCorrupt) {
			err = fmt.Errorf("%w: remove %s, or use another name", err, path)
		}
		return err
	})
	return out, err
}

// ownerFile returns the path of the file that records the owner of a job's folder, by a digest of the job's token. No job's name
// begins with a dot.
func ownerFile(dir string) string {
	return filepath.Join(filepath.Dir(dir), "."+filepath.Base(dir)+".owner")
}

// maxCheckpoints bounds the checkpoints of a job without a quota of its own.
const maxCheckpoints = 1000

// ownsFolder makes the folder of the job's checkpoints if it is missing, and refuses that of another token. A folder without an
// owner becomes the job's.
func (s *State) ownsFolder(dir string) error {
	sum := sha256.Sum256([]byte("rackweave checkpoints " + s.Token))
	mine, path, held := hex.EncodeToString(sum[:]), ownerFile(dir), ""
	err := os.Mkdir(dir, 0o750)
	if err == nil {
		err = syncDir(filepath.Dir(dir))
	}
	if err == nil || errors.Is(err, os.ErrExist) {
		held, err = firstText(path, mine+"\n")
	}
	if err != nil {
		return rpc.Refuse(connect.CodeInternal, "checkpoints of job %q: %w", s.Name, err)
	}
	if !rpc.Equal(strings.TrimSpace(held), mine) {
		s.Table.Refused("checkpoint_owner")
		return rpc.Refuse(connect.CodePermissionDenied,
			"checkpoints of job %q belong to another token: use that one, or another job's name, or have the admin remove %s", s.Name, path)
	}
	return nil
}

// firstText returns the text of a file, which it makes with this text if it is missing. The file appears whole, because others may
// ask at the same time and the machine may stop at any. Without hard links, as on vfat, a reader may see a part of it meanwhile.
func firstText(path, text string) (string, error) {
	held, err := os.ReadFile(path)
	if !errors.Is(err, os.ErrNotExist) {
		return string(held), err
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".new-*")
	if err != nil {
		return "", err
	}
	defer os.Remove(f.Name())
	if err := writeAll(f, text); err != nil {
		return "", err
	}
	err = os.Link(f.Name(), path)
	if errors.Is(err, errors.ErrUnsupported) || errors.Is(err, os.ErrPermission) {
		if f, err = os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600); err == nil {
			if err = writeAll(f, text); err != nil {
				os.Remove(path)
			}
		}
	}
	if errors.Is(err, os.ErrExist) {
		held, err = os.ReadFile(path)
		return string(held), err
	}
	return text, errors.Join(err, syncDir(filepath.Dir(path)))
}

// writeAll writes a file's text to the disk, and closes the file.
func writeAll(f *os.File, text string) error {
	_, err := f.WriteString(text)
	return errors.Join(err, f.Sync(), f.Close())
}

// roomFor refuses a file of a checkpoint for which the job's quota or the disk has no room. Files of the same name make room.
func (s *State) roomFor(name, path string, h *api.CheckpointHeader, arrays int) error {
	bytes := int64(0)
	for _, t := range h.Tensors {
		bytes += int64(t.Elems)*4*int64(arrays) + int64(len(t.Name)) + 64
	}
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil {
		return err
	}
	used, count, parts := int64(0), 1, partFiles(name, anyPart)
	for _, e := range entries {
		if e.Name() == name+checkpointSuffix || parts.MatchString(e.Name()) {
			continue
		}
		if info, err := e.Info(); err == nil && strings.HasSuffix(e.Name(), checkpointSuffix) {
			used += info.Size()
			count++
		}
	}
	var disk syscall.Statfs_t
	if err := syscall.Statfs(filepath.Dir(path), &disk); err != nil {
		return err
	}
	free := int64(disk.Bavail) * disk.Bsize
	switch q := s.Policy.Quota; {
	case count > maxCheckpoints:
		return fmt.Errorf("%w: job %q has %d checkpoints, the most that it may have: save under the name of one of them", quota.ErrExceeded, s.Name,
			count-1)
	case q.CheckpointBytes > 0 && used+bytes > q.CheckpointBytes:
		return fmt.Errorf("%w: %d bytes beside %d that job %q has saved: its quota is %d", quota.ErrExceeded, bytes, used, s.Name,
			q.CheckpointBytes)
	case bytes > free-free/8:
		return fmt.Errorf("%w: %d bytes, and the disk has %d, of which an eighth is left to others", quota.ErrExceeded, bytes, free)
	}
	return nil
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
