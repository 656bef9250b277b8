// Package command runs other people's programs so that none outlives its time, its caller or this process.
package command

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/rackweave/rackweave/launch"
)

const (
	// grace is what a cancelled command has to end by itself, and to clean up what it keeps outside dir (Open MPI: files in
	// /dev/shm), before it is killed.
	grace = 3 * time.Second
	// stderrKept is how much of the end of a failed command's stderr goes into the error.
	stderrKept = 2000
)

// Run runs a command and returns its standard output. The command is given a process group of its own, all of which is
// gone when Run returns; it also ends when this process dies, however that happens. After limit, or when ctx
// ends, it is told to end, and soon after that killed. dir is its directory for temporary files. The error of a failed command
// has the end of what it wrote to stderr.
func Run(ctx context.Context, limit time.Duration, dir string, argv []string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	name := filepath.Base(argv[0])
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), "TMPDIR="+dir)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = grace
	p, err := launch.Start(cmd)
	if err != nil {
		return nil, err
	}
	err = p.Wait()
	switch {
	case ctx.Err() != nil && context.Cause(ctx) == context.DeadlineExceeded:
		return nil, fmt.Errorf("running %s: %w after %v%s", name, context.DeadlineExceeded, limit.Round(time.Second), said(&stderr))
	case ctx.Err() != nil:
		return nil, fmt.Errorf("running %s: %w", name, context.Cause(ctx))
	case err != nil:
		return nil, fmt.Errorf("running %s: %w%s", name, err, said(&stderr))
	}
	return stdout.Bytes(), nil
}

// said is the end of what a command wrote to stderr, as the end of an error.
func said(stderr *bytes.Buffer) string {
	text := strings.TrimSpace(stderr.String())
	if text == "" {
		return ""
	}
	if len(text) > stderrKept {
		text = "…" + text[len(text)-stderrKept:]
	}
	return ": " + text
}
