package lab

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
)

// agent talks to the guest's init (init.sh has the protocol).
type agent struct {
	conn      net.Conn
	shared    string
	ready     chan struct{}
	gone      <-chan struct{}
	goneError func() error

	mu   sync.Mutex
	next int
	jobs map[int]*Cmd
}

func newAgent(conn net.Conn, dir string, gone <-chan struct{}, goneError func() error) *agent {
	a := &agent{
		conn: conn, shared: filepath.Join(dir, "shared"), ready: make(chan struct{}),
		gone: gone, goneError: goneError, jobs: map[int]*Cmd{},
	}
	go a.listen()
	return a
}

func (a *agent) listen() {
	ready := sync.OnceFunc(func() { close(a.ready) })
	for lines := bufio.NewScanner(a.conn); lines.Scan(); {
		var n, status int
		switch line := strings.TrimSpace(lines.Text()); {
		case line == "ready":
			ready()
		default:
			if _, err := fmt.Sscanf(line, "exit %d %d", &n, &status); err == nil {
				a.finish(n, status)
			}
		}
	}
}

func (a *agent) finish(n, status int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if c := a.jobs[n]; c != nil {
		delete(a.jobs, n)
		c.status = status
		close(c.done)
	}
}

func (a *agent) close() { a.conn.Close() }

func (a *agent) waitReady(ctx context.Context) error {
	select {
	case <-a.ready:
		return nil
	case <-a.gone:
		return a.goneError()
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Cmd is a command running in a guest.
type Cmd struct {
	agent  *agent
	n      int
	script string
	status int // valid once done
	done   chan struct{}
	err    error // why it could not start
}

// ExitError is the failure of a command. A status above 128 is a signal's number plus 128.
type ExitError struct {
	Guest, Command string
	Status         int
}

func (e *ExitError) Error() string {
	return fmt.Sprintf("%s: exit status %d in guest %s", e.Command, e.Status, e.Guest)
}

// Start runs a shell script in the guest, as root, in the host's root file system.
func (g *Guest) Start(script string) *Cmd {
	a := g.agent
	a.mu.Lock()
	defer a.mu.Unlock()
	a.next++
	c := &Cmd{agent: a, n: a.next, script: script, done: make(chan struct{})}
	if c.err = a.run(c); c.err == nil {
		a.jobs[c.n] = c
	}
	return c
}

func (a *agent) run(c *Cmd) error {
	select {
	case <-a.gone:
		return a.goneError()
	default:
	}
	if err := os.WriteFile(filepath.Join(a.shared, fmt.Sprintf("%d.cmd", c.n)), []byte(c.script+"\n"), 0o644); err != nil {
		return fmt.Errorf("pass a command to the guest: %w", err)
	}
	if _, err := fmt.Fprintf(a.conn, "run %d\n", c.n); err != nil {
		return fmt.Errorf("%w: %w", ErrGuestGone, err)
	}
	return nil
}

// Run runs a shell script in the guest and returns its output, also with an error: an [ExitError], [ErrGuestGone], or the
// context's. The script is killed when the context ends.
func (g *Guest) Run(ctx context.Context, script string) (string, error) {
	out, err := g.Start(script).Wait(ctx)
	var exit *ExitError
	if errors.As(err, &exit) {
		exit.Guest = g.cfg.Name
	}
	return out, err
}

// Wait waits for the command's end and returns its output, as [Guest.Run] does.
func (c *Cmd) Wait(ctx context.Context) (string, error) {
	if c.err != nil {
		return "", c.err
	}
	select {
	case <-c.done:
	case <-c.agent.gone:
		return c.Output(), c.agent.goneError()
	case <-ctx.Done():
		c.Kill()
		return c.Output(), fmt.Errorf("%s: %w", firstLine(c.script), ctx.Err())
	}
	if c.status != 0 {
		return c.Output(), &ExitError{Command: firstLine(c.script), Status: c.status}
	}
	return c.Output(), nil
}

// Output returns the command's output so far.
func (c *Cmd) Output() string {
	out, err := os.ReadFile(filepath.Join(c.agent.shared, fmt.Sprintf("%d.out", c.n)))
	if err != nil {
		return ""
	}
	return string(out)
}

// Done is closed when the command has ended.
func (c *Cmd) Done() <-chan struct{} { return c.done }

// Kill kills the command and all it started (unless they made sessions of their own). Wait then returns.
func (c *Cmd) Kill() {
	fmt.Fprintf(c.agent.conn, "kill %d\n", c.n)
}

func firstLine(script string) string {
	line, rest, _ := strings.Cut(strings.TrimSpace(script), "\n")
	if rest != "" {
		line += " …"
	}
	return line
}
