package peers

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/rackweave/rackweave/bench/report"
)

// shell is a peer whose settings are shell scripts; they see the exchange as $1 iterations of $3 and $4 bytes,
// and the tensors' file as $2.
type shell struct{ err error }

func (s shell) probe(context.Context) error { return s.err }

func (shell) command(_ context.Context, spec Spec, s setting, _, tensors string) ([]string, error) {
	return []string{"sh", "-c", s.args[0], "sh", fmt.Sprint(spec.Iters), tensors, spec.DType, fmt.Sprint(spec.Bytes)}, nil
}

// takes prints a result in which every iteration took the microseconds.
func takes(us int) string {
	return fmt.Sprintf(`echo chatter; times=%d; i=1; while [ $i -lt $1 ]; do times="$times,%d"; i=$((i+1)); done;
		echo '{"version":"shell 1","transport":"none","wrong":2,"times_us":['$times']}'`, us, us)
}

var exchange = Spec{Workers: 2, Bytes: 1000, DType: "f32", Iters: 3}

func TestThePeerRunsWithItsFastestSettingAndTellsTheOthers(t *testing.T) {
	runs := filepath.Join(t.TempDir(), "runs")
	count := "echo run >>" + runs + ";"
	p := newPeer("shell", shell{}, []setting{
		{"slow", []string{count + takes(900)}}, {"fast", []string{count + takes(300)}}, {"broken", []string{count + "exit 4"}},
		{"middling", []string{count + takes(500)}},
	})
	want := report.Times{
		Name: "shell", Version: "shell 1", Setting: "fast", Transport: "none", Bytes: 1000, Workers: 2, Wrong: 2,
		TimeUS: report.TimeUS{Min: 300, Mean: 300, P50: 300, P99: 300, Max: 300},
		Tried:  map[string]float64{"slow": 900, "fast": 300, "broken": 0, "middling": 500},
	}
	for range 2 {
		got, err := p.Run(t.Context(), exchange)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("times (-want +got):\n%s", diff)
		}
	}
	if log, _ := os.ReadFile(runs); strings.Count(string(log), "run") != 4+2 {
		t.Errorf("%d runs, want 4 trials and 2", strings.Count(string(log), "run"))
	}
}

func TestAPeerThatFailsWithEverySettingSaysWhyAndIsNotTriedAgain(t *testing.T) {
	runs := filepath.Join(t.TempDir(), "runs")
	p := newPeer("shell", shell{}, []setting{{"as installed", []string{"echo run >>" + runs + "; echo no room >&2; exit 4"}}})
	for range 2 {
		_, err := p.Run(t.Context(), exchange)
		if err == nil || !strings.Contains(err.Error(), "shell (as installed): running sh: exit status 4: no room") {
			t.Errorf("error = %v, want the setting, the status and what was written to stderr", err)
		}
	}
	if log, _ := os.ReadFile(runs); string(log) != "run\n" {
		t.Errorf("runs: %q, want one", log)
	}
}

func TestAPeerWithoutTheTypeDoesTheExchangeInF32(t *testing.T) {
	for name, script := range map[string]string{
		"the script says so":  `[ "$3" = f32 ] || exit 3; [ "$4 $(tr '\n' ' ' <$2)" = "2000 800 1200 " ] || exit 1; ` + takes(5),
		"the command says so": `[ "$4" = 2000 ] || exit 1; ` + takes(5),
	} {
		t.Run(name, func(t *testing.T) {
			var l launcher = shell{}
			if name == "the command says so" {
				l = onlyF32{shell{}}
			}
			p := newPeer("shell", l, []setting{{"as installed", []string{script}}})
			spec := exchange
			spec.DType, spec.Tensors = "bf16", []uint64{400, 600}
			got, err := p.Run(t.Context(), spec)
			if err != nil {
				t.Fatal(err)
			}
			if got.Setting != "as installed, in f32" || got.Bytes != 2000 || got.TimeUS.P50 != 5 {
				t.Errorf("times = %+v, want 2000 bytes in f32", got)
			}
			if spec.Tensors[0] != 400 {
				t.Error("the caller's tensors were changed")
			}
		})
	}
}

// onlyF32 refuses other types before anything is run.
type onlyF32 struct{ shell }

func (l onlyF32) command(ctx context.Context, spec Spec, s setting, dir, tensors string) ([]string, error) {
	if spec.DType != "f32" {
		return nil, ErrUnsupported
	}
	return l.shell.command(ctx, spec, s, dir, tensors)
}

func TestTensorsReachThePeerAsALineEach(t *testing.T) {
	p := newPeer("shell", shell{}, []setting{{"x", []string{`[ "$(tr '\n' ' ' <$2)" = "4 400 596 " ] && ` + takes(1)}}})
	spec := exchange
	spec.Tensors = []uint64{4, 400, 596}
	if _, err := p.Run(t.Context(), spec); err != nil {
		t.Error(err)
	}
}

func TestImpossibleExchangesAreRefused(t *testing.T) {
	p := newPeer("shell", shell{}, []setting{{"x", []string{takes(1)}}})
	for name, spec := range map[string]Spec{
		"0 workers":            {Bytes: 1000, Iters: 1},
		"0 bytes":              {Workers: 1, Iters: 1},
		"0 iterations":         {Workers: 1, Bytes: 1000},
		"tensors of 500 bytes": {Workers: 1, Bytes: 1000, DType: "f32", Iters: 1, Tensors: []uint64{500}},
	} {
		if _, err := p.Run(t.Context(), spec); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("error = %v, want one with %q", err, name)
		}
	}
}

