package policy

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
)

// name is a worker's in scripts: A, B, …
func name(w int) string { return string(rune('A' + w)) }

func (a Act) String() string {
	switch a.Kind {
	case Apply:
		var parts []string
		for _, p := range a.Parts {
			parts = append(parts, fmt.Sprintf("%s%d*%.4g", name(p.W), p.Step, p.Weight))
		}
		return fmt.Sprintf("apply %s rate %.4g", strings.Join(parts, " "), a.Rate)
	case Admit:
		return fmt.Sprintf("admit %s%d*%.4g", name(a.W), a.Step, a.Rate)
	case Drop:
		return fmt.Sprintf("drop %s%d", name(a.W), a.Step)
	case Cancel:
		return fmt.Sprintf("cancel %s%d", name(a.W), a.Step)
	case Switch:
		return fmt.Sprintf("from step %d: %v", a.Step, a.To)
	}
	text := fmt.Sprintf("release %s up to %d", name(a.W), a.Step)
	if a.Step == Unbounded {
		text = fmt.Sprintf("release %s", name(a.W))
	}
	if !a.Pull {
		text += ", same parameters"
	}
	return text
}

// picture shows clocks, who is held, and what LagTuner has granted.
func picture(r *Runner) string {
	var clocks, held, extra []string
	for w := range r.n {
		if !r.Live(w) {
			clocks = append(clocks, "-")
			continue
		}
		clocks = append(clocks, strconv.FormatUint(r.Clock(w), 10))
		if r.Held(w) {
			held = append(held, name(w))
		}
		if l, ok := r.policy.(*lagTuner); ok && l.workers[w].extra > 0 {
			extra = append(extra, fmt.Sprintf("%s has %d more", name(w), l.workers[w].extra))
		}
	}
	text := strings.Join(clocks, " ")
	if len(held) > 0 {
		text += ", held " + strings.Join(held, " ")
	}
	if len(extra) > 0 {
		text += ", " + strings.Join(extra, ", ")
	}
	return text + "\n"
}

// play runs the commands of scripts.
type play struct{ r *Runner }

func (p *play) run(t *testing.T, d *datadriven.TestData) string {
	var acts []Act
	var err error
	at, tau, step := int64(0), uint64(0), int64(-1)
	d.MaybeScanArgs(t, "at", &at)
	d.MaybeScanArgs(t, "tau", &tau)
	d.MaybeScanArgs(t, "step", &step)
	on := func(e Event) {
		if err == nil {
			acts, err = p.r.On(e, acts)
		}
	}
	workers := func(kind EventKind) {
		for _, a := range d.CmdArgs {
			if len(a.Key) == 1 && a.Key >= "A" && a.Key <= "Z" {
				e := Event{Kind: kind, W: int(a.Key[0] - 'A'), At: at, Tau: tau}
				if kind == Push && e.W < p.r.n {
					e.Step = p.r.Clock(e.W)
					if step >= 0 {
						e.Step = uint64(step)
					}
				}
				on(e)
			}
		}
	}
	switch d.Cmd {
	case "new":
		n, absent := 0, ""
		d.ScanArgs(t, "n", &n)
		d.MaybeScanArgs(t, "absent", &absent)
		var spec Spec
		if spec, err = Parse(d.CmdArgs[0].String()); err != nil {
			return err.Error() + "\n"
		}
		if p.r, err = NewRunner(spec, n); err != nil {
			return err.Error() + "\n"
		}
		for w := range n {
			if !strings.Contains(absent, name(w)) {
				on(Event{Kind: Join, W: w})
			}
		}
	case "push":
		workers(Push)
	case "join":
		workers(Join)
	case "leave":
		workers(Leave)
	case "finish":
		workers(Finish)
	case "loss":
		for _, a := range d.CmdArgs {
			var v float64
			if v, err = strconv.ParseFloat(a.Key, 64); err != nil {
				d.Fatalf(t, "%v", err)
			}
			on(Event{Kind: Loss, Value: v})
			if b, ok := p.r.policy.(*barrier); ok && b.until != nil && len(b.until.losses) == lossWindow {
				return fmt.Sprintf("change %.4f%%, due %v\n", b.until.change(), b.until.due(0))
			}
		}
		return "not enough losses\n"
	case "change":
		var spec Spec
		if spec, err = Parse(d.CmdArgs[0].String()); err == nil {
			acts, err = p.r.Change(spec, at, nil)
		}
	default:
		d.Fatalf(t, "unknown command %s", d.Cmd)
	}
	var b strings.Builder
	for _, a := range acts {
		fmt.Fprintln(&b, a)
	}
	if err != nil {
		fmt.Fprintln(&b, err)
	}
	return b.String() + picture(p.r)
}

func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata/scripts", func(t *testing.T, path string) {
		var p play
		datadriven.RunTest(t, path, p.run)
	})
}

func TestSpecsAreReadAndRefused(t *testing.T) {
	datadriven.RunTest(t, "testdata/specs.txt", func(t *testing.T, d *datadriven.TestData) string {
		n := 4
		d.MaybeScanArgs(t, "n", &n)
		var b strings.Builder
		for line := range strings.SplitSeq(strings.TrimSpace(d.Input), "\n") {
			spec, err := Parse(line)
			if err == nil {
				err = spec.Check(n)
			}
			if err != nil {
				fmt.Fprintln(&b, err)
				continue
			}
			again, err := Parse(spec.String())
			if err != nil || again != spec {
				t.Fatalf("%v is read as %v, %v", spec, again, err)
			}
			fmt.Fprintln(&b, spec)
		}
		return b.String()
	})
}
