package service

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"connectrpc.com/connect"

	"github.com/rackweave/rackweave/service/api"
	"github.com/rackweave/rackweave/service/quota"
)

// ownerOf returns the file that says whose a job's folder of checkpoints is: it holds a digest of the job's token. No job's name
// begins with a dot.
func ownerOf(dir string) string {
	return filepath.Join(filepath.Dir(dir), "."+filepath.Base(dir)+".owner")
}

// maxCheckpoints bounds the checkpoints of a job without a quota of its own.
const maxCheckpoints = 1000

// ownsFolder makes the folder of the job's checkpoints where it is missing, for the job's token, and refuses that of another token.
// A folder that nobody owns yet becomes the job's.
func (j *job) ownsFolder(dir string) error {
	if err := os.Mkdir(dir, 0o750); err == nil {
		err = syncDir(filepath.Dir(dir))
		if err != nil {
			return refuse(connect.CodeInternal, "checkpoints of job %q: %w", j.name, err)
		}
	} else if !errors.Is(err, os.ErrExist) {
		return refuse(connect.CodeInternal, "checkpoints of job %q: %w", j.name, err)
	}
	sum := sha256.Sum256([]byte("rackweave checkpoints " + j.token))
	mine := hex.EncodeToString(sum[:])
	path := ownerOf(dir)
	text, err := firstText(path, mine+"\n")
	if err != nil {
		return refuse(connect.CodeInternal, "checkpoints of job %q: %w", j.name, err)
	}
	if !equal(strings.TrimSpace(text), mine) {
		j.s.refusals.count("checkpoint_owner")
		return refuse(connect.CodePermissionDenied,
			"checkpoints of job %q belong to another token: use that one, or another job's name, or have the admin remove %s", j.name, path)
	}
	return nil
}

// firstText returns what a file holds, and makes the file with this text if there is none. The file appears whole, as others may
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

// roomFor refuses a checkpoint that the job's quota or the disk has no room for. One of the same name makes room.
func (j *job) roomFor(path string, h *api.CheckpointHeader, arrays int) error {
	bytes := int64(0)
	for _, t := range h.Tensors {
		bytes += int64(t.Elems)*4*int64(arrays) + int64(len(t.Name)) + 64
	}
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil {
		return err
	}
	used, count := int64(0), 1
	for _, e := range entries {
		if info, err := e.Info(); err == nil && e.Name() != filepath.Base(path) && strings.HasSuffix(e.Name(), checkpointSuffix) {
			used += info.Size()
			count++
		}
	}
	var disk syscall.Statfs_t
	if err := syscall.Statfs(filepath.Dir(path), &disk); err != nil {
		return err
	}
	free := int64(disk.Bavail) * disk.Bsize
	switch q := j.policy.Quota; {
	case count > maxCheckpoints:
		return fmt.Errorf("%w: job %q has %d checkpoints, all it may: save under the name of one of them", quota.ErrExceeded, j.name,
			count-1)
	case q.CheckpointBytes > 0 && used+bytes > q.CheckpointBytes:
		return fmt.Errorf("%w: %d bytes beside %d that job %q has saved: its quota is %d", quota.ErrExceeded, bytes, used, j.name,
			q.CheckpointBytes)
	case bytes > free-free/8:
		return fmt.Errorf("%w: %d bytes, and the disk has %d, of which an eighth is left to others", quota.ErrExceeded, bytes, free)
	}
	return nil
}
