package learn

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/rackweave/rackweave/bench/report"
)

// near is the difference from f32, in points of accuracy, that counts as none.
const near = 0.3

// compressions are the studies of ways to shorten gradients.
var compressions = []plan{
	digitsCoded("digits", "Handwritten digits", false),
	digitsCoded("digits-skewed", "The same, where each worker has two or three of the digits", true),
	textCoded("text", "A small transformer foretells the next letter", false),
	textCoded("text-skewed", "The same, where each worker reads its own quarter of the text", true),
	adamCoded(),
	aceStudy("ace", "ACE-Sync's Table 1 as relations", false),
	aceStudy("ace-skewed", "The same, where each worker reads its own quarter of the text", true),
	tightStudy(),
}

func digitsCoded(name, title string, skewed bool) plan {
	return plan{
		name: name, title: title, way: "codec", note: fmt.Sprintf("the target is a loss of %g", targetLoss),
		coded: &coded{
			name: "digits", task: newRecognition, skewed: skewed, rates: []float64{0.02, 0.05, 0.1, 0.2}, steps: 400, batch: 32,
			payload: 1024, every: 10, target: targetLoss,
		},
		columns: codedColumns, tell: tellCoded,
		ways: []string{"int8", "int4", "int4:stochastic", "fp8-e4m3", "ternary", "2bit:0.05", "sign", "sign " + noFeedback,
			"topk:10%", "topk:1%", "topk:1% " + noFeedback, "int8/int8", "int4/int8", "int4/int4", "sign/int8"},
	}
}

// textPayload cuts the transformer into ten payloads, each just large enough for a controller to shorten it.
const textPayload = 1156

func textCoded(name, title string, skewed bool) plan {
	const target = 2.4
	return plan{
		name: name, title: title, way: "codec", note: fmt.Sprintf("the target is a loss of %g", target),
		coded: &coded{
			name: fmt.Sprintf("%d letters of Opticks, transformer of %d parameters", textLength, transformerSize), task: newReading,
			skewed: skewed, rates: []float64{0.05, 0.1}, steps: 400, batch: 2,
			payload: textPayload, every: 20, decay: 300, target: target,
		},
		columns: codedColumns, tell: tellCoded,
		ways: []string{"int8", "int4", "sign", "topk:1%", "int4/int8"},
	}
}

func adamCoded() plan {
	p := textCoded("text-adam", "The transformer with Adam", false)
	c := *p.coded
	c.adam, c.rates = true, []float64{0.005, 0.01}
	p.coded = &c
	p.ways = []string{"int8", "fp8-e4m3", "int4", "int4 " + noFeedback, "int4:stochastic " + noFeedback, "int4 raw=100",
		"int4 raw=200", "sign", "topk:1%"}
	return p
}

// ACE-Sync's way: of the groups, the important ones are raw, and the others quantized; half of the steps, as the drift allows; in
// all 0.4 of the bytes up, as in its Table 1. A round may have 0.8.
const (
	aceWay  = "auto:budget=0.8,law=ace,codecs=int4:stochastic"
	aceSync = aceWay + " drift=0.02"
)

// aceStudy compares ACE-Sync with the others of its Table 1, with itself without its parts, and with our controller.
func aceStudy(name, title string, skewed bool) plan {
	p := textCoded(name, title, skewed)
	c := *p.coded
	c.rates = []float64{0.1} // of all: with another, the same drift would be another distance
	p.way, p.coded, p.columns, p.than, p.tell = "way", &c, append(slices.Clone(codedColumns), overThan), aceSync, tellThan
	p.ways = []string{
		"topk:36.5%", "none every=2", aceSync, aceSync + ", " + atRandom, aceSync + ", " + noFeedback, aceWay + " every=2",
		"auto:budget=0.4,codecs=int8+int4+sign,answers=int8",
	}
	return p
}

// tightStudy compares the controllers where the budget lets few groups have more than a bit.
func tightStudy() plan {
	const ladder, law = "codecs=int4+sign+topk:1%", "auto:budget=0.08,law=ace,"
	p := aceStudy("tight", "Controllers within 0.08 of the bytes; each worker reads its own quarter of the text", true)
	p.coded.rates, p.than = []float64{0.05, 0.1}, law+ladder
	p.ways = []string{"topk:5.1%", law + ladder, law + ladder + " " + atRandom, law + ladder + " " + noFeedback,
		"auto:budget=0.08," + ladder}
	return p
}

var (
	codedRate = column{"lr", func(r *Row) string { return fmt.Sprint(r.Rate) }}
	bitsUp    = column{"bits up", func(r *Row) string { return fmt.Sprintf("%.2f", r.Up) }}
	bitsDown  = column{"bits down", func(r *Row) string { return fmt.Sprintf("%.2f", r.Down) }}
	overNone  = column{"points over none", gain.text}
	codedLoss = column{"loss", func(r *Row) string { return fmt.Sprintf("%.3f ± %.3f", r.Loss.Mean, r.Loss.Half) }}
	stepsTo   = column{"steps to the target", timeTo.text}
	costTo    = column{"bytes, of none's", func(r *Row) string { return dashUnless(r.Missed < r.Runs, r.Cost.text("%.3f")) }}

	overThan = column{"points over ace", func(r *Row) string { return fmt.Sprintf("%+.2f ± %.2f", r.Over.Mean, r.Over.Half) }}

	codedColumns = []column{codedRate, bitsUp, bitsDown, accuracy, overNone, codedLoss, stepsTo, costTo}
)

