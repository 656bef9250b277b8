package learn

import (
	"fmt"
	"math"
	"strings"
)

// The problem of all studies: without momentum, at the rate that lets BSP reach the target in about a hundred of its steps.
const (
	learningRate = 0.8
	batchSize    = 128
	targetLoss   = 0.18
	mostEpochs   = 200
)

// Strategy-Switch is told how many steps the training takes.
const (
	switchEpochs = 60
	decayEpoch   = 30
	switchSteps  = switchEpochs * (images - testImages) / batchSize
)

// coreTime is the time of the whole model across the core, in steps of the fastest rack.
const coreTime = 4

const (
	strict  = "lagtuner:sl=3,su=15"
	literal = "lagtuner:sl=3,su=15,reading=literal"
	loose   = "lagtuner:sl=3,su=15,reading=loose"
	// seldom is the way to meet that the study of racks compares with bsp.
	seldom = "every=16,fragments=4,rule=nesterov,lr=0.7,momentum=0.9"
)

var (
	two        = Cluster{Steps: []float64{1, 3}}
	four       = Cluster{Steps: []float64{1, 1, 3, 3}}
	even       = Cluster{Steps: []float64{1, 1, 1, 1}}
	slowOne    = Cluster{Steps: []float64{1, 1, 1, 3}}
	straggling = Cluster{Steps: []float64{1, 1, 1, 1}, Straggle: 0.05}

	problem = Setting{LR: learningRate, Batch: batchSize, Epochs: mostEpochs, Target: targetLoss}
	untilIt = fmt.Sprintf("time until the loss is %g", targetLoss)
)

var plans = []plan{
	{
		name: "policies", title: fmt.Sprintf("Time until the loss is %g", targetLoss),
		base: problem, note: "~ is the share of steps that take five times as long",
		columns: []column{timeTo, overBSP, accuracy, rateRatio}, clusters: []Cluster{four, straggling},
		ways: []string{"backup:b=1", "k-bsp:k=2", "k-batch-bsp:k=4", "k-asp:k=2", "k-batch-asp:k=2", "softsync:m=2", "ssp:s=3",
			"asp:rate=staleness", strict, loose, "asp"},
	},
	{
		name: "lagtuner", title: "LagTuner's Table 2 in shape",
		base: problem, note: untilIt,
		columns: []column{timeTo, overBSP, accuracy, rateRatio, maxLead}, clusters: []Cluster{two, four, slowOne, even},
		ways: []string{"ssp:s=3", "ssp:s=6", "ssp:s=15", strict, literal, loose, "asp"}, tell: tellLagTuner,
	},
	{
		name: "momentum", title: "The same with momentum",
		base: Setting{LR: learningRate / 10, Momentum: 0.9, Batch: batchSize, Epochs: mostEpochs, Target: targetLoss}, note: untilIt,
		columns: []column{timeTo, overBSP, accuracy}, clusters: []Cluster{four, even}, ways: []string{"ssp:s=15", "asp"},
	},
	{
		name: "switch", title: "Strategy-Switch: synchronous first, then asynchronous",
		base: Setting{LR: learningRate, Batch: batchSize, Epochs: switchEpochs, DecayAt: decayEpoch}, folds: Folds,
		note:    fmt.Sprintf("%d epochs, the learning rate a tenth from epoch %d on; %d folds", switchEpochs, decayEpoch, Folds),
		columns: []column{rateRatio, predicted, accuracy, gain, switchedAt}, clusters: []Cluster{four},
		ways: switchWays(), tell: tellSwitch,
	},
	{
		name: "racks", title: fmt.Sprintf("Racks that meet seldom: time until the loss is %g, and what crosses the core", targetLoss),
		base:    Setting{LR: learningRate, Batch: batchSize, Epochs: mostEpochs, Target: targetLoss, Core: coreTime},
		note:    fmt.Sprintf("four racks; the model takes %d steps across the core; bsp: gradients are added in every step", coreTime),
		columns: []column{timeTo, overBSP, accuracy, crossed}, clusters: []Cluster{even, four, slowOne},
		ways: []string{"every=4", "every=16", seldom, "every=64", "every=16,rule=sgd"}, tell: tellRacks,
	},
	{
		name: "real", title: "By the clock: through an aggregator over shared memory, beside the simulation",
		base: Setting{LR: learningRate, Batch: batchSize, Epochs: 1, Steps: realSteps}, real: true,
		note:    fmt.Sprintf("workers sleep for the rest of their steps, of %v to the fastest; %d of those", realStep, realSteps),
		columns: []column{rateRatio, predicted, accuracy}, clusters: []Cluster{four},
		ways: []string{"ssp:s=3", "ssp:s=15", strict, loose, "asp", "backup:b=1", "k-asp:k=2", "k-batch-asp:k=2"}, tell: tellReal,
	},
}