func TestResultsThatAreNone(t *testing.T) {
	for printed, want := range map[string]string{
		"":                          "no result",
		"hello\n":                   "no result",
		`{"times_us": [1, 2`:        "reading the result",
		`{"times_us": [1, 2]}`:      "2 times, want 3",
		`{"times_us": ["a"]}`:       "reading the result",
		`{"wrong": -1}` + "\n":      "reading the result",
		"x\n{\"times_us\": null}\n": "0 times, want 3",
	} {
		if _, err := parseOutput([]byte(printed), 3); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error = %v, want one with %q", printed, err, want)
		}
	}
}

func FuzzParseOutput(f *testing.F) {
	f.Add(`{"version": "1", "times_us": [1.5, 2, 3], "wrong": 0}`, 3)
	f.Add("chatter\n{", 0)
	f.Fuzz(func(t *testing.T, printed string, iters int) {
		if out, err := parseOutput([]byte(printed), iters); err == nil && len(out.TimesUS) != iters {
			t.Errorf("%d times were taken for %d", len(out.TimesUS), iters)
		}
	})
}

func TestByName(t *testing.T) {
	found, err := ByName(Names)
	if err != nil {
		t.Fatal(err)
	}
	for i, p := range found {
		if p.Name != Names[i] {
			t.Errorf("ByName(%q) is %q", Names[i], p.Name)
		}
	}
	if _, err := ByName([]string{"gloo", "nccl"}); err == nil || !strings.Contains(err.Error(), `"nccl"`) {
		t.Errorf("error = %v, want one that names nccl", err)
	}
}

func TestAlternateGoesRoundAndComparesRoundsWithThemselves(t *testing.T) {
	log := filepath.Join(t.TempDir(), "log")
	a := newPeer("a", shell{}, []setting{{"s", []string{"echo a >>" + log + ";" + takes(700)}}})
	b := newPeer("b", shell{}, []setting{{"s", []string{"exit 1"}}})
	c := newPeer("c", shell{fmt.Errorf("%w; install it: apt-get install -y c", ErrMissing)}, nil)
	us := []float64{100, 200, 100}
	ours := func(context.Context) (report.Times, error) {
		f, err := os.OpenFile(log, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			return report.Times{}, err
		}
		defer f.Close()
		_, err = f.WriteString("ours\n")
		next := us[0]
		us = us[1:]
		return report.Times{Name: "ours", Bytes: exchange.Bytes, Workers: 2, TimeUS: report.TimeUS{P50: next}}, err
	}
	var lines strings.Builder
	peers := []*Peer{a, b, c}
	got, err := Alternate(t.Context(), ours, peers, exchange, 3, &lines)
	if err != nil {
		t.Fatal(err)
	}
	if order, _ := os.ReadFile(log); string(order) != "ours\na\na\nours\na\nours\na\n" { // a's first is its trial
		t.Errorf("order of runs: %q", order)
	}
	if len(got.Contenders) != 3 || got.Contenders[0].MedianUS != 100 || got.Contenders[1].Ratio != 7 ||
		got.Contenders[1].RatioMin != 3.5 {
		t.Errorf("contenders = %+v, want ours at 100 us, a at a ratio of 7 with 3.5 the least, and b", got.Contenders)
	}
	if b := got.Contenders[2]; b.Name != "b" || !strings.Contains(b.Error, "exit status 1") {
		t.Errorf("b = %+v, want its failure", b)
	}
	if hint := got.Missing["c"]; !strings.Contains(hint, "apt-get install -y c") {
		t.Errorf("missing c = %q, want what installs it", hint)
	}
	if !strings.Contains(lines.String(), "compare: 70% (9/12)") {
		t.Errorf("progress: %q, want it to reach 9 of 12", lines.String())
	}
}

func TestAlternateEndsWithOursAndWithItsContext(t *testing.T) {
	broken := errors.New("broken")
	if _, err := Alternate(t.Context(), func(context.Context) (report.Times, error) { return report.Times{}, broken }, nil, exchange,
		1, nil); !errors.Is(err, broken) {
		t.Errorf("error = %v, want ours", err)
	}
	if _, err := Alternate(t.Context(), nil, nil, exchange, 0, nil); err == nil {
		t.Error("no error for 0 rounds")
	}
	ctx, cancel := context.WithCancel(t.Context())
	slow := newPeer("slow", shell{}, []setting{{"s", []string{"sleep 60"}}})
	ours := func(context.Context) (report.Times, error) {
		time.AfterFunc(50*time.Millisecond, cancel)
		return report.Times{Workers: 1, TimeUS: report.TimeUS{P50: 1}}, nil
	}
	if _, err := Alternate(ctx, ours, []*Peer{slow}, exchange, 1, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("error = %v, want the context's", err)
	}
}

func TestWhatWasComparedBeforeAnInterruptIsKept(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	a := newPeer("a", shell{}, []setting{{"s", []string{takes(700)}}})
	runs := 0
	got, err := Alternate(ctx, func(context.Context) (report.Times, error) {
		if runs++; runs == 3 {
			cancel()
			return report.Times{}, context.Canceled
		}
		return report.Times{Name: "ours", Workers: 2, TimeUS: report.TimeUS{P50: 100}}, nil
	}, []*Peer{a}, exchange, 5, nil)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("error = %v, want the context's", err)
	}
	if got.Rounds != 2 || len(got.Contenders) != 2 || got.Contenders[1].Ratio != 7 {
		t.Errorf("%d rounds of %+v, want the two before the interrupt", got.Rounds, got.Contenders)
	}
}
