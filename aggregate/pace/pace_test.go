package pace

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/rackweave/rackweave/aggregate/reduce"
	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/policy"
)

// recorder records the calls of a gate to its lanes.
type recorder struct{ lines []string }

func (l *recorder) note(format string, args ...any) {
	l.lines = append(l.lines, fmt.Sprintf(format, args...))
}

func (l *recorder) Admit(rank int, set uint64, weight float64) {
	l.note("admit %d to %d times %.4g", rank, set, weight)
}

func (l *recorder) LeaveOut(rank int) { l.note("leave out %d", rank) }

func (l *recorder) UpdateSet(u Update) { l.note("update of %d rate %.4g", u.Size, u.Rate) }

func (l *recorder) Release(rank int, answer chunk.TensorRecord, next reduce.Standing) {
	l.note("let go %d to step %d pull %v alone %v", rank, answer.Step, answer.Flags&chunk.RecordPull != 0, next == reduce.Alone)
}

func (l *recorder) Lose(rank int) { l.note("go on without %d", rank) }

// take returns the calls since the last take.
func (l *recorder) take() string {
	out := strings.Join(l.lines, "; ")
	l.lines = nil
	return out
}

func TestPaceRefusesStepsThatCannotBe(t *testing.T) {
	for _, policyText := range []string{"bsp", "k-batch-asp:k=2", "asp"} {
		for _, tc := range []struct {
			name, want string
			do         func(p *Gate) error
		}{
			{"announced twice", "worker 0 announced step 0 before it ended step 0", func(p *Gate) error {
				return errors.Join(p.Announce(0, &chunk.TensorRecord{}, 1), p.Announce(0, &chunk.TensorRecord{}, 2))
			}},
			{"skipped", "step 1", func(p *Gate) error { return p.Announce(0, &chunk.TensorRecord{Step: 1}, 1) }},
			{"before the first", "step 4294967295", func(p *Gate) error {
				return p.Announce(0, &chunk.TensorRecord{Step: 1<<32 - 1}, 1)
			}},
			{"not announced", "worker 0 ended step 0, which it did not announce", func(p *Gate) error {
				return errors.Join(p.End(0, 1), p.End(0, 2))
			}},
		} {
			t.Run(policyText+" "+tc.name, func(t *testing.T) {
				p := openPace(t, policyText, 2, &recorder{})
				if err := tc.do(p); !errors.Is(err, policy.ErrEvent) || !strings.Contains(err.Error(), tc.want) ||
					!strings.Contains(err.Error(), "worker 0") {
					t.Errorf("%v: want %q", err, tc.want)
				}
			})
		}
	}
}

// A set with some of a lost worker's step makes no update. A set with all or none of it makes one.
func TestALostWorkersStepIsInNoUpdateUnlessAllOfItIs(t *testing.T) {
	for name, tc := range map[string]struct {
		policy string
		ended  bool
		want   string
	}{
		"undecided": {"backup:b=1", false, "go on without 0; admit 1 to 0 times 1; admit 2 to 0 times 1; update of 2 rate 1"},
		"part of it is in": {"k-batch-asp:k=2", false,
			"admit 0 to 0 times 1; go on without 0; admit 1 to 0 times 1; update of 0 rate 0"},
		"the whole is in": {"k-batch-asp:k=2", true,
			"admit 0 to 0 times 1; let go 0 to step 1 pull true alone false; go on without 0; admit 1 to 0 times 1; update of 2 rate 0.6667"},
	} {
		t.Run(name, func(t *testing.T) {
			lanes := &recorder{}
			p := openPace(t, tc.policy, 3, lanes)
			var cancelled []uint64
			p.log = func(a policy.Act) {
				if a.Kind == policy.Cancel {
					cancelled = append(cancelled, a.Step)
				}
			}
			if spared, _ := p.Lose(0, 1); spared {
				t.Error("a worker is spared before anybody has begun a step")
			}
			if err := p.Announce(0, &chunk.TensorRecord{}, 1); err != nil {
				t.Fatal(err)
			}
			if tc.ended {
				if err := errors.Join(p.End(0, 1), p.End(0, 1)); err != nil {
					t.Fatal(err)
				}
			}
			for try, first := range []bool{true, false} {
				if spared, news := p.Lose(0, 1); !spared || news != first {
					t.Errorf("try %d: spared %v, news %v", try, spared, news)
				}
			}
			if err := p.End(0, 1); err != nil {
				t.Errorf("a lane that has not heard of it: %v", err)
			}
			push(t, p, 1)
			push(t, p, 2)
			if got := lanes.take(); !strings.HasPrefix(got, tc.want) {
				t.Errorf("told  %q,\nwant %q", got, tc.want)
			}
			if dropped := strings.Contains(tc.want, "update of 0"); dropped != slices.Equal(cancelled, []uint64{0}) {
				t.Errorf("sets %v make no update", cancelled)
			}
		})
	}
}

