package learn

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"

	"github.com/rackweave/rackweave/bench/study"
	"github.com/rackweave/rackweave/bench/study/simulate"
	"github.com/rackweave/rackweave/bench/study/task"
	"github.com/rackweave/rackweave/hierarchy/outer"
	"github.com/rackweave/rackweave/policy"
)

// The problem of all studies: without momentum, at the rate that lets BSP reach the target in about a hundred of its steps.
const (
	testImages   = 540
	hidden       = 32
	learningRate = 0.8
	batchSize    = 128
	targetLoss   = 0.18
	mostEpochs   = 200
)

// Strategy-Switch is told how many steps the training takes.
const (
	switchEpochs = 60
	decayEpoch   = 30
	switchSteps  = switchEpochs * (task.Images - testImages) / batchSize
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

type cluster = simulate.Cluster

var (
	two        = cluster{Steps: []float64{1, 3}}
	four       = cluster{Steps: []float64{1, 1, 3, 3}}
	even       = cluster{Steps: []float64{1, 1, 1, 1}}
	slowOne    = cluster{Steps: []float64{1, 1, 1, 3}}
	straggling = cluster{Steps: []float64{1, 1, 1, 1}, Straggle: 0.05}

	untilIt = fmt.Sprintf("time until the loss is %g", targetLoss)
)

// digits returns the task to recognise digits.
func digits(fold int) task.Task {
	train, test := task.Split(fold, testImages)
	return task.NewDigits(train, test, hidden)
}

func random(seed, stream uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, stream)) }

// problem returns a setting of the studies of policies.
func problem() simulate.Setting {
	return simulate.Setting{
		Task: digits, LR: learningRate, Batch: batchSize, Epochs: mostEpochs, Target: targetLoss, Wire: simulate.Wire,
	}
}

// question is a study of policies, or of the ways in which racks meet, on clusters.
type question struct {
	name, title, note string
	base              simulate.Setting
	columns           []study.Column
	clusters          []cluster
	ways              []string // beside bsp, which always comes first
	folds             int      // if 0, one
	realSteps         int      // through an aggregator, of so many steps of the fastest worker. If 0, simulated
	tell              func(*study.Study)
}

// plan returns the study: every way on every cluster, with every fold and seed, as pairs with bsp.
func (q question) plan() study.Plan {
	folds, s := max(q.folds, 1), &q.base
	setting := fmt.Sprintf("digits, network %d-%d-%d, SGD lr %g", task.Pixels, hidden, task.Classes, s.LR)
	if s.Momentum > 0 {
		setting += fmt.Sprintf(" momentum %g", s.Momentum)
	}
	setting += fmt.Sprintf(", batch %d/n, step times with jitter %g; %s", s.Batch, simulate.Jitter, q.note)
	p := study.Plan{
		Name: q.name, Title: q.title, Setting: setting, Heads: "cluster\tpolicy", Columns: q.columns, Tell: q.tell,
		Runs: func(seeds int) int { return folds * seeds },
	}
	if q.realSteps > 0 {
		p.Alone, p.Runs = true, func(int) int { return 1 }
	}
	p.Rows = func(context.Context, *study.Config) ([]study.Row, error) {
		rows := make([]study.Row, len(q.clusters)*(1+len(q.ways)))
		for i := range rows {
			r, s, k := &rows[i], q.base, i%(1+len(q.ways))
			s.Cluster = q.clusters[i/(1+len(q.ways))]
			r.Base, r.Cluster, r.Way = &rows[i-k], s.Cluster.String(), s.Policy.String()
			if k > 0 {
				var err error
				if s.Core > 0 {
					s.Outer, err = outer.Parse(q.ways[k-1])
					r.Way = s.Outer.String()
				} else {
					s.Policy, err = policy.Parse(q.ways[k-1])
					r.Way = s.Policy.String()
				}
				if err != nil {
					return nil, err
				}
			}
			r.Train = func(ctx context.Context, run int) (study.Outcome, error) {
				s := s
				if s.Fold, s.Seed = run%folds, uint64(run/folds+1); q.realSteps > 0 {
					return trainReal(ctx, s, q.realSteps)
				}
				return simulate.Run(ctx, s)
			}
		}
		return rows, nil
	}
	return p
}

// Policies are the studies of synchronization policies.
var Policies = study.Group{
	Head:   "virtual time (but in study real), in steps of the fastest worker; medians and quartiles, means ± 95%",
	Fewest: 1, Plans: plans(),
}

func plans() (plans []study.Plan) {
	for _, q := range questions() {
		plans = append(plans, q.plan())
	}
	return plans
}

