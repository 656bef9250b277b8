package learn

import (
	"context"
	"fmt"
	"runtime"
	"slices"

	"github.com/rackweave/rackweave/bench/report"
	"github.com/rackweave/rackweave/bench/study"
	"github.com/rackweave/rackweave/bench/study/task"
)

// Codecs are the studies of ways to shorten gradients.
var Codecs = study.Group{Head: "medians and quartiles, means ± 95%", Fewest: 1, Plans: []study.Plan{
	compared("digits", "Handwritten digits", onDigits(false), "", digitWays...),
	compared("digits-skewed", "The same, where each worker has two or three of the digits", onDigits(true), "", digitWays...),
	compared("text", "A small transformer predicts the next letter", onText(false, 0.05, 0.1), "", textWays...),
	compared("text-skewed", "The same, where each worker reads its own quarter of the text", onText(true, 0.05, 0.1), "",
		textWays...),
	compared("text-adam", "The transformer with Adam", withAdam(onText(false, 0.005, 0.01)), "", adamWays...),
	// ACE-Sync beside the others of its Table 1, itself without its parts, and our controller. All have one rate: with another, the
	// same drift would be another distance.
	compared("ace", "ACE-Sync's Table 1 as relations", onText(false, 0.1), aceSync, aceWays...),
	compared("ace-skewed", "The same, where each worker reads its own quarter of the text", onText(true, 0.1), aceSync,
		aceWays...),
	// Here the budget lets few groups have more than a bit.
	compared("tight", "Controllers within 0.08 of the bytes; each worker reads its own quarter of the text", onText(true, 0.05, 0.1),
		tightACE, tightWays...),
}}

const (
	textLoss = 2.4 // the target
	// ACE-Sync's way: of the groups, the important ones are raw, and the others quantized; half of the steps, as the drift allows; in
	// all 0.4 of the bytes up, as in its Table 1. A round may have 0.8.
	aceWay  = "auto:budget=0.8,law=ace,codecs=int4:stochastic"
	aceSync = aceWay + " drift=0.02"

	tightLadder = "codecs=int4+sign+topk:1%"
	tightACE    = "auto:budget=0.08,law=ace," + tightLadder
)

var (
	digitWays = []string{"int8", "int4", "int4:stochastic", "fp8-e4m3", "ternary", "2bit:0.05", "sign", "sign " + noFeedback,
		"topk:10%", "topk:1%", "topk:1% " + noFeedback, "int8/int8", "int4/int8", "int4/int4", "sign/int8"}
	textWays = []string{"int8", "int4", "sign", "topk:1%", "int4/int8"}
	adamWays = []string{"int8", "fp8-e4m3", "int4", "int4 " + noFeedback, "int4:stochastic " + noFeedback, "int4 raw=100",
		"int4 raw=200", "sign", "topk:1%"}
	aceWays = []string{"topk:36.5%", "none every=2", aceSync, aceSync + ", " + atRandom, aceSync + ", " + noFeedback,
		aceWay + " every=2", "auto:budget=0.4,codecs=int8+int4+sign,answers=int8"}
	tightWays = []string{"topk:5.1%", tightACE, tightACE + " " + atRandom, tightACE + " " + noFeedback,
		"auto:budget=0.08," + tightLadder}
)

// compared compares ways with none or, if than is not empty, also with that way.
func compared(name, title string, c coded, than string, ways ...string) study.Plan {
	p := study.Plan{Name: name, Title: title, Setting: c.describe(), Heads: "codec", Columns: codedColumns}
	if than != "" {
		p.Heads, p.Columns = "way", append(slices.Clip(p.Columns), above("points over ace", func(r *study.Row) *study.Row {
			return r.Beside(than)
		}))
	}
	p.Rows = func(ctx context.Context, cfg *study.Config) ([]study.Row, error) {
		rows := make([]study.Row, 1+len(ways))
		settings := make([]codedSetting, len(rows))
		for i, way := range append([]string{"none"}, ways...) {
			scheme, err := parseScheme(way)
			if err != nil {
				return nil, err
			}
			s := &settings[i]
			s.coded, s.scheme = c, scheme
			rows[i] = study.Row{Way: way, Base: &rows[0], Train: func(ctx context.Context, run int) (study.Outcome, error) {
				s := *s
				s.seed = uint64(run + 1)
				return s.train(ctx)
			}}
		}
		return rows, tune(ctx, cfg, name, settings)
	}
	return p
}

func onDigits(skewed bool) coded {
	return coded{
		name: "digits", task: digits, skewed: skewed, rates: []float64{0.02, 0.05, 0.1, 0.2}, steps: 400, batch: 32,
		payload: 1024, every: 10,
		target: targetLoss,
	}
}

// textPayload cuts the transformer into ten payloads, each just large enough for a controller to shorten it.
const textPayload = 1156

func onText(skewed bool, rates ...float64) coded {
	return coded{
		name:   fmt.Sprintf("%d letters of Opticks, transformer of %d parameters", task.TextLength, task.TransformerSize),
		task:   task.NewText,
		skewed: skewed, rates: rates, steps: 400, batch: 2, payload: textPayload, every: 20, decay: 300,
		target: textLoss,
	}
}

func withAdam(c coded) coded {
	c.adam = true
	return c
}

// tune sets the rate of each setting to that with the least mean loss.
func tune(ctx context.Context, cfg *study.Config, name string, settings []codedSetting) error {
	rates := settings[0].rates
	n := len(settings) * len(rates)
	if len(rates) == 1 {
		n = 0
	}
	losses := make([]float64, len(settings)*len(rates))
	bar := report.NewProgress(cfg.Log, name+", rates", n)
	err := study.Each(ctx, bar, n, runtime.GOMAXPROCS(0), func(ctx context.Context, i int) error {
		s := settings[i/len(rates)]
		s.rate, s.fold = rates[i%len(rates)], tuningFold
		for k := range tuningSeeds {
			s.seed = uint64(tuningSeed + k)
			o, err := s.train(ctx)
			if err != nil {
				return fmt.Errorf("%s: %w", s.scheme.name, err)
			}
			losses[i] += o.Loss
		}
		return nil
	})
	for i := range settings {
		own := losses[i*len(rates):][:len(rates)]
		settings[i].rate = rates[slices.Index(own, slices.Min(own))]
	}
	return err
}
