// Package command runs programs so that none outlives its time, its caller or this process.
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
	// grace is the time that a cancelled command has to end by itself, and to remove its files outside dir (Open MPI has some in
	// /dev/shm), before it is killed.
	grace = 3 * time.Second
	// stderrKept is the number of bytes of a failed command's stderr in the error.
	stderrKept = 2000
)

// Run runs a command in a process group of its own and returns its standard output. The whole group has ended when Run returns, and
// ends with this process. After limit, or when ctx ends, Run terminates the command, and soon after kills it. dir is its directory
// for temporary files. The error of a failed command has the end of its stderr.
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

// said returns the end of a command's stderr, as the end of an error.
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
