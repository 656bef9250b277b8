package planner

import (
	"fmt"
	"math"
	"slices"

	"github.com/rackweave/rackweave/hierarchy"
)

// Rounds schedules the transfers that measure all links between racks. Transfers of one round run at the same time. Each rack sends
// to or receives from one other in a round, so that transfers share no rack's uplink, and no acknowledgements share an uplink with
// another transfer's data. Where a round's transfers all leave a pod, the whole pod sends.
func Rounds(racks int) (rounds [][][2]int) {
	for step := 1; step < racks; step++ {
		cycles := step
		for n := racks; n > 0; cycles, n = n, cycles%n { // their greatest common divisor
		}
		long := racks / cycles // length of the cycle of each step from i to i+step
		parts := make([][][2]int, 2+long%2)
		for start := range cycles {
			for at := range long {
				part := at % 2
				if at == long-1 && long%2 == 1 {
					part = 2
				}
				from := (start + at*step) % racks
				parts[part] = append(parts[part], [2]int{from, (from + step) % racks})
			}
		}
		rounds = append(rounds, parts...)
	}
	return rounds
}

// Links holds measurements of the links between the racks' aggregators, by the transfers of [Rounds].
type Links struct {
	Names   []string    `json:"racks"`
	Pods    int         `json:"pods"`           // equal runs of racks; if 0 or 1, racks are not in pods
	Rate    [][]float64 `json:"rates"`          // bytes per second, by sender and receiver
	Latency [][]float64 `json:"latencies"`      // seconds one way, by sender and receiver
	Seconds float64     `json:"probe_seconds"`  // duration of the measurement
	By      string      `json:"probe_provider"` // provider of the measurement
}

// NewLinks returns links without measurements.
func NewLinks(names []string, pods int, provider string) *Links {
	return &Links{Names: names, Pods: pods, Rate: square(len(names)), Latency: square(len(names)), By: provider}
}

// chosen lists the shapes between which measured links choose.
var chosen = []hierarchy.Shape{hierarchy.Sharded, hierarchy.Root, hierarchy.Chain, hierarchy.Pods}

// Worthwhile is the fraction of a step's time that another shape must gain to be taken, because predictions are not more exact.
const Worthwhile = 0.05

// Check validates the links.
func (l *Links) Check() error {
	for i, from := range l.Names {
		for j, to := range l.Names {
			rate, hop := l.Rate[i][j], l.Latency[i][j]
			if i != j && (!(rate > 0) || math.IsInf(rate, 0) || !(hop >= 0) || math.IsInf(hop, 0)) {
				return fmt.Errorf("%w: the link from rack %q to rack %q carries %g B/s after %g s: measure it again", hierarchy.ErrCluster, from, to, rate, hop)
			}
		}
	}
	return l.topology(hierarchy.Sharded).Check()
}

func (l *Links) topology(s hierarchy.Shape) hierarchy.Topology {
	return hierarchy.Topology{Shape: s, Racks: len(l.Names), Pods: l.Pods}
}

// uplinks returns the largest rates out of each run of size racks and into it in a round.
func (l *Links) uplinks(size int) (out, in []float64) {
	runs := len(l.Names) / size
	out, in = make([]float64, runs), make([]float64, runs)
	for _, round := range Rounds(len(l.Names)) {
		rates := square(len(l.Names))
		for _, t := range round {
			rates[t[0]][t[1]] = l.Rate[t[0]][t[1]]
		}
		left, entered := ends(rates, size)
		for r := range runs {
			out[r], in[r] = max(out[r], left[r]), max(in[r], entered[r])
		}
	}
	return out, in
}

// Predict returns the time for crossing the core in a step of a topology of these racks. model is the bytes of all sums as they
// cross, and chunk the bytes of one chunk. The time on the racks' own links is equal in every shape and left out.
func (l *Links) Predict(t hierarchy.Topology, model, chunk float64) Prediction {
	p := Prediction{Shape: t.Shape, Unfit: unfit(t.Check())}
	if p.Unfit != "" {
		return p
	}
	load := crossing(t)
	bindRuns := func(size int, what string) {
		out, in := l.uplinks(size)
		left, entered := ends(load, size)
		for r := range out {
			if left[r] > 0 {
				p.bind(left[r]*model/out[r], "what %s %s sends", what, l.Names[r*size])
				p.bind(entered[r]*model/in[r], "what %s %s receives", what, l.Names[r*size])
			}
		}
	}
	bindRuns(1, "rack")
	bindRuns(len(l.Names)/max(l.Pods, 1), "the pod of rack")
	for i := range l.Names {
		for j := range l.Names {
			if load[i][j] > 0 {
				p.bind(load[i][j]*model/l.Rate[i][j], "the link from rack %s to rack %s", l.Names[i], l.Names[j])
			}
		}
	}
	out, in := l.uplinks(1)
	p.Fill = last(t, chunk, out, in, func(from, to int) float64 { return l.Latency[from][to] })
	p.Seconds = p.Bound + p.Fill
	return p
}

// Choose predicts every shape in which these racks reduce among themselves, the fastest first. Shapes that they cannot have come
// last. If once is true, so do the shapes that round sums more than once.
func (l *Links) Choose(model, chunk float64, once bool) ([]Prediction, error) {
	if err := l.Check(); err != nil {
		return nil, err
	}
	return choose(chosen, model, chunk, func(s hierarchy.Shape, model, chunk float64) Prediction {
		t := l.topology(s)
		p := l.Predict(t, model, chunk)
		if once && p.Unfit == "" {
			p.Unfit = unfit(t.CheckOnce())
		}
		return p
	})
}

// Prefer returns the shape now, unless another is faster by [Worthwhile]. all is sorted by Choose.
func Prefer(all []Prediction, now hierarchy.Shape) hierarchy.Shape {
	i := slices.IndexFunc(all, func(p Prediction) bool { return p.Shape == now && p.Unfit == "" })
	if i >= 0 && all[0].Seconds >= (1-Worthwhile)*all[i].Seconds {
		return now
	}
	return all[0].Shape
}
