package learn

import (
	"context"
	"fmt"
	"math/rand/v2"

	"github.com/rackweave/rackweave/hierarchy/outer"
)

// outerChunk is the number of parameters in a chunk, whose racks meet at once.
const outerChunk = 64

// rack is one that trains on its own until it meets the others.
type rack struct {
	chance *rand.Rand // its step times
	params *network
	at     int64
	batch  []*image
}

// runRacks trains racks, each as one worker of the cluster, that add their gradients in every step or meet as the setting's Outer
// says. What crosses the core holds them up: [Setting.Core] for the whole model.
func runRacks(ctx context.Context, s Setting) (Outcome, error) {
	n := len(s.Cluster.Steps)
	o := s.Outer
	if o.Every == 0 {
		o = outer.Optimizer{Every: 1, Fragments: 1, LR: 1}
	}
	t := &training{Setting: s, workers: make([]trainee, n), chance: rand.New(rand.NewPCG(s.Seed, 2)),
		params: newNetwork(rand.New(rand.NewPCG(s.Seed, 1))), speed: new(network)}
	t.train, t.test = split(s.Fold)
	racks := make([]rack, n)
	for r := range racks {
		racks[r] = rack{chance: rand.New(rand.NewPCG(s.Seed, uint64(r)+3)), params: new(network)}
		*racks[r].params = *t.params
	}
	var g network
	for step := uint32(1); t.samples < t.Epochs*len(t.train); step++ {
		if ctx.Err() != nil {
			return Outcome{}, context.Cause(ctx)
		}
		for r := range racks {
			own := &racks[r]
			own.batch = t.draw(own.batch[:0])
			own.params.gradient(&g, own.batch)
			for i := range g {
				own.params[i] -= float32(t.LR) * g[i]
			}
			own.at += s.Cluster.stepTime(r, own.chance)
			t.out.Pushes++
		}
		t.samples += t.Batch / n * n
		if t.meet(o, step, racks) && t.Target > 0 && t.look() && t.Stop {
			break
		}
	}
	t.out.Time = t.time()
	t.out.Loss, t.out.Accuracy = t.params.test(t.test)
	return t.out, nil
}

// meet has those chunks meet that are due, and reports whether any is.
func (t *training) meet(o outer.Optimizer, step uint32, racks []rack) bool {
	met := 0
	for first := 0; first < parameters; first += outerChunk {
		if !o.Due(first/outerChunk, step) {
			continue
		}
		end := min(first+outerChunk, parameters)
		met += end - first
		for i := first; i < end; i++ {
			var come float32
			for r := range racks {
				come += t.params[i] - racks[r].params[i]
			}
			t.stepOuter(o, i, come/float32(len(racks)))
			for r := range racks {
				racks[r].params[i] = t.params[i]
			}
		}
	}
	if met == 0 {
		return false
	}
	share := float64(met) / parameters
	t.out.Crossed += share
	for r := range racks {
		t.now = max(t.now, racks[r].at)
	}
	t.now += int64(share * t.Core * unit)
	for r := range racks {
		racks[r].at = t.now
	}
	t.out.Updates++
	return true
}

// stepOuter takes the outer optimizer's step with a parameter by which the racks have come so far.
func (t *training) stepOuter(o outer.Optimizer, i int, come float32) {
	ahead := come
	if mu := float32(o.Momentum); mu > 0 {
		t.speed[i] = mu*t.speed[i] + come
		if ahead = t.speed[i]; o.Rule == outer.Nesterov {
			ahead = come + mu*t.speed[i]
		}
	}
	t.params[i] -= float32(o.LR) * ahead
}

// coreTime is the time of the whole model across the core, in steps of the fastest rack.
const coreTime = 4

// slowOne is four racks of which one takes three times as long.
const slowOne = "1,1,1,3"

func overCore() plan {
	base := problem
	base.Core = coreTime
	var outers []outer.Optimizer
	for _, text := range []string{"every=4", "every=16", "every=16,fragments=4", "every=64", "every=16,rule=sgd"} {
		o, err := outer.Parse(text)
		if err != nil {
			panic("learn: " + err.Error())
		}
		outers = append(outers, o)
	}
	return plan{
		Study: Study{
			Title: fmt.Sprintf("Racks that meet seldom: time until the loss is %g, and what crosses the core", targetLoss),
			Setting: describe(&base, fmt.Sprintf("four racks; the model takes %d steps across the core; bsp: gradients are added in every step",
				coreTime)),
			columns: []column{timeTo, overBSP, accuracy, crossed},
		},
		clusters: mustCluster(even, four, slowOne), outers: outers, base: base, folds: 1,
		tell: func(s *Study) {
			for _, c := range []string{even, four, slowOne} {
				bsp, seldom := s.row(c, "bsp"), s.row(c, outers[2].String())
				s.find("on %s racks that meet by %v reach the loss in %.2f of bsp's time, with %.0f times fewer bytes across the core", c,
					outers[2], seldom.OverBSP.Median, bsp.Crossed.Median/seldom.Crossed.Median)
			}
		},
	}
}
