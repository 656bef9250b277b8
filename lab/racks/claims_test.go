package racks

import (
	"context"
	"errors"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/rackweave/rackweave/bench/report"
	"github.com/rackweave/rackweave/hierarchy"
)

// rowOf is a row over two racks.
func rowOf(name, shape string, seconds, bound, predicted float64) Row {
	return Row{
		Fabric: Config{Racks: 2, Workers: 4, Rate: 100e6, Core: 8}, Model: "m", Bytes: 3e6, Shape: shape, Predicted: predicted,
		Measured: Measured{Name: name, Seconds: seconds, Bound: bound, CPU: 0.2, Uplinks: 3e6},
	}
}

func TestATableSaysWhatIsVoid(t *testing.T) {
	quiet := rowOf("ours", "", 1, 0.9, 0)
	quiet.Note = "quiet"
	busy := rowOf("theirs", "", 2, 1.5, 1.9)
	busy.CPU = 0.9
	lossy := rowOf("lossy", "", 2, 1.5, 0)
	lossy.Losses = 5000
	crowded := rowOf("crowded", "", 2, 1.5, 0)
	crowded.Others = 0.5
	missing := Row{Fabric: quiet.Fabric, Model: "m", Measured: Measured{Name: "missing"}, Error: "not\ninstalled"}
	rows := []Row{quiet, busy, lossy, crowded, missing}
	var out strings.Builder
	if err := WriteTable(&out, report.Machine{}, rows); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`1\.11 +1\.00 +1\.000 +quiet`, `1\.33 +1\.90 s +2\.00 +1\.000 +cores 90% busy`, "5000 segments lost",
		"other programs kept 50% of the cores busy", "not installed"} {
		if !regexp.MustCompile(want).MatchString(out.String()) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
}

// Each claim fails for rows that contradict it, and is void for rows of a busy machine.
func TestClaimsFailByWhatContradictsThem(t *testing.T) {
	good := func() []Row {
		sharded := rowOf("sharded", "sharded", 0.49, 0, 0)
		flat := rowOf("flat", "flat", 1.96, 0, 0)
		flat.Uplinks *= 4
		for _, r := range []*Row{&sharded, &flat} {
			shape := r.Shape
			planned := shapesNamed(t, r, shape)
			r.Bound, r.Predicted = planned.Bound, planned.Predicted
			r.Seconds = r.Bound * 1.02
		}
		return []Row{sharded, flat}
	}
	fails := func(rows []Row) (names []string) {
		for _, c := range Claims(rows) {
			if !c.Holds && !c.Void {
				names = append(names, c.Text)
			}
		}
		return names
	}
	if all := Claims(good()); len(all) != 10 || len(fails(good())) > 0 {
		t.Fatalf("%+v", all)
	}
	for name, tc := range map[string]struct {
		spoil func([]Row)
		want  string
	}{
		"slow":             {func(r []Row) { r[0].Seconds *= 1.1 }, "m: sharded: at most 1.10 of the bound"},
		"predicted short":  {func(r []Row) { r[0].Predicted *= 0.8 }, "m: sharded: predicted within 15%"},
		"simulated short":  {func(r []Row) { r[1].Seconds *= 1.3 }, "m: flat: simulated within 15%"},
		"bytes":            {func(r []Row) { r[0].Uplinks *= 1.04 }, "m: sharded: an uplink carries 1.00 models a step"},
		"pick":             {func(r []Row) { r[1].Predicted = 0.1 }, "m: flat: the planner's pick takes at most 1.05 of the fastest"},
		"flat is not slow": {func(r []Row) { r[1].Seconds /= 1.5 }, "m: flat: at least 3 times sharded"},
	} {
		rows := good()
		tc.spoil(rows)
		if got := fails(rows); !slices.ContainsFunc(got, func(text string) bool { return strings.HasSuffix(text, tc.want) }) {
			t.Errorf("%s: %q do not hold, expected %q among them", name, got, tc.want)
		}
		for i := range rows {
			rows[i].Others = 0.9
		}
		if got := fails(rows); len(got) > 0 {
			t.Errorf("%s: a busy machine's rows tell of %q", name, got)
		}
	}
	var out strings.Builder
	rows := good()
	rows[0].Seconds *= 1.1
	if n := WriteClaims(&out, Claims(rows)); n != 1 || !strings.Contains(out.String(), "FAILS") {
		t.Errorf("%d fail:\n%s", n, out.String())
	}
}

