package launch

import (
	"fmt"
	"io"
	"os"
	"time"
)

const (
	maxLine = 64 << 10
	// drainWithin bounds the reading of a worker's output after its end: a process that left the worker's group may hold it open.
	drainWithin = time.Second
)

// pipe is the reading end of one of a worker's outputs.
type pipe struct {
	from, to *os.File
	done     chan struct{}
}

// newPipe gives a command an output whose lines go to line.
func newPipe(output *io.Writer, line func([]byte)) (*pipe, error) {
	from, to, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("make a pipe for its output: %w", err)
	}
	*output = to
	p := &pipe{from: from, to: to, done: make(chan struct{})}
	go func() {
		defer close(p.done)
		defer from.Close()
		lines := Lines{Max: maxLine, Line: func(l []byte) error { line(l); return nil }}
		// An error is the deadline that wait sets.
		_, _ = io.Copy(&lines, from)
		_ = lines.Close()
	}()
	return p, nil
}

// started closes this process's copy of the writing end.
func (p *pipe) started() { p.to.Close() }

// wait waits for the rest of the output of a command that has ended.
func (p *pipe) wait() {
	_ = p.from.SetReadDeadline(time.Now().Add(drainWithin)) // fails where all is read and closed
	<-p.done
}
