// Package command runs programs so that none outlives its time, its caller or this process.
package command

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/rackweave/rackweave/launch"
)

// grace is the time that a cancelled command has to end by itself, and to remove its files outside dir (Open MPI has some in
// /dev/shm), before it is killed.
const grace = 3 * time.Second

// Run runs a command in a process group of its own and returns its standard output. The whole group has ended when Run returns, and
// ends with this process. After limit, or when ctx ends, Run terminates the command, and soon after kills it. dir is its directory
// for temporary files. The error of a failed command has the end of its stderr.
func Run(ctx context.Context, limit time.Duration, dir string, argv []string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	name := filepath.Base(argv[0])
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), "TMPDIR="+dir)
	var stdout bytes.Buffer
	var stderr launch.Tail
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = grace
	p, err := launch.Start(cmd)
	if err != nil {
		return nil, err
	}
	err = p.Wait()
	said := stderr.String()
	if said != "" {
		said = ": " + said
	}
	switch {
	case ctx.Err() != nil && context.Cause(ctx) == context.DeadlineExceeded:
		return nil, fmt.Errorf("running %s: %w after %v%s", name, context.DeadlineExceeded, limit.Round(time.Second), said)
	case ctx.Err() != nil:
		return nil, fmt.Errorf("running %s: %w", name, context.Cause(ctx))
	case err != nil:
		return nil, fmt.Errorf("running %s: %w%s", name, err, said)
	}
	return stdout.Bytes(), nil
}