func questions() []question {
	momentum, toSwitch, racks, real := problem(), problem(), problem(), problem()
	momentum.LR, momentum.Momentum = learningRate/10, 0.9
	toSwitch.Epochs, toSwitch.Target, toSwitch.DecayAt = switchEpochs, 0, decayEpoch
	racks.Core = coreTime
	real.Epochs, real.Target = 1, 0
	return []question{
		{
			name: "policies", title: fmt.Sprintf("Time until the loss is %g", targetLoss),
			base: problem(), note: "~ is the share of steps that take five times as long",
			columns: []study.Column{timeTo, overBSP, accuracy, rateRatio}, clusters: []cluster{four, straggling},
			ways: []string{"backup:b=1", "k-bsp:k=2", "k-batch-bsp:k=4", "k-asp:k=2", "k-batch-asp:k=2", "softsync:m=2", "ssp:s=3",
				"asp:rate=staleness", strict, loose, "asp"},
		},
		{
			name: "lagtuner", title: "LagTuner's Table 2 in shape",
			base: problem(), note: untilIt,
			columns: []study.Column{timeTo, overBSP, accuracy, rateRatio, maxLead}, clusters: []cluster{two, four, slowOne, even},
			ways: []string{"ssp:s=3", "ssp:s=6", "ssp:s=15", strict, literal, loose, "asp"}, tell: tellLagTuner,
		},
		{
			name: "momentum", title: "The same with momentum",
			base: momentum, note: untilIt,
			columns: []study.Column{timeTo, overBSP, accuracy}, clusters: []cluster{four, even}, ways: []string{"ssp:s=15", "asp"},
		},
		{
			name: "switch", title: "Strategy-Switch: synchronous first, then asynchronous",
			base: toSwitch, folds: task.Folds,
			note:    fmt.Sprintf("%d epochs, the learning rate a tenth from epoch %d on; %d folds", switchEpochs, decayEpoch, task.Folds),
			columns: []study.Column{rateRatio, formula, accuracy, gain, switchedAt}, clusters: []cluster{four},
			ways: switchWays(), tell: tellSwitch,
		},
		{
			name: "racks", title: fmt.Sprintf("Racks that meet seldom: time until the loss is %g, and what crosses the core", targetLoss),
			base:    racks,
			note:    fmt.Sprintf("four racks; the model takes %d steps across the core; bsp: gradients are added in every step", coreTime),
			columns: []study.Column{timeTo, overBSP, accuracy, crossed}, clusters: []cluster{even, four, slowOne},
			ways: []string{"every=4", "every=16", seldom, "every=64", "every=16,rule=sgd"}, tell: tellRacks,
		},
		{
			name: "real", title: "By the clock: through an aggregator over shared memory, beside the simulation",
			base: real, realSteps: realSteps,
			note:    fmt.Sprintf("workers sleep for the rest of their steps, of %v to the fastest; %d of those", realStep, realSteps),
			columns: []study.Column{rateRatio, simulated, accuracy}, clusters: []cluster{four},
			ways: []string{"ssp:s=3", "ssp:s=15", strict, loose, "asp", "backup:b=1", "k-asp:k=2", "k-batch-asp:k=2"}, tell: tellReal,
		},
	}
}

func switchWays() (ways []string) {
	for a := 1; a <= 9; a++ {
		ways = append(ways, fmt.Sprintf("strategy-switch:at=0.%d,steps=%d", a, switchSteps))
	}
	return append(ways, "strategy-switch", "asp")
}

func tellLagTuner(s *study.Study) {
	row := func(c cluster, way string) *study.Row { return s.Row(c.String(), way) }
	for _, c := range []cluster{two, four} {
		time := func(way string) float64 { return row(c, way).Had(toTarget).Median() }
		s.Find("on %s loose takes %.2f of asp's time, %.2f of ssp(3)'s, %.2f of bsp's; strict takes %.2f of bsp's", c,
			time(loose)/time("asp"), time(loose)/time("ssp:s=3"), time(loose)/time("bsp"), time(strict)/time("bsp"))
	}
	s.Find("on even workers loose takes %.2f of bsp's time, strict %.2f", row(even, loose).Over(toTarget).Median(),
		row(even, strict).Over(toTarget).Median())
	s.Find("a lead of at most 15 steps (strict: %.0f) and the published times, those of asp, exclude each other: loose leads by %.0f",
		lead(row(two, strict)), lead(row(two, loose)))
}

// predict returns the speed-up of Strategy-Switch by its formula: with the synchronous share f, and asp x times as fast, the whole
// is 1/(f + (1-f)/x) times as fast. Of other policies it is 0.
func predict(r *study.Row) float64 {
	if !strings.HasPrefix(r.Way, "strategy-switch") {
		return 0
	}
	f, x := 1.0, ratio(r.Beside("asp"))
	if at := r.Had(switched); len(at) > 0 {
		f = at.Median() / switchEpochs
	}
	return 1 / (f + (1-f)/x)
}

func tellSwitch(s *study.Study) {
	bsp := s.Row(four.String(), "bsp").Of(study.Accuracy)
	worst, within := 0.0, 0
	for i := range s.Rows {
		r := &s.Rows[i]
		if predicted := predict(r); predicted > 0 {
			worst = max(worst, math.Abs(ratio(r)/predicted-1))
			if math.Abs(r.Of(study.Accuracy).Mean()-bsp.Mean()) < bsp.Half() {
				within++
			}
		}
	}
	s.Find("speed-ups are at most %.1f%% from 1/(f + (1-f)/%.2f)", 100*worst, ratio(s.Row(four.String(), "asp")))
	s.Find("%d of 10 have an accuracy within bsp's 95%% interval, %s", within, bsp.Interval("%.2f", "%.2f"))
	rule := s.Row(four.String(), "strategy-switch")
	at := rule.Had(switched)
	if len(at) == 0 {
		s.Find("the empirical rule never switched: no window of six losses was level enough")
		return
	}
	s.Find("the empirical rule switched in %d of %d runs, at epoch %s; the learning rate falls at epoch %d, which levels the loss",
		len(at), len(rule.Runs), at.Quartiles("%.0f"), decayEpoch)
}

func tellRacks(s *study.Study) {
	for i := range s.Rows {
		if r := &s.Rows[i]; r.Way == seldom {
			s.Find("on %s racks that meet by %v reach the loss in %.2f of bsp's time, with %.0f times fewer bytes across the core", r.Cluster,
				seldom, r.Over(toTarget).Median(), r.Base.Of(crossing).Median()/r.Of(crossing).Median())
		}
	}
}

func tellReal(s *study.Study) {
	worst := 0.0
	for i := range s.Rows {
		worst = max(worst, math.Abs(ratio(&s.Rows[i])/s.Rows[i].Over(expected).Mean()-1))
	}
	s.Find("rates are at most %.0f%% from the simulation's", 100*worst)
}