// runCoded trains in all ways, each at its best rate, with pairs that differ in the way only.
func (p *plan) runCoded(ctx context.Context, cfg *Config) error {
	c := p.coded
	var ways []scheme
	for _, way := range append([]string{"none"}, p.ways...) {
		s, err := parseScheme(way)
		if err != nil {
			return err
		}
		ways = append(ways, s)
	}
	tries := len(c.rates) * tuningSeeds
	if len(c.rates) == 1 {
		tries = 0
	}
	bar := report.NewProgress(cfg.Log, p.name, len(ways)*(tries+cfg.Seeds))
	tuned := make([]trained, len(ways)*tries)
	err := parallel(ctx, len(tuned), bar, func(ctx context.Context, i int) (err error) {
		rate, seed := c.rates[i%tries/tuningSeeds], uint64(tuningSeed+i%tuningSeeds)
		tuned[i], err = c.train(ctx, ways[i/tries], rate, seed, tuningFold)
		return err
	})
	if err != nil {
		return err
	}
	rates := make([]float64, len(ways))
	for w := range ways {
		rates[w] = c.best(tuned[w*tries:][:tries])
	}
	runs := make([]trained, len(ways)*cfg.Seeds)
	err = parallel(ctx, len(runs), bar, func(ctx context.Context, i int) (err error) {
		w := i / cfg.Seeds
		runs[i], err = c.train(ctx, ways[w], rates[w], uint64(i%cfg.Seeds+1), 0)
		return err
	})
	if err != nil {
		return err
	}
	than := max(slices.IndexFunc(ways, func(s scheme) bool { return s.name == p.than }), 0)
	for w, way := range ways {
		own := runs[w*cfg.Seeds:][:cfg.Seeds]
		row := c.summarise(way.name, rates[w], own, runs[:cfg.Seeds])
		row.Over = over(own, runs[than*cfg.Seeds:])
		p.rows = append(p.rows, row)
	}
	return nil
}

// over returns the points of accuracy by which trainings end above others of the same seeds.
func over(runs, others []trained) Interval {
	var points []float64
	for i := range runs {
		points = append(points, 100*(runs[i].end().Accuracy-others[i].end().Accuracy))
	}
	return interval(points)
}

// best returns the rate with the least mean loss. Trainings are ordered by rate.
func (c *coded) best(tries []trained) float64 {
	if len(tries) == 0 {
		return c.rates[0]
	}
	losses := make([]float64, len(c.rates))
	for i := range tries {
		losses[i/tuningSeeds] += tries[i].end().Loss
	}
	return c.rates[slices.Index(losses, slices.Min(losses))]
}

// summarise makes a row of the runs of one way, beside those without a codec of the same seeds.
func (c *coded) summarise(way string, rate float64, runs, none []trained) Row {
	row := Row{Cluster: c.name, Way: way, Rate: rate, Runs: len(runs), Curve: slices.Clone(runs[0].Curve)}
	var accuracy, loss, steps, cost []float64
	n := float64(len(runs))
	clear(row.Curve)
	for i := range runs {
		r, end := &runs[i], runs[i].end()
		row.Up, row.Down = row.Up+r.Up/n, row.Down+r.Down/n
		accuracy = append(accuracy, 100*end.Accuracy)
		loss = append(loss, end.Loss)
		for k, p := range r.Curve {
			to := &row.Curve[k]
			to.Step, to.Bytes, to.Loss, to.Accuracy = p.Step, to.Bytes+p.Bytes/n, to.Loss+p.Loss/n, to.Accuracy+p.Accuracy/n
		}
		at, his := r.reached(c.target), none[i].reached(c.target)
		if at == nil {
			row.Missed++
			continue
		}
		steps = append(steps, float64(at.Step))
		if his != nil {
			cost = append(cost, at.Bytes/his.Bytes)
		}
	}
	row.Accuracy, row.Gain, row.Loss = interval(accuracy), over(runs, none), interval(loss)
	row.Time, row.Cost = spread(steps), spread(cost)
	return row
}

// tellCoded compares with f32: ways that lose little with 95 % confidence, and the others.
func tellCoded(p *plan) {
	var like, others []string
	for i := range p.rows[1:] {
		r := &p.rows[1+i]
		to := &like
		if r.Gain.Mean-r.Gain.Half < -near {
			to = &others
		}
		*to = append(*to, r.Way)
	}
	p.find("at most %g points below none, with 95%% confidence: %s", near, cmp.Or(strings.Join(like, ", "), "no way"))
	p.find("maybe more: %s", cmp.Or(strings.Join(others, ", "), "no way"))
}

// tellThan tells which relations of ACE-Sync hold with 95 % confidence: near f32 with far fewer bytes, and better than each other
// way.
func tellThan(p *plan) {
	none := &p.rows[0]
	for i := range p.rows[1:] {
		r := &p.rows[1+i]
		if r.Way == p.than {
			p.find("ace sends %.0f%% fewer bytes than none; within %g points of it: %s", 100*(1-r.Up/none.Up), near,
				verdict(r.Gain, -near, near))
			continue
		}
		p.find("ace is better than %s: %s", r.Way, verdict(Interval{-r.Over.Mean, r.Over.Half}, 0, math.Inf(1)))
	}
}

// verdict tells whether a difference lies between bounds.
func verdict(d Interval, low, high float64) string {
	text := fmt.Sprintf(" (%+.2f ± %.2f)", d.Mean, d.Half)
	switch {
	case d.Mean-d.Half > low && d.Mean+d.Half < high:
		return "holds" + text
	case d.Mean+d.Half < low || d.Mean-d.Half > high:
		return "does not hold" + text
	}
	return "not decided" + text
}
