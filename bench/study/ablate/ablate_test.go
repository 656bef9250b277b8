package ablate

import (
	"context"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/rackweave/rackweave/aggregate/optim"
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
	defer l.close()
	l.threads = 3 // shares of chunks that are not equal
	var grads [][]float32
	for _, g := range l.grads {
		grads = append(grads, l.array(g))
	}
	want, momentum := slices.Clone(l.array(l.w)), make([]float32, l.bytes/4)
	optim.Update(optim.SGDMXNet, &l.scalars, want, [optim.MaxStates][]float32{momentum}, grads, nil)

	works := map[string]func() error{
		"two passes": func() error { return l.twoPasses(workers) },
		"rank order": func() error { return l.aggregate(workers, 1, false) },
		"one pass":   func() error { return l.onePass(workers) },
	}
	for name, work := range works {
		l.reset()
		if err := work(); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if !equal(l.array(l.w), want) || !equal(l.array(l.m), momentum) {
			t.Errorf("%s: the parameters or their momentum differ from plain Go's", name)
		}
	}

	l.reset()
	if err := l.aggregate(workers, 1, true); err != nil {
		t.Fatal(err)
	}
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
	defer l.close()
	if n, err := l.changed(4, false); err != nil || n != 0 {
		t.Errorf("rank order: %d parameters change, %v", n, err)
	}
	if n, err := l.changed(4, true); err != nil || n == 0 {
		t.Errorf("arrival order: %d parameters change, %v", n, err)
	}
}

func TestEveryAblationIsMeasuredAndTabled(t *testing.T) {
	all, err := Run(t.Context(), Config{Rounds: 1, quick: true})
	if err != nil {
		t.Fatal(err)
	}
	var table strings.Builder
	if err := all.WriteTable(&table); err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, a := range all.Ablations {
		names = append(names, a.Name)
		if a.Title == "" || a.Setting == "" || len(a.Findings) == 0 || len(a.Workers) < 2 {
			t.Errorf("%s is not described: %+v", a.Name, a)
		}
		for _, s := range a.Series {
			if len(s.Values) != len(a.Workers) || slices.Min(s.Values) <= 0 {
				t.Errorf("%s, %s: %d numbers of workers, values %v", a.Name, s.Label, len(a.Workers), s.Values)
			}
		}
		for _, want := range append([]string{a.Title, a.Setting}, a.Findings...) {
			if !strings.Contains(table.String(), want) {
				t.Errorf("the table lacks %q:\n%s", want, table.String())
			}
		}
	}
	if !slices.Equal(names, Names()) {
		t.Errorf("measured %v, want %v", names, Names())
	}
}

func TestAnAblationThatCannotBeDoneIsNamed(t *testing.T) {
	for _, tc := range []struct {
		cfg   Config
		wants []string
	}{
		{Config{Rounds: 1, Only: []string{"fused", "fuse"}}, []string{`"fuse"`, "fused, order"}},
		{Config{Rounds: 0}, []string{"0 rounds", "1 to 1000"}},
	} {
		_, err := Run(t.Context(), tc.cfg)
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
	_, err := Run(ctx, Config{Rounds: 1, quick: true, Only: []string{"fused"}})
	if err == nil || !strings.Contains(err.Error(), "cancel") {
		t.Errorf("error %v, want one of cancellation", err)
	}
}
