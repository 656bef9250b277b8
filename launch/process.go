package launch

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
)

// Process is a running command with all processes that it starts in its process group.
type Process struct {
	cmd   *exec.Cmd
	group int // its process group, which a guard leads
	ended chan struct{}
	err   error // of cmd.Wait, valid after ended is closed
}

// Start starts a command in a new process group. When this process dies, the kernel kills the command, and a guard kills the rest
// of the group.
func Start(cmd *exec.Cmd) (*Process, error) {
	guard, err := newGuard()
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", cmd.Path, err)
	}
	p := &Process{cmd: cmd, group: guard.cmd.Process.Pid, ended: make(chan struct{})}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pgid: p.group, Pdeathsig: syscall.SIGKILL}
	started := make(chan error)
	go func() {
		defer guard.wait()
		// The kernel kills the command when the thread that forked it ends (prctl(2)), so the thread must live as long as the command.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		if err := cmd.Start(); err != nil {
			started <- err
			return
		}
		started <- nil
		if p.err = cmd.Wait(); errors.Is(p.err, exec.ErrWaitDelay) {
			p.err = nil // the command itself has succeeded
		}
		guard.wait()
		close(p.ended)
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", cmd.Path, err)
	}
	return p, nil
}

// guard is a shell that leads a process group. It kills the group when the pipe to the shell is closed, by wait or by the death of
// this process. It starts before any other process of the group, so that no process can outlive this one.
type guard struct {
	cmd  *exec.Cmd
	pipe *os.File
}

// Signals that this process sends to the group do not end the guard. It prints a line when it ignores them.
const guardScript = `trap '' HUP INT QUIT TERM USR1 USR2; echo; read -r line; kill -KILL 0`

func newGuard() (*guard, error) {
	read, write, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("make a pipe: %w", err)
	}
	defer read.Close()
	g := &guard{cmd: exec.Command("/bin/sh", "-c", guardScript), pipe: write}
	g.cmd.Stdin = read
	g.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	said, err := g.cmd.StdoutPipe()
	if err == nil {
		err = g.cmd.Start()
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start a guard: %w", err), write.Close())
	}
	if _, err := said.Read(make([]byte, 1)); err != nil {
		g.wait()
		return nil, fmt.Errorf("start a guard: %w", err)
	}
	return g, nil
}

// wait kills the group and waits for the guard's end. It may be called twice.
func (g *guard) wait() {
	if g.pipe.Close() == nil {
		_ = syscall.Kill(-g.cmd.Process.Pid, syscall.SIGKILL) // a guard that is stopped kills nothing
	}
	_ = g.cmd.Wait() // it was killed
}

// PID returns the command's process ID.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Ended returns a channel that is closed when the command and its group have ended.
func (p *Process) Ended() <-chan struct{} { return p.ended }

// Wait waits for the end and returns the error of [exec.Cmd.Wait].
func (p *Process) Wait() error {
	<-p.ended
	return p.err
}

// Signal sends a signal to the process group. It does nothing if the group has ended.
func (p *Process) Signal(sig syscall.Signal) error {
	if err := syscall.Kill(-p.group, sig); err != nil && !errors.Is(err, syscall.ESRCH) {
		return err
	}
	return nil
}