// shapesNamed is a row with what is planned for its shape.
func shapesNamed(t *testing.T, r *Row, name string) Row {
	t.Helper()
	shape, err := hierarchy.ParseShape(name)
	if err != nil {
		t.Fatal(err)
	}
	return r.planned(shape)
}

// A study that is interrupted goes on where it was, and measures again what failed or was void.
func TestAStudyMeasuresWhatItsRecordLacks(t *testing.T) {
	rec := &Record{}
	void, failed := rowOf("void", "", 1, 1, 0), rowOf("failed", "", 0, 1, 0)
	void.Others, failed.Error = 0.9, "lost"
	for _, r := range []Row{rowOf("good", "", 1, 1, 0), void, failed} {
		rec.put(r)
	}
	for name, want := range map[string]bool{"good": true, "void": false, "failed": false, "new": false} {
		row := rowOf(name, "", 0, 0, 0)
		if rec.has(row.Key()) != want {
			t.Errorf("%s: measured before: %v", row.Key(), !want)
		}
	}
	again := rowOf("void", "", 3, 1, 0)
	rec.put(again)
	if len(rec.Rows) != 3 || rec.Rows[1].Seconds != 3 || !rec.has(again.Key()) {
		t.Errorf("%+v", rec.Rows)
	}
}

func TestAStudysListNamesEachExchangeOnce(t *testing.T) {
	s := Study{Settings: Settings{Rate: 1e8, Divisor: 32}, OneRack: []string{"alexnet", "vgg19"}, Across: []string{"resnet50"},
		Replay: []string{"googlenet"}, Cores: []float64{4, 8}}
	items, err := s.items()
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, i := range items {
		if seen[i.Key()] || !(i.Bound > 0) || i.Shape != "" && !(i.Predicted >= i.Bound) {
			t.Errorf("%+v", i.Row)
		}
		seen[i.Key()] = true
	}
	for _, want := range []string{"1 rack of 8, vgg19/32: MXNet apart", "2 racks of 4, core 8:1, resnet50/32: flat",
		"4 racks of 2, core 4:1, resnet50/32: chain", "1 rack of 8, googlenet/32: RackWeave, replay"} {
		if !seen[want] {
			t.Errorf("%s is missing from %v", want, seen)
		}
	}
	s.Only = regexp.MustCompile("core 8:1.*flat")
	if items, err = s.items(); err != nil || len(items) != 1 {
		t.Errorf("%d items, %v: want one", len(items), err)
	}
	s.Across = []string{"resnet5"}
	if _, err = s.items(); err == nil || !strings.Contains(err.Error(), "resnet50") {
		t.Errorf("%v, expected the nearest name", err)
	}
}

// What fails is a row with its error, saved like others; the study goes on.
func TestAStudyGoesOnAfterAFailure(t *testing.T) {
	f := up(t, Config{Racks: 1, Workers: 1, Rate: 1e8, Core: 1})
	s := &Study{Settings: Settings{Iters: 1}}
	row, err := s.measure(t.Context(), f, item{rowOf("x", "", 0, 2, 0), func(context.Context, *Lab) (Measured, error) {
		return Measured{}, errors.New("lost")
	}})
	if err != nil || row.Error != "lost" || row.Name != "x" || row.Bound != 2 {
		t.Errorf("%+v, %v", row, err)
	}
}
