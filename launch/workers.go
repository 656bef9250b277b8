package launch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"syscall"
	"time"
)

// MaxWorkers bounds the workers of one [Run].
const MaxWorkers = 1024

const (
	maxLine = 64 << 10
	// drainWithin bounds the reading of a worker's output after its end, because a process that left the worker's group may hold it
	// open.
	drainWithin = time.Second
)

// Stream is the source of a line of output.
type Stream string

// These are the streams of a worker.
const (
	Stdout Stream = "stdout"
	Stderr Stream = "stderr"
)

// Job describes the workers of [Run].
type Job struct {
	Argv    []string
	Workers int
	First   int // the first worker's rank
	// Env returns the environment of the worker of a rank beyond this process's, as NAME=VALUE.
	Env func(rank int) []string
	// Command, if not nil, returns the command of a worker, which begins with Argv.
	Command func(rank int) *exec.Cmd
	// Signal, if not nil, passes a signal on to a worker, and does not wait. If nil, the worker's process group gets it, as it gets
	// SIGKILL.
	Signal func(rank int, sig syscall.Signal)
	// Line takes each line of the workers' output, from several goroutines at once. It must not keep the line.
	Line    func(rank int, from Stream, line []byte)
	MaxLine int // longest line in bytes; longer lines are split; if 0, 64 KiB
	// Signals are passed on to the workers. After a signal to end (SIGINT, SIGTERM, SIGHUP, SIGQUIT) the workers have Grace to end. A
	// second such signal kills them.
	Signals <-chan os.Signal
	// Lost, if not nil, is closed when the aggregator of the workers has ended. LostWhy returns the reason, if it is known.
	Lost    <-chan struct{}
	LostWhy func() error
	// Grace is the time in which workers must end before they are killed.
	Grace time.Duration
}

var errLost = errors.New("the aggregator has ended before the workers")

// Exit describes the end of a worker.
type Exit struct {
	Rank   int    `json:"rank"`
	PID    int    `json:"pid"`
	Code   int    `json:"code"`             // as in a shell: 128 plus the signal's number if a signal ended it
	Signal string `json:"signal,omitempty"` // the signal that ended it
	Told   bool   `json:"told,omitempty"`   // it was signalled before it ended
	Said   string `json:"said,omitempty"`   // its last line on standard error, if it failed
}

func (e *Exit) String() string {
	text := fmt.Sprintf("worker %d (pid %d) ended with exit status %d", e.Rank, e.PID, e.Code)
	if e.Signal != "" {
		text = fmt.Sprintf("worker %d (pid %d) was ended by a signal: %s", e.Rank, e.PID, e.Signal)
	}
	if e.Said != "" {
		text += ": " + e.Said
	}
	return text
}

// FailedError is the failure of a job.
type FailedError struct {
	First *Exit // the worker that failed first, or nil if none failed by itself
	Cause error // the reason for which the workers were ended, or nil if First is the reason
}

func (e *FailedError) Error() string {
	switch {
	case e.Cause == nil:
		return e.First.String()
	case e.First == nil:
		return e.Cause.Error()
	}
	return e.Cause.Error() + "; " + e.First.String()
}

// Unwrap returns the cause.
func (e *FailedError) Unwrap() error { return e.Cause }

// ExitCode returns the exit status for this process.
func (e *FailedError) ExitCode() int {
	if e.First != nil && e.First.Code != 0 {
		return e.First.Code
	}
	return 1
}

// Check returns an error if the job cannot run.
func (j *Job) Check() error {
	if len(j.Argv) == 0 {
		return errors.New("no command is given: name the program that each worker runs")
	}
	if j.Workers < 1 || j.Workers > MaxWorkers {
		return fmt.Errorf("%d workers: use 1 to %d", j.Workers, MaxWorkers)
	}
	if j.Grace <= 0 {
		return fmt.Errorf("grace of %v: use a time above 0", j.Grace)
	}
	if _, err := exec.LookPath(j.Argv[0]); err != nil {
		return fmt.Errorf("the workers' program: %w", err)
	}
	return nil
}

