package learn

import (
	"fmt"
	"math"
	"strings"

	"github.com/rackweave/rackweave/policy"
)

// mustParse reads specs that are written here.
func mustParse(specs ...string) []policy.Spec {
	var all []policy.Spec
	for _, s := range specs {
		spec, err := policy.Parse(s)
		if err != nil {
			panic("learn: " + err.Error())
		}
		all = append(all, spec)
	}
	return all
}

const (
	two, four, even = "1,3", "1,1,3,3", "1,1,1,1"
	strict          = "lagtuner:sl=3,su=15"
	literal         = "lagtuner:sl=3,su=15,reading=literal"
	loose           = "lagtuner:sl=3,su=15,reading=loose"
)

var problem = Setting{LR: learningRate, Batch: batchSize, Epochs: mostEpochs, Target: targetLoss, Stop: true}

func describe(s *Setting, more string) string {
	text := fmt.Sprintf("digits, network %d-%d-%d, SGD lr %g", pixels, hidden, classes, s.LR)
	if s.Momentum > 0 {
		text += fmt.Sprintf(" momentum %g", s.Momentum)
	}
	return text + fmt.Sprintf(", batch %d/n, step times with jitter %g; %s", s.Batch, jitter, more)
}

func policies() plan {
	return plan{
		Study: Study{
			Title:   fmt.Sprintf("Time until the loss is %g", targetLoss),
			Setting: describe(&problem, "~ is the share of steps that take five times as long"),
			columns: []column{timeTo, overBSP, accuracy, rateRatio},
		},
		clusters: mustCluster(four, "1,1,1,1~0.05"),
		policies: mustParse("backup:b=1", "k-bsp:k=2", "k-batch-bsp:k=4", "k-asp:k=2", "k-batch-asp:k=2", "softsync:m=2", "ssp:s=3",
			"asp:rate=staleness", strict, loose, "asp"),
		base: problem, folds: 1,
	}
}

func lagTuner() plan {
	return plan{
		Study: Study{
			Title:   "LagTuner's Table 2 in shape",
			Setting: describe(&problem, fmt.Sprintf("time until the loss is %g", targetLoss)),
			columns: []column{timeTo, overBSP, accuracy, rateRatio, maxLead},
		},
		clusters: mustCluster(two, four, "1,1,1,3", even),
		policies: mustParse("ssp:s=3", "ssp:s=6", "ssp:s=15", strict, literal, loose, "asp"), base: problem, folds: 1,
		tell: func(s *Study) {
			for _, c := range []string{two, four} {
				time := func(p string) float64 { return s.row(c, p).Time.Median }
				s.find("on %s loose takes %.2f of asp's time, %.2f of ssp(3)'s, %.2f of bsp's; strict takes %.2f of bsp's", c,
					time(loose)/time("asp"), time(loose)/time("ssp:s=3"), time(loose)/time("bsp"), time(strict)/time("bsp"))
			}
			s.find("on even workers loose takes %.2f of bsp's time, strict %.2f", s.row(even, loose).OverBSP.Median,
				s.row(even, strict).OverBSP.Median)
			s.find("a lead of at most 15 steps (strict: %d) and the published times, those of asp, exclude each other: loose leads by %d",
				s.row(two, strict).MaxLead, s.row(two, loose).MaxLead)
		},
	}
}

func momentum() plan {
	base := problem
	base.LR, base.Momentum = learningRate/10, 0.9
	return plan{
		Study: Study{
			Title:   "The same with momentum",
			Setting: describe(&base, fmt.Sprintf("time until the loss is %g", targetLoss)),
			columns: []column{timeTo, overBSP, accuracy},
		},
		clusters: mustCluster(four, even), policies: mustParse("ssp:s=15", "asp"), base: base, folds: 1,
	}
}

func strategySwitch() plan {
	base := Setting{LR: learningRate, Batch: batchSize, Epochs: switchEpochs, DecayAt: decayEpoch}
	train, _ := split(0)
	steps := switchEpochs * len(train) / batchSize
	var specs []string
	for a := 1; a <= 9; a++ {
		specs = append(specs, fmt.Sprintf("strategy-switch:at=0.%d,steps=%d", a, steps))
	}
	specs = append(specs, "strategy-switch", "asp")
	return plan{
		Study: Study{
			Title: "Strategy-Switch: synchronous first, then asynchronous",
			Setting: describe(&base, fmt.Sprintf("%d epochs, the learning rate a tenth from epoch %d on; %d folds", switchEpochs,
				decayEpoch, Folds)),
			columns: []column{rateRatio, predicted, accuracy, gain, switchedAt},
		},
		clusters: mustCluster(four), policies: mustParse(specs...), base: base, folds: Folds,
		tell: func(s *Study) { tellSwitch(s, steps) },
	}
}

// tellSwitch compares with the formula: with the synchronous share f, and asp x times as fast, the whole is 1/(f + (1-f)/x) times
// as fast.
func tellSwitch(s *Study, steps int) {
	bsp, x := s.row(four, "bsp"), s.row(four, "asp").RateRatio
	worst, within := 0.0, 0
	for i := range s.Rows {
		r := &s.Rows[i]
		if !strings.HasPrefix(r.Policy, "strategy-switch") {
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
	s.find("speed-ups are at most %.1f%% from 1/(f + (1-f)/%.2f)", 100*worst, x)
	s.find("%d of 10 have an accuracy within bsp's 95%% interval, %.2f ± %.2f", within, bsp.Accuracy.Mean, bsp.Accuracy.Half)
	rule := s.row(four, "strategy-switch")
	if rule.Switches == 0 {
		s.find("the empirical rule never switched: no window of six losses was level enough")
		return
	}
	s.find("the empirical rule switched in %d of %d runs, at epoch %.0f (%.0f to %.0f); the learning rate falls at epoch %d, which "+
		"levels the loss", rule.Switches, rule.Runs, rule.Switched.Median, rule.Switched.Low, rule.Switched.High, decayEpoch)
}

func real() plan {
	base := Setting{LR: learningRate, Batch: batchSize, Epochs: 1, Steps: realSteps}
	return plan{
		Study: Study{
			Title: "By the clock: through an aggregator over shared memory, beside the simulation",
			Setting: describe(&base, fmt.Sprintf("workers sleep for the rest of their steps, of %v to the fastest; %d of those", realStep,
				realSteps)),
			columns: []column{rateRatio, predicted, accuracy},
		},
		clusters: mustCluster(four),
		policies: mustParse("ssp:s=3", "ssp:s=15", strict, loose, "asp", "backup:b=1", "k-asp:k=2", "k-batch-asp:k=2"),
		base:     base, real: true,
		tell: func(s *Study) {
			worst := 0.0
			for i := range s.Rows {
				worst = max(worst, math.Abs(s.Rows[i].RateRatio/s.Rows[i].Predicted-1))
			}
			s.find("rates are at most %.0f%% from the simulation's", 100*worst)
		},
	}
}
