package learn

import (
	"context"
	"fmt"
	"slices"

	"github.com/rackweave/rackweave/bench/report"
)

// compressions are the studies of ways to shorten gradients.
var compressions = []plan{
	study("digits", "Handwritten digits", onDigits(false), targetLoss, "", digitWays...),
	study("digits-skewed", "The same, where each worker has two or three of the digits", onDigits(true), targetLoss, "", digitWays...),
	study("text", "A small transformer predicts the next letter", onText(false, 0.05, 0.1), textLoss, "", textWays...),
	study("text-skewed", "The same, where each worker reads its own quarter of the text", onText(true, 0.05, 0.1), textLoss, "",
		textWays...),
	study("text-adam", "The transformer with Adam", withAdam(onText(false, 0.005, 0.01)), textLoss, "", adamWays...),
	// ACE-Sync beside the others of its Table 1, itself without its parts, and our controller. All have one rate: with another, the
	// same drift would be another distance.
	study("ace", "ACE-Sync's Table 1 as relations", onText(false, 0.1), textLoss, aceSync, aceWays...),
	study("ace-skewed", "The same, where each worker reads its own quarter of the text", onText(true, 0.1), textLoss, aceSync,
		aceWays...),
	// Here the budget lets few groups have more than a bit.
	study("tight", "Controllers within 0.08 of the bytes; each worker reads its own quarter of the text", onText(true, 0.05, 0.1),
		textLoss, tightLaw+tightLadder, "topk:5.1%", tightLaw+tightLadder, tightLaw+tightLadder+" "+atRandom,
		tightLaw+tightLadder+" "+noFeedback, "auto:budget=0.08,"+tightLadder),
}

const (
	textLoss = 2.4 // the target
	// ACE-Sync's way: of the groups, the important ones are raw, and the others quantized; half of the steps, as the drift allows; in
	// all 0.4 of the bytes up, as in its Table 1. A round may have 0.8.
	aceWay  = "auto:budget=0.8,law=ace,codecs=int4:stochastic"
	aceSync = aceWay + " drift=0.02"

	tightLadder, tightLaw = "codecs=int4+sign+topk:1%", "auto:budget=0.08,law=ace,"
)

var (
	digitWays = []string{"int8", "int4", "int4:stochastic", "fp8-e4m3", "ternary", "2bit:0.05", "sign", "sign " + noFeedback,
		"topk:10%", "topk:1%", "topk:1% " + noFeedback, "int8/int8", "int4/int8", "int4/int4", "sign/int8"}
	textWays = []string{"int8", "int4", "sign", "topk:1%", "int4/int8"}
	adamWays = []string{"int8", "fp8-e4m3", "int4", "int4 " + noFeedback, "int4:stochastic " + noFeedback, "int4 raw=100",
		"int4 raw=200", "sign", "topk:1%"}
	aceWays = []string{"topk:36.5%", "none every=2", aceSync, aceSync + ", " + atRandom, aceSync + ", " + noFeedback,
		aceWay + " every=2", "auto:budget=0.4,codecs=int8+int4+sign,answers=int8"}
)

// study compares ways with none or, if than is not empty, also with that way.
func study(name, title string, c coded, target float64, than string, ways ...string) plan {
	p := plan{
		name: name, title: title, note: fmt.Sprintf("the target is a loss of %g", target), way: "codec", columns: codedColumns,
		clusters: []Cluster{{}}, base: Setting{coded: &c, scheme: scheme{name: "none", feedback: true}, Target: target}, ways: ways}
	if than != "" {
		p.way, p.than, p.columns = "way", than, append(slices.Clip(codedColumns), overThan)
	}
	return p
}

func onDigits(skewed bool) coded {
	return coded{
		name: "digits", task: newRecognition, skewed: skewed, rates: []float64{0.02, 0.05, 0.1, 0.2}, steps: 400, batch: 32,
		payload: 1024, every: 10,
	}
}

// textPayload cuts the transformer into ten payloads, each just large enough for a controller to shorten it.
const textPayload = 1156

func onText(skewed bool, rates ...float64) coded {
	return coded{
		name: fmt.Sprintf("%d letters of Opticks, transformer of %d parameters", textLength, transformerSize), task: newReading,
		skewed: skewed, rates: rates, steps: 400, batch: 2, payload: textPayload, every: 20, decay: 300,
	}
}

func withAdam(c coded) coded {
	c.adam = true
	return c
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

// tune sets the rate of each variant to that with the least mean loss.
func (p *plan) tune(ctx context.Context, cfg *Config, variants []Setting) error {
	rates := p.base.coded.rates
	var tries []Setting
	for _, s := range variants {
		for i := range len(rates) * tuningSeeds {
			s.LR, s.Seed, s.Fold = rates[i/tuningSeeds], uint64(tuningSeed+i%tuningSeeds), tuningFold
			tries = append(tries, s)
		}
	}
	if len(rates) == 1 {
		tries = nil
	}
	tuned, err := runAll(ctx, tries, report.NewProgress(cfg.Log, p.name+", rates", len(tries)))
	losses := make([]float64, len(variants)*len(rates))
	for i, o := range tuned {
		losses[i/tuningSeeds] += o.Loss
	}
	for v := range variants {
		own := losses[v*len(rates):][:len(rates)]
		variants[v].LR = rates[slices.Index(own, slices.Min(own))]
	}
	return err
}
