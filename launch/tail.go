package launch

import (
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"sync"
)

// Tail keeps the end of a process's output, for its error, until the output is forwarded.
type Tail struct {
	mu sync.Mutex
	b  []byte
	to io.Writer
}

const tailBytes = 4096

// Write implements [io.Writer].
func (t *Tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.to != nil {
		return t.to.Write(p)
	}
	t.b = append(t.b, p...)
	if len(t.b) > tailBytes {
		t.b = append(t.b[:0], t.b[len(t.b)-tailBytes:]...)
	}
	return len(p), nil
}

// Forward writes the kept output, and all further output, to a writer. Afterwards nothing is kept.
func (t *Tail) Forward(to io.Writer) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.to = to; to != nil {
		to.Write(t.b)
		t.b = nil
	}
}

// String returns the kept output.
func (t *Tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.TrimSpace(string(t.b))
}

// Error adds the process's own error output, if any, to err, the error of a process of this program.
func (t *Tail) Error(err error) error {
	if err == nil {
		return nil
	}
	text := strings.TrimPrefix(t.String(), "rackweave: ")
	exit := new(exec.ExitError)
	switch {
	case text == "":
		return err
	case errors.As(err, &exit) && exit.Exited():
		return errors.New(text)
	}
	return fmt.Errorf("%w: %s", err, text)
}
