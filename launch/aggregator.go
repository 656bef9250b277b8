package launch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"syscall"
	"time"
)

const (
	startWithin = 30 * time.Second // for an aggregator to listen, because it may register much memory
	stopWithin  = 10 * time.Second // for an aggregator to end its jobs and itself
)

// Aggregator is an aggregator in a process of its own.
type Aggregator struct {
	URL    string
	p      *Process
	stdin  io.Closer
	output *Tail
}

// StartAggregator starts an aggregator and waits until it listens. The command prints its URL as its first line and ends when its
// standard input does. It also ends with ctx. Its log goes to log. If log is nil, the end of the log is kept for errors.
func StartAggregator(ctx context.Context, argv []string, log io.Writer) (*Aggregator, error) {
	a := &Aggregator{output: &Tail{}}
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Stderr = a.output
	cmd.WaitDelay = stopWithin
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	a.stdin = in
	first := make(chan string, 1)
	cmd.Stdout = &Lines{Line: func(line []byte) error {
		select {
		case first <- string(line):
		default:
		}
		return nil
	}}
	if a.p, err = Start(cmd); err != nil {
		return nil, fmt.Errorf("the aggregator: %w", err)
	}
	select {
	case a.URL = <-first:
		a.output.Forward(log)
		return a, nil
	case <-a.p.Ended():
		err := a.Err()
		if err == nil {
			err = errors.New("the aggregator ended before it listened")
		}
		return nil, err
	case <-time.After(startWithin):
		return nil, errors.Join(fmt.Errorf("the aggregator did not start within %v: %s", startWithin, a.output), a.Stop())
	}
}

// Ended returns a channel that is closed when the aggregator has ended.
func (a *Aggregator) Ended() <-chan struct{} { return a.p.Ended() }

// PID returns the process's number.
func (a *Aggregator) PID() int { return a.p.PID() }

// Err waits for the aggregator's end and returns the error of its failure, or nil if Stop ended it.
func (a *Aggregator) Err() error {
	if err := a.output.Error(a.p.Wait()); err != nil {
		return fmt.Errorf("the aggregator: %w", err)
	}
	return nil
}

// Stop ends the aggregator and its jobs.
func (a *Aggregator) Stop() error {
	a.stdin.Close()
	select {
	case <-a.p.Ended():
		return a.Err()
	case <-time.After(stopWithin):
		kill := a.p.Signal(syscall.SIGKILL)
		return errors.Join(fmt.Errorf("the aggregator did not end within %v and was killed", stopWithin), kill, a.Err())
	}
}
