package launch

import (
	"errors"
	"fmt"
	"os"
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

// Start starts a command in a process group of its own. When this process dies, the kernel kills the command, and a guard the rest
// of the group.
func Start(cmd *exec.Cmd) (*Process, error) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	p := &Process{cmd: cmd, ended: make(chan struct{})}
	started := make(chan error)
	go func() {
		// The kernel kills the command when the thread that forked it ends (prctl(2)): the thread must live as long as the command.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		if err != nil {
			started <- err
			return
		}
		dismiss, err := guard(p.PID())
		if err != nil {
			_ = p.Signal(syscall.SIGKILL)
			_ = cmd.Wait() // it was killed
			started <- err
			return
		}
		defer dismiss()
		started <- nil
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

// guard starts a shell that kills a process group when this process dies, because its standard input ends then. After dismiss it
// does nothing.
func guard(group int) (dismiss func(), err error) {
	read, write, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("guard process group %d: %w", group, err)
	}
	defer read.Close()
	cmd := exec.Command("/bin/sh", "-c", fmt.Sprintf("read -r line || kill -KILL -%d", group))
	cmd.Stdin = read
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // what interrupts this process does not reach it
	if err := cmd.Start(); err != nil {
		write.Close()
		return nil, fmt.Errorf("guard process group %d: %w", group, err)
	}
	return func() {
		_, _ = write.WriteString("\n") // if the guard is gone, there is none to dismiss
		write.Close()
		_ = cmd.Wait()
	}, nil
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
