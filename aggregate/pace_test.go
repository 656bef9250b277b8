package aggregate

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/rackweave/rackweave/aggregate/reduce"
	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/policy"
)

// told notes what a pace tells its lanes.
type told struct{ lines []string }

func (l *told) note(format string, args ...any) {
	l.lines = append(l.lines, fmt.Sprintf(format, args...))
}

func (l *told) admit(rank int, set uint64, weight float64) {
	l.note("admit %d to %d times %.4g", rank, set, weight)
}

func (l *told) leaveOut(rank int) { l.note("leave out %d", rank) }

func (l *told) updateSet(u setUpdate) { l.note("update of %d rate %.4g", u.size, u.rate) }

func (l *told) letGo(rank int, answer chunk.TensorRecord, next reduce.Standing) {
	l.note("let go %d to step %d pull %v alone %v", rank, answer.Step, answer.Flags&chunk.RecordPull != 0, next == reduce.Alone)
}

// take returns what was told since it was last called.
func (l *told) take() string {
	out := strings.Join(l.lines, "; ")
	l.lines = nil
	return out
}

func TestPaceRefusesStepsThatCannotBe(t *testing.T) {
	for _, policyText := range []string{"bsp", "k-batch-asp:k=2", "asp"} {
		for _, tc := range []struct {
			name, want string
			do         func(p *pace) error
		}{
			{"announced twice", "worker 0 announced step 0 before it ended step 0", func(p *pace) error {
				return errors.Join(p.announce(0, &chunk.TensorRecord{}, 1), p.announce(0, &chunk.TensorRecord{}, 2))
			}},
			{"skipped", "step 1", func(p *pace) error { return p.announce(0, &chunk.TensorRecord{Step: 1}, 1) }},
			{"before the first", "step 4294967295", func(p *pace) error {
				return p.announce(0, &chunk.TensorRecord{Step: 1<<32 - 1}, 1)
			}},
			{"not announced", "worker 0 ended step 0, which it did not announce", func(p *pace) error {
				return errors.Join(p.end(0, 1), p.end(0, 2))
			}},
		} {
			t.Run(policyText+" "+tc.name, func(t *testing.T) {
				p := openPace(t, policyText, 2, &told{})
				if err := tc.do(p); !errors.Is(err, policy.ErrEvent) || !strings.Contains(err.Error(), tc.want) ||
					!strings.Contains(err.Error(), "worker 0") {
					t.Errorf("%v: want %q", err, tc.want)
				}
			})
		}
	}
}

func openPace(t *testing.T, text string, workers int, lanes *told) *pace {
	t.Helper()
	spec, err := policy.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	p, err := newPace(spec, workers, 2, func(f func(paced)) { f(lanes) })
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// push announces a worker's step and ends it in both lanes.
func push(t *testing.T, p *pace, rank int) {
	t.Helper()
	step := uint32(p.runner.Clock(rank))
	if err := errors.Join(p.announce(rank, &chunk.TensorRecord{Step: step}, 1), p.end(rank, 2), p.end(rank, 3)); err != nil {
		t.Fatal(err)
	}
}

func TestWorkersWaitForTheUpdateThatTheyAreToSee(t *testing.T) {
	lanes := &told{}
	p := openPace(t, "k-asp:k=2", 3, lanes)
	push(t, p, 2)
	if got := lanes.take(); got != "" {
		t.Errorf("one gradient of two: %s", got)
	}
	push(t, p, 1)
	if got, want := lanes.take(), "admit 1 to 0 times 1; admit 2 to 0 times 1; update of 2 rate 0.6667"; got != want {
		t.Errorf("told %q, want %q", got, want)
	}
	p.updated()
	if got := lanes.take(); got != "" {
		t.Errorf("an update in one lane of two: %s", got)
	}
	p.updated()
	if got, want := lanes.take(), "let go 1 to step 1 pull true alone false; let go 2 to step 1 pull true alone false"; got != want {
		t.Errorf("told %q, want %q", got, want)
	}
}

// What a policy cancelled before another took over is of no policy's.
func TestAStepThatWasCancelledBeforeAChangeIsLeftOut(t *testing.T) {
	lanes := &told{}
	p := openPace(t, "k-bsp:k=1", 2, lanes)
	push(t, p, 0)
	p.updated()
	p.updated()
	spec, err := policy.Parse("k-batch-asp:k=1")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.change(spec, 4); err != nil {
		t.Fatal(err)
	}
	push(t, p, 0)
	p.updated()
	p.updated()
	lanes.take()
	if err := errors.Join(p.announce(1, &chunk.TensorRecord{}, 5), p.end(1, 6), p.end(1, 7)); err != nil {
		t.Fatal(err)
	}
	got := lanes.take()
	if !strings.HasPrefix(got, "leave out 1; let go 1 to step ") || !strings.HasSuffix(got, "pull true alone false") {
		t.Errorf("told %q", got)
	}
}

func TestAJobWithoutAccumulatorsTakesNoPolicyOfSets(t *testing.T) {
	p := openPace(t, "asp", 2, &told{})
	spec, err := policy.Parse("k-bsp:k=1")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.change(spec, 1); err == nil || !strings.Contains(err.Error(), "begin it with such a policy") {
		t.Errorf("%v", err)
	}
}