// Only workers that a policy can do without are spared, including workers that the next policy of a change can do without.
func TestNoMoreWorkersAreSparedThanThePolicyCanDoWithout(t *testing.T) {
	for text, want := range map[string]int{"bsp": 0, "backup:b=1": 1, "k-bsp:k=2": 2, "k-asp:k=4": 0, "softsync:m=2": 2, "asp": 3,
		"strategy-switch": 0} {
		p, spared := openPace(t, text, 4, &recorder{}), 0
		for rank := range 4 {
			p.begun = true
			if ok, _ := p.Lose(rank, 1); ok {
				spared++
			}
		}
		if spared != want {
			t.Errorf("%s: %d of 4 workers were spared, want %d", text, spared, want)
		}
	}
	p := openPace(t, "k-bsp:k=2", 4, &recorder{})
	push(t, p, 0)
	spec, _ := policy.Parse("bsp")
	if _, err := p.Change(spec, 1); err != nil {
		t.Fatal(err)
	}
	if spared, _ := p.Lose(0, 1); spared {
		t.Error("a worker was spared although bsp is to decide next")
	}
}

func openPace(t *testing.T, text string, workers int, lanes *recorder) *Gate {
	t.Helper()
	spec, err := policy.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	p, err := New(spec, workers, 2, func(f func(Shard)) { f(lanes) }, nil)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// push announces a worker's step and ends it in both lanes.
func push(t *testing.T, p *Gate, rank int) {
	t.Helper()
	step := uint32(p.runner.Clock(rank))
	if err := errors.Join(p.Announce(rank, &chunk.TensorRecord{Step: step}, 1), p.End(rank, 2), p.End(rank, 3)); err != nil {
		t.Fatal(err)
	}
}

func TestWorkersWaitForTheUpdateThatTheyAreToSee(t *testing.T) {
	lanes := &recorder{}
	p := openPace(t, "k-asp:k=2", 3, lanes)
	push(t, p, 2)
	if got := lanes.take(); got != "" {
		t.Errorf("one gradient of two: %s", got)
	}
	push(t, p, 1)
	if got, want := lanes.take(), "admit 1 to 0 times 1; admit 2 to 0 times 1; update of 2 rate 0.6667"; got != want {
		t.Errorf("told %q, want %q", got, want)
	}
	p.Updated()
	if got := lanes.take(); got != "" {
		t.Errorf("an update in one lane of two: %s", got)
	}
	p.Updated()
	if got, want := lanes.take(), "let go 1 to step 1 pull true alone false; let go 2 to step 1 pull true alone false"; got != want {
		t.Errorf("told %q, want %q", got, want)
	}
}

// A step that a policy cancelled before another took over belongs to no policy.
func TestAStepThatWasCancelledBeforeAChangeIsLeftOut(t *testing.T) {
	lanes := &recorder{}
	p := openPace(t, "k-bsp:k=1", 2, lanes)
	push(t, p, 0)
	p.Updated()
	p.Updated()
	spec, err := policy.Parse("k-batch-asp:k=1")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Change(spec, 4); err != nil {
		t.Fatal(err)
	}
	push(t, p, 0)
	p.Updated()
	p.Updated()
	lanes.take()
	if err := errors.Join(p.Announce(1, &chunk.TensorRecord{}, 5), p.End(1, 6), p.End(1, 7)); err != nil {
		t.Fatal(err)
	}
	got := lanes.take()
	if !strings.HasPrefix(got, "leave out 1; let go 1 to step ") || !strings.HasSuffix(got, "pull true alone false") {
		t.Errorf("told %q", got)
	}
}

func TestAJobWithoutAccumulatorsTakesNoPolicyOfSets(t *testing.T) {
	p := openPace(t, "asp", 2, &recorder{})
	spec, err := policy.Parse("k-bsp:k=1")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Change(spec, 1); err == nil || !strings.Contains(err.Error(), "begin it with such a policy") {
		t.Errorf("%v", err)
	}
}
