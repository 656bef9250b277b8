package lab

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"regexp"
	"strings"
	"sync"
)

// kernelComplaint matches the kernel messages that no run may cause.
var kernelComplaint = regexp.MustCompile(`\b(BUG|WARNING|Oops|Kernel panic)\b`)

// ErrKernel is wrapped by the complaints of a guest's kernel.
var ErrKernel = errors.New("the guest's kernel complained")

// console keeps the end of the kernel's output, and its complaints.
type console struct {
	conn net.Conn
	done chan struct{}

	mu         sync.Mutex
	lines      []string
	complaints []string
	mirror     io.Writer // a person's terminal, while there is one
}

const (
	consoleLines  = 400
	maxComplaints = 10
)

func newConsole(conn net.Conn) *console {
	c := &console{conn: conn, done: make(chan struct{})}
	go c.listen()
	return c
}

func (c *console) listen() {
	defer close(c.done)
	r := bufio.NewReader(io.TeeReader(c.conn, writerFunc(c.show)))
	for {
		line, err := r.ReadString('\n')
		c.keep(strings.TrimRight(line, "\r\n"))
		if err != nil {
			return
		}
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

func (c *console) show(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mirror != nil {
		c.mirror.Write(p)
	}
	return len(p), nil
}

func (c *console) keep(line string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if line == "" || c.mirror != nil {
		return
	}
	if len(c.lines) == consoleLines {
		c.lines = append(c.lines[:0], c.lines[1:]...)
	}
	c.lines = append(c.lines, line)
	if kernelComplaint.MatchString(line) && len(c.complaints) < maxComplaints {
		c.complaints = append(c.complaints, line)
	}
}

func (c *console) tail() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return strings.Join(c.lines, "\n")
}

func (c *console) close() {
	c.conn.Close()
	<-c.done
}

func (c *console) complaint(guest string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.complaints) == 0 {
		return nil
	}
	return fmt.Errorf("guest %s: %w: %s\nconsole:\n%s", guest, ErrKernel, strings.Join(c.complaints, "; "),
		strings.Join(c.lines, "\n"))
}

// setMirror copies the console to w, until it is called with nil.
func (c *console) setMirror(w io.Writer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mirror = w
}
