package hierarchy

import (
	"fmt"
	"math"
	"slices"
)

// Rounds are the transfers, from one rack to another, by which links are measured, in rounds: those of a round go at once. Each
// rack sends or receives in a round, from one other, so that transfers share no rack's uplink, nor do acknowledgements share it
// with another's data. Where a round's transfers all leave a pod, the whole pod sends.
func Rounds(racks int) (rounds [][][2]int) {
	for step := 1; step < racks; step++ {
		cycles := step
		for n := racks; n > 0; cycles, n = n, cycles%n { // their greatest common divisor
		}
		long := racks / cycles // of the cycle that each step of i to i+step makes
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

// Links are the links between the racks' aggregators as they were measured, in Rounds.
type Links struct {
	Names   []string    `json:"racks"`
	Pods    int         `json:"pods"`           // equal runs of racks; 0 or 1: none
	Rate    [][]float64 `json:"rates"`          // bytes per second, by sender and receiver
	Latency [][]float64 `json:"latencies"`      // seconds one way, the same
	Seconds float64     `json:"probe_seconds"`  // that measuring took
	By      string      `json:"probe_provider"` // over which they were measured
}

// chosen are the shapes that measured links choose between.
var chosen = []Shape{Sharded, Root, Chain, Pods}

// Worthwhile is the part of a step's time that another shape must gain to be taken: predictions are no better.
const Worthwhile = 0.05

// Check returns what of the links cannot be.
func (l *Links) Check() error {
	if t := l.topology(Sharded); len(l.Rate) != len(l.Names) || len(l.Latency) != len(l.Names) || t.Check() != nil {
		return fmt.Errorf("%w: rates of %d and latencies of %d racks, measured among %d in %d pods", ErrCluster, len(l.Rate), len(l.Latency),
			len(l.Names), l.Pods)
	}
	for i, from := range l.Names {
		if len(l.Rate[i]) != len(l.Names) || len(l.Latency[i]) != len(l.Names) {
			return fmt.Errorf("%w: rack %q has %d rates and %d latencies to %d racks", ErrCluster, from, len(l.Rate[i]), len(l.Latency[i]),
				len(l.Names))
		}
		for j, to := range l.Names {
			rate, hop := l.Rate[i][j], l.Latency[i][j]
			if i != j && (!(rate > 0) || math.IsInf(rate, 0) || !(hop >= 0) || math.IsInf(hop, 0)) {
				return fmt.Errorf("%w: the link from rack %q to rack %q carries %g B/s after %g s: measure it again", ErrCluster, from, to, rate, hop)
			}
		}
	}
	return nil
}

func (l *Links) topology(s Shape) Topology {
	return Topology{Shape: s, Racks: len(l.Names), Pods: l.Pods}
}

// Uplink returns what a rack sends and receives at most, in bytes per second.
func (l *Links) Uplink(rack int) (out, in float64) {
	for other := range l.Names {
		if other != rack {
			out, in = max(out, l.Rate[rack][other]), max(in, l.Rate[other][rack])
		}
	}
	return out, in
}

// PodUplink returns what left a pod at most in a round, and what entered it.
func (l *Links) PodUplink(pod int) (out, in float64) {
	racks := len(l.Names)
	size := racks / max(l.Pods, 1)
	for _, round := range Rounds(racks) {
		var left, entered float64
		for _, transfer := range round {
			i, j := transfer[0], transfer[1]
			switch {
			case i/size == j/size:
			case i/size == pod:
				left += l.Rate[i][j]
			case j/size == pod:
				entered += l.Rate[i][j]
			}
		}
		out, in = max(out, left), max(in, entered)
	}
	return out, in
}

// Predict returns what crossing the core takes in a step of a topology of these racks: model is the bytes of all sums as they
// cross, chunk those of one chunk. What the racks' own links take is the same in every shape and left out: see [Beside].
func (l *Links) Predict(t Topology, model, chunk float64) Prediction {
	p := Prediction{Shape: t.Shape, Name: t.Shape.String(), Unfit: t.Check()}
	if p.Unfit != nil {
		return p
	}
	load := t.crossing()
	bind := func(bytes, rate float64, format string, args ...any) {
		if bytes > 0 && bytes*model/rate > p.Bound {
			p.Bound, p.Binding = bytes*model/rate, fmt.Sprintf(format, args...)
		}
	}
	for i, name := range l.Names {
		var sent, received float64
		for j := range l.Names {
			sent, received = sent+load[i][j], received+load[j][i]
		}
		out, in := l.Uplink(i)
		bind(sent, out, "what rack %s sends", name)
		bind(received, in, "what rack %s receives", name)
	}
	l.bindPods(load, bind)
	for i := range l.Names {
		for j := range l.Names {
			bind(load[i][j], l.Rate[i][j], "the link from rack %s to rack %s", l.Names[i], l.Names[j])
		}
	}
	p.Fill = l.fill(t, chunk)
	p.Seconds = p.Bound + p.Fill
	return p
}

// Beside returns predictions of crossing the core as those of whole steps, the fastest first: workers and aggregators exchange
// within racks meanwhile, as is predicted of one rack alone. Both stream, so the slower one binds, and the last chunk takes both.
func Beside(all []Prediction, rack Prediction) []Prediction {
	all = slices.Clone(all)
	for i := range all {
		p := &all[i]
		if p.Unfit != nil {
			continue
		}
		if rack.Bound > p.Bound {
			p.Bound, p.Binding = rack.Bound, rack.Binding
		}
		p.Fill += rack.Fill
		p.Seconds = p.Bound + p.Fill
	}
	fastestFirst(all)
	return all
}

// bindPods tells what crosses the pods' uplinks.
func (l *Links) bindPods(load [][]float64, bind func(bytes, rate float64, format string, args ...any)) {
	size := len(l.Names) / max(l.Pods, 1)
	for pod := range max(l.Pods, 1) {
		var left, entered float64
		for i := range load {
			for j := range load {
				switch {
				case i/size == j/size:
				case i/size == pod:
					left += load[i][j]
				case j/size == pod:
					entered += load[i][j]
				}
			}
		}
		out, in := l.PodUplink(pod)
		bind(left, out, "what the pod of rack %s sends", l.Names[pod*size])
		bind(entered, in, "what the pod of rack %s receives", l.Names[pod*size])
	}
}

// crossing is what racks send each other in a step, by sender and receiver, in models.
func (t Topology) crossing() [][]float64 {
	load := make([][]float64, t.Racks)
	for i := range load {
		load[i] = make([]float64, t.Racks)
	}
	owners := t.Owners()
	for _, owner := range owners {
		for rack := range t.Racks {
			if parent := t.Route(rack, owner).Parent; parent >= 0 {
				load[rack][parent] += 1 / float64(len(owners))
				load[parent][rack] += 1 / float64(len(owners))
			}
		}
	}
	return load
}

// fill is what the last chunk takes alone, of the owner for whom that is longest: on every hop its latency, and as many chunks as
// come to the same rack at once.
func (l *Links) fill(t Topology, chunk float64) (longest float64) {
	for _, owner := range t.Owners() {
		var up, down func(rack int) float64
		up = func(rack int) (last float64) {
			children := t.Route(rack, owner).Children
			for _, child := range children {
				last = max(last, up(child)+l.Latency[child][rack])
			}
			_, in := l.Uplink(rack)
			return last + float64(len(children))*chunk/in
		}
		down = func(rack int) (last float64) {
			children := t.Route(rack, owner).Children
			for _, child := range children {
				last = max(last, l.Latency[rack][child]+down(child))
			}
			out, _ := l.Uplink(rack)
			return last + float64(len(children))*chunk/out
		}
		longest = max(longest, up(owner)+down(owner))
	}
	return longest
}

// Choose predicts every shape in which these racks reduce among themselves, the fastest first. Shapes that they cannot have come
// last; once leaves out those in which sums would be rounded more than once.
func (l *Links) Choose(model, chunk float64, once bool) ([]Prediction, error) {
	if err := l.Check(); err != nil {
		return nil, err
	}
	if !(model > 0) || !(chunk > 0) {
		return nil, fmt.Errorf("%w: a model of %g bytes in chunks of %g", ErrCluster, model, chunk)
	}
	var all []Prediction
	for _, s := range chosen {
		t := l.topology(s)
		p := l.Predict(t, model, min(chunk, model))
		if once && p.Unfit == nil {
			p.Unfit = t.CheckOnce()
		}
		all = append(all, p)
	}
	fastestFirst(all)
	return all, nil
}

// Prefer returns the shape to take of predictions in Choose's order: that of now, unless another is enough faster.
func Prefer(all []Prediction, now Shape) Shape {
	i := slices.IndexFunc(all, func(p Prediction) bool { return p.Shape == now && p.Unfit == nil })
	if i >= 0 && all[0].Seconds >= (1-Worthwhile)*all[i].Seconds {
		return now
	}
	return all[0].Shape
}