// Run runs a job's workers to their end and returns the exit of each, in the order of their ends. When a worker fails or ctx ends,
// it terminates the others, and kills them after the job's grace. When Run returns, neither the workers nor the rest of their
// process groups run. The error is a [*FailedError] if a worker has failed.
func Run(ctx context.Context, j Job) ([]Exit, error) {
	if err := j.Check(); err != nil {
		return nil, err
	}
	r := &run{Job: j, ended: make(chan Exit, j.Workers), signalled: make([]bool, j.Workers)}
	for rank := j.First; rank < j.First+j.Workers; rank++ {
		if err := r.start(rank); err != nil {
			r.signal(syscall.SIGKILL)
			for range r.workers {
				<-r.ended
			}
			return nil, fmt.Errorf("worker %d: %w", rank, err)
		}
	}
	return r.supervise(ctx)
}

// run is a job under way. Only the goroutine of Run uses it.
type run struct {
	Job
	workers   []*Process // nil after its end
	ended     chan Exit
	signalled []bool
}

// start starts a worker and a goroutine that sends its Exit.
func (r *run) start(rank int) error {
	cmd := exec.Command(r.Argv[0], r.Argv[1:]...)
	if r.Command != nil {
		cmd = r.Command(rank)
	}
	cmd.Env = os.Environ()
	if r.Env != nil {
		cmd.Env = append(cmd.Env, r.Env(rank)...)
	}
	var said string
	most := cmp.Or(r.MaxLine, maxLine)
	stdout := &Lines{Max: most, Line: func(line []byte) error { r.Line(rank, Stdout, line); return nil }}
	stderr := &Lines{Max: most, Line: func(line []byte) error {
		r.Line(rank, Stderr, line)
		if len(line) > 0 {
			said = string(line)
		}
		return nil
	}}
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = stdout, stderr, drainWithin
	p, err := Start(cmd)
	if err != nil {
		return err
	}
	r.workers = append(r.workers, p)
	go func() {
		err := p.Wait()
		_, _ = stdout.Close(), stderr.Close() // no line has an error
		r.ended <- exitOf(rank, p.PID(), err, said)
	}()
	return nil
}

func exitOf(rank, pid int, err error, said string) Exit {
	e := Exit{Rank: rank, PID: pid}
	if err == nil {
		return e
	}
	e.Code, e.Said = 1, said
	exit := new(exec.ExitError)
	if !errors.As(err, &exit) {
		e.Said = err.Error()
		return e
	}
	if status := exit.Sys().(syscall.WaitStatus); status.Signaled() {
		e.Code, e.Signal = 128+int(status.Signal()), status.Signal().String()
	} else {
		e.Code = status.ExitStatus()
	}
	return e
}

// supervise waits for all workers and ends them when one fails.
func (r *run) supervise(ctx context.Context) (exits []Exit, err error) {
	var failed *FailedError
	var kill <-chan time.Time
	cancelled, lost := ctx.Done(), r.Lost
	end := func(with syscall.Signal) {
		r.signal(with)
		for i, p := range r.workers {
			r.signalled[i] = r.signalled[i] || p != nil
		}
		if kill == nil {
			kill = time.After(r.Grace)
		}
	}
	fail := func(cause error) {
		if failed == nil {
			failed = &FailedError{Cause: cause}
		}
		end(syscall.SIGTERM)
	}
	for len(exits) < r.Workers {
		select {
		case e := <-r.ended:
			e.Told = r.signalled[e.Rank-r.First]
			r.workers[e.Rank-r.First] = nil
			exits = append(exits, e)
			if e.Code == 0 {
				continue
			}
			if failed == nil {
				failed = &FailedError{}
				end(syscall.SIGTERM)
			}
			if failed.First == nil && (failed.Cause == nil || !e.Told) {
				failed.First = &e
			}
		case sig := <-r.Signals:
			switch sig := sig.(syscall.Signal); {
			case !ends(sig):
				r.signal(sig)
			case kill != nil:
				end(syscall.SIGKILL)
			default:
				end(sig)
			}
		case <-cancelled:
			cancelled = nil
			fail(context.Cause(ctx))
		case <-lost:
			lost = nil
			fail(cmp.Or(r.LostWhy(), errLost))
		case <-kill:
			end(syscall.SIGKILL)
		}
	}
	if failed != nil {
		return exits, failed
	}
	return exits, nil
}

// ends reports whether a signal asks a process to end.
func ends(sig syscall.Signal) bool {
	return slices.Contains([]syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT}, sig)
}

func (r *run) signal(sig syscall.Signal) {
	for i, p := range r.workers {
		switch {
		case p == nil:
		case r.Signal != nil && sig != syscall.SIGKILL:
			r.Signal(r.First+i, sig)
		default:
			_ = p.Signal(sig) // fails only for processes of another user
		}
	}
}
