package launch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"
)

// MaxWorkers bounds the workers of one [Run].
const MaxWorkers = 1024

// Stream is where a line of output comes from.
type Stream string

// The streams of a worker.
const (
	Stdout Stream = "stdout"
	Stderr Stream = "stderr"
)

// Job is what [Run] runs.
type Job struct {
	Argv    []string
	Workers int
	// Env returns what the worker of a rank has in its environment beyond this process's, as NAME=VALUE.
	Env func(rank int) []string
	// Line takes each line of the workers' output, from several goroutines at once. It must not keep the line.
	Line func(rank int, from Stream, line []byte)
	// Signals are passed on to the workers. After a signal to end (SIGINT, SIGTERM, SIGHUP, SIGQUIT) they have Grace to end; a second
	// one kills them.
	Signals <-chan os.Signal
	// Lost, if not nil, is closed when what the workers need has ended; LostWhy says why, if there is more to say.
	Lost    <-chan struct{}
	LostWhy func() error
	// Grace is how long workers may take to end before they are killed.
	Grace time.Duration
}

var errLost = errors.New("the aggregator has ended before the workers")

// Exit is how a worker ended.
type Exit struct {
	Rank   int    `json:"rank"`
	PID    int    `json:"pid"`
	Code   int    `json:"code"`             // as in a shell: 128 plus the signal's number if a signal ended it
	Signal string `json:"signal,omitempty"` // the signal that ended it
	Told   bool   `json:"told,omitempty"`   // it was told to end before it did
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

// FailedError is a job that failed.
type FailedError struct {
	First *Exit // the worker that failed first; nil if none did by itself
	Cause error // why the workers were ended; nil if First is the reason
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

// Check reports what is wrong with the job.
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

// Run runs a job's workers to their end and returns how each ended, in the order of their ends. When a worker fails or ctx ends, it
// terminates the others, and kills them after the job's grace. When Run returns, neither they nor the rest of their process groups
// run. The error is a [*FailedError] if a worker has failed.
func Run(ctx context.Context, j Job) ([]Exit, error) {
	if err := j.Check(); err != nil {
		return nil, err
	}
	r := &run{Job: j, ended: make(chan Exit, j.Workers), told: make([]bool, j.Workers)}
	if err := r.start(); err != nil {
		r.signal(syscall.SIGKILL)
		for range r.workers {
			<-r.ended
		}
		return nil, err
	}
	return r.supervise(ctx)
}

// run is a job under way. Only the goroutine of Run uses it.
type run struct {
	Job
	workers []*Process // nil: has ended
	ended   chan Exit
	told    []bool
}

func (r *run) start() error {
	for rank := range r.Workers {
		if err := r.startWorker(rank); err != nil {
			return fmt.Errorf("worker %d: %w", rank, err)
		}
	}
	return nil
}

// startWorker starts a worker and a goroutine that sends its Exit.
func (r *run) startWorker(rank int) error {
	cmd := exec.Command(r.Argv[0], r.Argv[1:]...)
	cmd.Env = os.Environ()
	if r.Env != nil {
		cmd.Env = append(cmd.Env, r.Env(rank)...)
	}
	var said string
	stdout, err := newPipe(&cmd.Stdout, func(line []byte) { r.Line(rank, Stdout, line) })
	if err != nil {
		return err
	}
	stderr, err := newPipe(&cmd.Stderr, func(line []byte) {
		r.Line(rank, Stderr, line)
		if len(line) > 0 {
			said = string(line)
		}
	})
	if err != nil {
		stdout.started()
		<-stdout.done
		return err
	}
	p, err := Start(cmd)
	stdout.started()
	stderr.started()
	if err != nil {
		<-stdout.done
		<-stderr.done
		return err
	}
	r.workers = append(r.workers, p)
	go func() {
		err := p.Wait()
		stdout.wait()
		stderr.wait()
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
		for rank, p := range r.workers {
			r.told[rank] = r.told[rank] || p != nil
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
			e.Told = r.told[e.Rank]
			r.workers[e.Rank] = nil
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
	switch sig {
	case syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT:
		return true
	}
	return false
}

func (r *run) signal(sig syscall.Signal) {
	for _, p := range r.workers {
		if p != nil {
			_ = p.Signal(sig) // fails only for processes of another user
		}
	}
}
