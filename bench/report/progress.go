package report

import (
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"
)

// Progress shows how far a long operation is: a bar on a terminal, and elsewhere (a log, a pipe) a line per tenth. A nil
// Progress shows nothing. It is safe for concurrent use.
type Progress struct {
	mu    sync.Mutex
	bar   *progressbar.ProgressBar // nil: lines
	out   io.Writer
	label string
	done  int
	total int
	shown int // tenths printed
}

// NewProgress starts the progress of total steps under a label. out is os.Stderr as a rule; only an *os.File can be a
// terminal.
func NewProgress(out io.Writer, label string, total int) *Progress {
	p := &Progress{out: out, label: label, total: total}
	if f, ok := out.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		p.bar = progressbar.NewOptions(total,
			progressbar.OptionSetWriter(out),
			progressbar.OptionSetDescription(label),
			progressbar.OptionShowCount(),
			progressbar.OptionThrottle(50*time.Millisecond),
			progressbar.OptionClearOnFinish(),
			progressbar.OptionSetRenderBlankState(true),
		)
	}
	return p
}

// Add says that n more steps are done. Steps beyond the total are not counted.
func (p *Progress) Add(n int) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.done = min(p.done+n, p.total)
	if p.bar != nil {
		_ = p.bar.Set(p.done) // what fails is the terminal's, and no reason to stop
		return
	}
	if p.total <= 0 {
		return
	}
	if tenths := 10 * p.done / p.total; tenths > p.shown {
		p.shown = tenths
		fmt.Fprintf(p.out, "%s: %d%% (%d/%d)\n", p.label, 10*tenths, p.done, p.total)
	}
}

// Close takes the bar away, so that what is printed next starts on a clean line.
func (p *Progress) Close() {
	if p == nil || p.bar == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	_ = p.bar.Clear()
}
