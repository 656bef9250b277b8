package study

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"testing"
)

func TestStatisticsAreThoseOfSciPy(t *testing.T) {
	// The example of scipy.stats.levene's documentation, with center="median", and stats.f, in SciPy 1.10.
	a := Values{8.88, 9.12, 9.04, 8.98, 9.00, 9.08, 9.01, 8.85, 9.06, 8.99}
	b := Values{8.88, 8.95, 9.29, 9.44, 9.15, 9.58, 8.36, 9.18, 8.67, 9.05}
	c := Values{8.95, 9.12, 8.95, 8.85, 9.03, 8.84, 9.07, 8.98, 8.86, 8.98}
	near := func(what string, got, want float64) {
		if math.Abs(got-want) > 1e-9*max(1, math.Abs(want)) {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	}
	f, p := BrownForsythe(a, b, c)
	near("statistic", f, 7.584952754501659)
	near("p", p, 0.002431505967249681)
	f, p = BrownForsythe(a, b[:9]) // an odd number of values
	near("statistic", f, 8.363001652617658)
	near("p", p, 0.010135331897805392)
	near("interval", Values{1, 2, 3}.Half(), 1.96/math.Sqrt(3))
	near("quartile", Values{4, 1, 3, 2}.Quantile(0.25), 1.75)
	near("median", Values{3, 1, 2}.Median(), 2)
	if f, p := BrownForsythe(Values{1, 1}, Values{2, 2}); f != 0 || p != 1 {
		t.Errorf("samples without variance: %v, %v", f, p)
	}
}

func TestRowsAreComparedRunByRun(t *testing.T) {
	base := &Row{Runs: []Outcome{{Accuracy: 90, ToTarget: 4}, {Accuracy: 80}, {Accuracy: 70, ToTarget: 5}}}
	r := &Row{Runs: []Outcome{{Accuracy: 91, ToTarget: 2}, {Accuracy: 79, ToTarget: 3}, {Accuracy: 72}}, Base: base}
	toTarget := func(o *Outcome) float64 { return o.ToTarget }
	for what, c := range map[string]struct{ got, want Values }{
		"of": {r.Of(toTarget), Values{2, 3, 0}}, "had": {r.Had(toTarget), Values{2, 3}}, "over": {r.Over(toTarget), Values{0.5}},
		"above": {r.Above(base, Accuracy), Values{1, -1, 2}},
	} {
		if fmt.Sprint(c.got) != fmt.Sprint(c.want) {
			t.Errorf("%s: %v, want %v", what, c.got, c.want)
		}
	}
	if got := (Values{1, 2, 3}).Quartiles("%.1f") + (Values{}).Quartiles("%.1f"); got != "2.0 (1.5-2.5)-" {
		t.Errorf("quartiles %q", got)
	}
}

// group has a study of two ways, whose accuracy is 10 or 20 more than the number of the run.
func group(fail error) *Group {
	columns := []Column{{"accuracy", func(r *Row) string { return fmt.Sprint(r.Of(Accuracy)) }}}
	rows := func(context.Context, *Config) (rows []Row, err error) {
		for i, way := range []string{"slow", "fast"} {
			rows = append(rows, Row{Cluster: "1:3", Way: way, Train: func(_ context.Context, run int) (Outcome, error) {
				return Outcome{Accuracy: float64(10*(i+1) + run), Note: way[:i]}, fail
			}})
		}
		return rows, nil
	}
	return &Group{Head: "all", Fewest: 2, Because: ", because", Plans: []Plan{
		{Name: "one", Title: "One", Setting: "set", Heads: "cluster\tway", Columns: columns, Rows: rows, Tell: func(s *Study) {
			s.Find("fast has %g", s.Rows[0].Beside("fast").Runs[0].Accuracy)
		}},
		{Name: "two", Title: "Two", Heads: "way", Columns: columns, Rows: rows, Runs: func(int) int { return 1 }, Alone: true},
	}}
}

func TestStudiesAreTablesOfAllRuns(t *testing.T) {
	var out, log strings.Builder
	studies, err := group(nil).Run(t.Context(), Config{Seeds: 2, Log: &log}, &out)
	if err != nil || len(studies) != 2 || len(studies[0].Rows[1].Runs) != 2 || len(studies[1].Rows[1].Runs) != 1 {
		t.Fatalf("%+v, %v", studies, err)
	}
	const want = `# all; 2 seeds

# one: One
# set
cluster  way   accuracy
1:3      slow  [10 11]
1:3      fast  [20 21]
# fast: f
# fast: f
# fast has 20
`
	if !strings.HasPrefix(out.String(), want) || !strings.Contains(out.String(), "\nslow  [10]\n") {
		t.Errorf("printed:\n%s\nwant:\n%s", out.String(), want)
	}
	if !strings.Contains(log.String(), "one: 100% (4/4)") {
		t.Errorf("progress:\n%s", log.String())
	}
}

func TestWhatCannotBeStudiedIsRefused(t *testing.T) {
	broken := errors.New("broken")
	for _, c := range []struct {
		cfg  Config
		fail error
		want string
	}{
		{Config{Seeds: 1}, nil, "1 seeds: use 2 to 1000, because"},
		{Config{Seeds: 1001}, nil, "1001 seeds: use 2 to 1000"},
		{Config{Seeds: 3, Only: []string{"tw"}}, nil, `unknown study "tw": use one, two`},
		{Config{Seeds: 3, Only: []string{"two"}}, broken, "study two: slow 1:3: broken"},
	} {
		if _, err := group(c.fail).Run(t.Context(), c.cfg, io.Discard); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v, want %q", err, c.want)
		}
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(broken)
	if _, err := group(nil).Run(ctx, Config{Seeds: 3}, io.Discard); !errors.Is(err, broken) {
		t.Errorf("a study whose context has ended returns %v", err)
	}
}
