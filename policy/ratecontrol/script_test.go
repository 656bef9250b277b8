package ratecontrol

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"pgregory.net/rapid"
)

// play runs the commands of scripts.
type play struct {
	config Config
	n      *Controller
	step   uint64
	accept map[int]bool // the ranks that accept proposals at once
	log    []string
}

func (p *play) text(a Act) string {
	now := p.n.begun - 1
	switch a.Kind {
	case Withdraw:
		return fmt.Sprintf("step %d: withdraw %d", now, a.Decision.Version)
	case Confirm:
		return fmt.Sprintf("step %d: confirm %d", now, a.Decision.Version)
	}
	d := a.Decision
	return fmt.Sprintf("step %d: propose %s; %d of %d bytes, loses %.4f, at best %.4f", now, p.n.Line(d), d.Bytes, d.Budget,
		d.Distortion, d.Bound)
}

// on handles an event and the acceptances that follow from it.
func (p *play) on(b *strings.Builder, e Event) {
	for _, a := range p.n.On(e, nil) {
		fmt.Fprintln(b, p.text(a))
		if a.Kind == Confirm {
			p.log = append(p.log, p.n.Line(a.Decision))
		}
		for r := range p.config.Ranks {
			if a.Kind == Propose && p.accept[r] {
				p.on(b, Event{Kind: Accept, Rank: r, Version: a.Decision.Version})
			}
		}
	}
}

func (p *play) run(t *testing.T, d *datadriven.TestData) string {
	var b strings.Builder
	only := 0
	d.MaybeScanArgs(t, "rank", &only)
	ranks := func(f func(r int)) {
		for r := range p.config.Ranks {
			if p.n.links[r].live && (!d.HasArg("rank") || only == r) {
				f(r)
			}
		}
	}
	var err error
	switch d.Cmd {
	case "new":
		p.config.Codecs, p.config.Ranks = formats, 2
		d.MaybeScanArgs(t, "ranks", &p.config.Ranks)
		if p.config.Spec, err = Parse(d.CmdArgs[0].String()); err != nil {
			return err.Error()
		}
		p.config.Groups = nil
		for line := range strings.SplitSeq(d.Input, "\n") {
			g := Group{Chunk: 8192}
			if _, err := fmt.Sscan(line, &g.Elems); err != nil {
				d.Fatalf(t, "%q: %v", line, err)
			}
			p.config.Groups = append(p.config.Groups, g)
		}
		p.n = New(p.config)
		p.step, p.log, p.accept = 0, nil, map[int]bool{}
		for r := range p.config.Ranks {
			p.accept[r] = true
		}
		return fmt.Sprintf("%d bytes raw in %d chunks\n", p.n.table.raw, p.n.table.chunks)
	case "deaf":
		ranks(func(r int) { delete(p.accept, r) })
	case "hears":
		ranks(func(r int) { p.accept[r] = true })
	case "steps":
		to, rate, overlap := uint64(0), 0.0, "490ms"
		d.ScanArgs(t, "to", &to)
		d.MaybeScanArgs(t, "mbit", &rate)
		d.MaybeScanArgs(t, "overlap", &overlap)
		computed, _ := time.ParseDuration(overlap)
		for ; p.step < to; p.step++ {
			ranks(func(r int) { p.on(&b, Event{Kind: Begin, Rank: r, Step: p.step, Elapsed: computed}) })
			ranks(func(r int) {
				p.on(&b, Event{Kind: Acked, Rank: r, Bytes: int64(rate * 1e6 / 8), Elapsed: time.Second, Chunks: 8})
			})
		}
	case "accept":
		ranks(func(r int) { p.on(&b, Event{Kind: Accept, Rank: r, Version: p.n.proposal.Version}) })
	case "measured", "probed":
		kind := map[string]EventKind{"measured": Measured, "probed": Probed}[d.Cmd]
		var samples []Sample
		for line := range strings.SplitSeq(d.Input, "\n") {
			var s Sample
			if _, err := fmt.Sscan(line, &s.Group, &s.Codec, &s.Elems, &s.Energy, &s.Lost); err != nil {
				d.Fatalf(t, "%q: %v", line, err)
			}
			samples = append(samples, s)
		}
		ranks(func(r int) { p.on(&b, Event{Kind: kind, Rank: r, Samples: samples}) })
	case "leave":
		ranks(func(r int) { p.on(&b, Event{Kind: Leave, Rank: r}) })
	case "log":
		return strings.Join(p.log, "\n") + "\n"
	case "state":
		for r := range p.config.Ranks {
			fmt.Fprintf(&b, "rank %d: %.1f Mb/s\n", r, p.n.Bandwidth(r)*8e-6)
		}
		fmt.Fprintf(&b, "window %d steps, lead %d; %s\n", p.n.calm.length, p.n.lead, p.n.Line(p.n.Current()))
		return b.String()
	default:
		d.Fatalf(t, "unknown command %s", d.Cmd)
	}
	return b.String()
}

func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata/scripts", func(t *testing.T, path string) {
		var p play
		datadriven.RunTest(t, path, p.run)
	})
}

// A link may lie or swing as it likes: windows double until they are longer than the swings.
func TestNoBandwidthMakesItFlap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		spec, err := Parse(rapid.SampledFrom([]string{"auto", "auto:budget=100ms", "auto:budget=30Mb/s", "auto:law=ace"}).Draw(t, "spec"))
		if err != nil {
			t.Fatal(err)
		}
		var groups []Group
		for g := range 20 {
			groups = append(groups, Group{Elems: 4096 << (g % 5), Chunk: 8192})
		}
		n := New(Config{Spec: spec, Codecs: formats, Groups: groups, Ranks: 1})
		const steps = 12000
		rates := rapid.SliceOfN(rapid.Float64Range(1e4, 1e9), 1, 6).Draw(t, "bytes per second")
		turn := rapid.IntRange(1, 1500).Draw(t, "steps")
		turns, rose, now := make([]int, len(groups)), make([]bool, len(groups)), n.Current().Codecs
		var acts []Act
		for step := range uint64(steps) {
			acts = n.On(Event{Kind: Begin, Step: step, Elapsed: 200 * time.Millisecond}, acts[:0])
			rate := rates[int(step)/turn%len(rates)]
			acts = n.On(Event{Kind: Acked, Bytes: int64(rate), Elapsed: time.Second, Chunks: 8}, acts)
			for _, a := range acts {
				if a.Kind != Propose {
					continue
				}
				n.On(Event{Kind: Accept, Version: a.Decision.Version}, nil)
				for g, c := range a.Decision.Codecs {
					was, is := n.table.bytes[n.table.at(g, now[g])], n.table.bytes[n.table.at(g, c)]
					if is < was && rose[g] {
						turns[g]++
					}
					if is != was {
						rose[g] = is > was
					}
				}
				now = a.Decision.Codecs
			}
		}
		for g, k := range turns {
			if k > 5+steps/(longer*dwell) {
				t.Fatalf("group %d turned %d times", g, k)
			}
		}
	})
}