func switchWays() (ways []string) {
	for a := 1; a <= 9; a++ {
		ways = append(ways, fmt.Sprintf("strategy-switch:at=0.%d,steps=%d", a, switchSteps))
	}
	return append(ways, "strategy-switch", "asp")
}

func (s *Setting) describe() string {
	if s.coded != nil {
		return s.coded.describe()
	}
	text := fmt.Sprintf("digits, network %d-%d-%d, SGD lr %g", pixels, hidden, classes, s.LR)
	if s.Momentum > 0 {
		text += fmt.Sprintf(" momentum %g", s.Momentum)
	}
	return text + fmt.Sprintf(", batch %d/n, step times with jitter %g", s.Batch, jitter)
}

func tellLagTuner(p *plan) {
	for _, c := range []Cluster{two, four} {
		time := func(way string) float64 { return p.row(c, way).Time.Median }
		p.find("on %s loose takes %.2f of asp's time, %.2f of ssp(3)'s, %.2f of bsp's; strict takes %.2f of bsp's", c,
			time(loose)/time("asp"), time(loose)/time("ssp:s=3"), time(loose)/time("bsp"), time(strict)/time("bsp"))
	}
	p.find("on even workers loose takes %.2f of bsp's time, strict %.2f", p.row(even, loose).OverBSP.Median,
		p.row(even, strict).OverBSP.Median)
	p.find("a lead of at most 15 steps (strict: %d) and the published times, those of asp, exclude each other: loose leads by %d",
		p.row(two, strict).MaxLead, p.row(two, loose).MaxLead)
}

// tellSwitch compares with the formula: with the synchronous share f, and asp x times as fast, the whole is 1/(f + (1-f)/x) times
// as fast.
func tellSwitch(p *plan) {
	bsp, x := p.row(four, "bsp"), p.row(four, "asp").RateRatio
	worst, within := 0.0, 0
	for i := range p.rows {
		r := &p.rows[i]
		if !strings.HasPrefix(r.Way, "strategy-switch") {
			continue
		}
		f := 1.0
		if r.Switches > 0 {
			f = r.Switched.Median / switchEpochs
		}
		r.Predicted = 1 / (f + (1-f)/x)
		worst = max(worst, r.RateRatio/r.Predicted-1, 1-r.RateRatio/r.Predicted)
		if r.Accuracy.Mean > bsp.Accuracy.Mean-bsp.Accuracy.Half && r.Accuracy.Mean < bsp.Accuracy.Mean+bsp.Accuracy.Half {
			within++
		}
	}
	p.find("speed-ups are at most %.1f%% from 1/(f + (1-f)/%.2f)", 100*worst, x)
	p.find("%d of 10 have an accuracy within bsp's 95%% interval, %.2f ± %.2f", within, bsp.Accuracy.Mean, bsp.Accuracy.Half)
	rule := p.row(four, "strategy-switch")
	if rule.Switches == 0 {
		p.find("the empirical rule never switched: no window of six losses was level enough")
		return
	}
	p.find("the empirical rule switched in %d of %d runs, at epoch %.0f (%.0f to %.0f); the learning rate falls at epoch %d, which "+
		"levels the loss", rule.Switches, rule.Runs, rule.Switched.Median, rule.Switched.Low, rule.Switched.High, decayEpoch)
}

func tellRacks(p *plan) {
	for _, c := range p.clusters {
		bsp, r := p.row(c, "bsp"), p.row(c, seldom)
		p.find("on %s racks that meet by %v reach the loss in %.2f of bsp's time, with %.0f times fewer bytes across the core", c,
			seldom, r.OverBSP.Median, bsp.Crossed.Median/r.Crossed.Median)
	}
}

func tellReal(p *plan) {
	worst := 0.0
	for i := range p.rows {
		worst = max(worst, math.Abs(p.rows[i].RateRatio/p.rows[i].Predicted-1))
	}
	p.find("rates are at most %.0f%% from the simulation's", 100*worst)
}
