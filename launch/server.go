package launch

import (
	"cmp"
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
	stopWithin  = 10 * time.Second // for a server to end what it does and itself
)

// Server is a program that serves in a process of its own. It prints its URL as its first line, and ends when its standard input
// does.
type Server struct {
	*Process
	URL    string
	name   string // in errors
	stdin  io.Closer
	output *Tail
}

// StartAggregator starts an aggregator and waits until it listens. It also ends with ctx. Its log goes to log. If log is nil, the
// end of the log is kept for errors.
func StartAggregator(ctx context.Context, argv []string, log io.Writer) (*Server, error) {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	return StartServer("the aggregator", cmd, nil, startWithin, log)
}

// StartServer starts a server, writes orders to its standard input, and waits for its URL. Its standard error goes to log. If log
// is nil, its end is kept for errors.
func StartServer(name string, cmd *exec.Cmd, orders []byte, within time.Duration, log io.Writer) (*Server, error) {
	s := &Server{name: name, output: &Tail{}}
	cmd.Stderr = s.output
	cmd.WaitDelay = stopWithin
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	s.stdin = in
	first := make(chan string, 1)
	cmd.Stdout = &Lines{Line: func(line []byte) error {
		select {
		case first <- string(line):
		default:
		}
		return nil
	}}
	if s.Process, err = Start(cmd); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	_, _ = in.Write(orders) // a server that does not take them reports why itself
	select {
	case s.URL = <-first:
		s.output.Forward(log)
		return s, nil
	case <-s.Ended():
		return nil, cmp.Or(s.Err(), fmt.Errorf("%s ended before it listened", name))
	case <-time.After(within):
		return nil, errors.Join(fmt.Errorf("%s did not start within %v: %s", name, within, s.output), s.Stop())
	}
}

// Err waits for the server's end and returns the error of its failure, or nil if Stop ended it.
func (s *Server) Err() error {
	if err := s.output.Error(s.Wait()); err != nil {
		return fmt.Errorf("%s: %w", s.name, err)
	}
	return nil
}

// Stop ends the server.
func (s *Server) Stop() error {
	s.stdin.Close()
	select {
	case <-s.Ended():
		return s.Err()
	case <-time.After(stopWithin):
		kill := s.Signal(syscall.SIGKILL)
		return errors.Join(fmt.Errorf("%s did not end within %v and was killed", s.name, stopWithin), kill, s.Err())
	}
}
