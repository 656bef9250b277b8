package report

import (
	"fmt"
	"io"
	"sync"
)

// Progress prints a line per tenth of a long operation. A nil Progress prints nothing. It is safe for concurrent use.
type Progress struct {
	mu    sync.Mutex
	out   io.Writer
	label string
	done  int
	total int
	shown int // tenths printed
}

// NewProgress starts the progress of total steps under a label. If out is nil, nothing is printed.
func NewProgress(out io.Writer, label string, total int) *Progress {
	if out == nil {
		return nil
	}
	return &Progress{out: out, label: label, total: total}
}

// Add says that n more steps are done. Steps beyond the total are not counted.
func (p *Progress) Add(n int) {
	if p == nil || p.total <= 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.done = min(p.done+n, p.total)
	if tenths := 10 * p.done / p.total; tenths > p.shown {
		p.shown = tenths
		fmt.Fprintf(p.out, "%s: %d%% (%d/%d)\n", p.label, 10*tenths, p.done, p.total)
	}
}
