package launch

import (
	"errors"
	"fmt"
	"os/exec"
	"runtime"
	"syscall"
)

// Process is a running command and all that it starts in its process group.
type Process struct {
	cmd   *exec.Cmd
	ended chan struct{}
	err   error // of cmd.Wait, once ended is closed
}

// Start starts a command in a process group of its own. The kernel kills the command when this process dies.
func Start(cmd *exec.Cmd) (*Process, error) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	p := &Process{cmd: cmd, ended: make(chan struct{})}
	started := make(chan error)
	go func() {
		// The kernel kills the command when the thread that forked it ends (prctl(2)): the thread must live as long as the command.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err != nil {
			return
		}
		p.err = cmd.Wait()
		if kill := p.Signal(syscall.SIGKILL); kill != nil {
			p.err = errors.Join(p.err, fmt.Errorf("end what %s left running: %w", cmd.Path, kill))
		}
		close(p.ended)
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", cmd.Path, err)
	}
	return p, nil
}

// PID returns the command's process ID.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Ended is closed when the command has ended and its group with it.
func (p *Process) Ended() <-chan struct{} { return p.ended }

// Wait waits for the end and returns the error of [exec.Cmd.Wait].
func (p *Process) Wait() error {
	<-p.ended
	return p.err
}

// Signal sends a signal to the process group. It does nothing if the group has ended.
func (p *Process) Signal(sig syscall.Signal) error {
	if err := syscall.Kill(-p.PID(), sig); err != nil && !errors.Is(err, syscall.ESRCH) {
		return err
	}
	return nil
}
