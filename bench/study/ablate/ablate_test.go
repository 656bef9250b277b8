package ablate

import (
	"context"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/rackweave/rackweave/aggregate/optim"
	"github.com/rackweave/rackweave/bench/study"
)

// equal reports whether two arrays have the same bits.
func equal(a, b []float32) bool {
	return slices.EqualFunc(a, b, func(x, y float32) bool { return math.Float32bits(x) == math.Float32bits(y) })
}

// Every way to aggregate that is timed gives the parameters that plain Go gives, but adding on arrival.
func TestTheAlternativesDoTheSameWork(t *testing.T) {
	const workers = 5
	l, err := newWorkload(workers, 4<<20)
	if err != nil {
		t.Fatal(err)
	}
	defer l.arena.Close()
	l.threads = 3 // shares of chunks that are not equal
	var grads [][]float32
	for _, g := range l.grads {
		grads = append(grads, l.array(g))
	}
	want, momentum := slices.Clone(l.array(l.w)), make([]float32, l.bytes/4)
	optim.Update(optim.SGDMXNet, &l.scalars, want, [optim.MaxStates][]float32{momentum}, grads, nil)

	works := map[string]func(workers int){"two passes": l.twoPasses, "rank order": l.inRankOrder, "one pass": l.onePass}
	for name, work := range works {
		l.reset()
		work(workers)
		if !equal(l.array(l.w), want) || !equal(l.array(l.m), momentum) {
			t.Errorf("%s: the parameters or their momentum differ from plain Go's", name)
		}
	}

	l.reset()
	l.onArrival(workers)
	for i, v := range l.array(l.w) {
		if d := v - want[i]; d > 1e-5 || d < -1e-5 {
			t.Fatalf("added on arrival: parameter %d is %v, want about %v", i, v, want[i])
		}
	}
}

func TestOnlyAddingOnArrivalDependsOnTheOrder(t *testing.T) {
	l, err := newWorkload(4, 2<<20)
	if err != nil {
		t.Fatal(err)
	}
	defer l.arena.Close()
	if n := l.changed((*workload).inRankOrder); n != 0 {
		t.Errorf("rank order: %d parameters change", n)
	}
	if n := l.changed((*workload).onArrival); n == 0 {
		t.Error("arrival order: no parameter changes")
	}
}

func TestEveryAblationIsMeasuredAndTabled(t *testing.T) {
	tables, err := run(t.Context(), &study.Config{Runs: 1}, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	if err := study.Write(&text, "", tables); err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, a := range tables {
		names = append(names, a.Name)
		if a.Title == "" || a.Setting == "" || len(a.Findings) == 0 || len(a.Cells) < 2 {
			t.Errorf("%s is not described: %+v", a.Name, a)
		}
		for i, cells := range a.Cells {
			if len(cells) != len(a.Head) || cells[0] != strconv.Itoa(workerCounts[i]) || slices.Contains(cells, "0.00") {
				t.Errorf("%s: a row of %v below %v", a.Name, cells, a.Head)
			}
		}
		for _, want := range append([]string{a.Title, a.Setting}, a.Findings...) {
			if !strings.Contains(text.String(), want) {
				t.Errorf("the table lacks %q:\n%s", want, text.String())
			}
		}
	}
	if !slices.Equal(names, Names()) {
		t.Errorf("measured %v, want %v", names, Names())
	}
}

func TestAnAblationThatCannotBeDoneIsNamed(t *testing.T) {
	for _, tc := range []struct {
		cfg   study.Config
		wants []string
	}{
		{study.Config{Runs: 1, Only: []string{"fused", "fuse"}}, []string{`"fuse"`, "fused, order"}},
		{study.Config{Runs: 0}, []string{"0 rounds", "1 to 1000"}},
	} {
		err := Run(t.Context(), tc.cfg, io.Discard)
		if err == nil {
			t.Errorf("%+v: no error", tc.cfg)
			continue
		}
		for _, want := range tc.wants {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("error %q does not mention %q", err, want)
			}
		}
	}
}

func TestACancelledAblationEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := run(ctx, &study.Config{Runs: 1, Only: []string{"fused"}}, 1<<20)
	if err == nil || !strings.Contains(err.Error(), "cancel") {
		t.Errorf("error %v, want one of cancellation", err)
	}
}
