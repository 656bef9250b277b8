package hierarchy

import (
	"fmt"
	"math"
	"sort"
)

// Loads are the bytes of one step on the busiest link of each class, in its busier direction, for a model of one byte: multiply
// by the model.
type Loads [links]float64

// Loads returns what a shape puts on the links.
func (c *Cluster) Loads(s Shape) (l Loads) {
	R, W, P, Q := float64(c.Racks), float64(c.Workers), float64(c.pods()), float64(c.inPod())
	theta := 2 * (R - 1) / R
	l[WorkerNIC] = 1
	inner := float64(0) // what the aggregators' NICs carry beside their workers
	switch s.taken(c.Racks) {
	case Flat:
		l[Uplink] = W * theta
		l[PodUplink] = Q * W * 2 * (P - 1) / P
	case Sharded:
		inner, l[Uplink] = theta, theta
		l[PodUplink] = Q * 2 * (P - 1) / P
	case Chain:
		// An inner rack passes the sum on and the result back; with two racks there is no inner one.
		inner = math.Min(2, R-1)
		l[Uplink] = inner
		if P > 1 {
			l[PodUplink] = math.Min(2, P-1)
		}
	case Root:
		inner, l[Uplink] = R-1, R-1
		l[PodUplink] = R - Q
	case Spine:
		inner, l[Uplink], l[SpineNIC] = 1, 1, R
		if P > 1 {
			l[PodUplink] = Q
		}
	case Tree:
		up := treeLoad(c.Racks)
		inner, l[Uplink] = up, up
		l[PodUplink] = c.treePodLoad()
	case Pods:
		inner, l[Uplink] = theta, theta
		l[PodUplink] = 2 * (P - 1) / P
	}
	l[AggregatorNIC] = W + inner
	if c.Racks == 1 && s != Spine {
		l[Uplink] = 0
	}
	if P < 2 {
		l[PodUplink] = 0
	}
	return l
}

// treeLoad is what the busiest aggregator of a tree sends, in models: a sum to its parent and a result to each child.
func treeLoad(racks int) float64 {
	most := 0
	for r := range racks {
		n := 0
		if r > 0 {
			n++
		}
		for child := 2*r + 1; child <= 2*r+2; child++ {
			if child < racks {
				n++
			}
		}
		most = max(most, n)
	}
	return float64(most)
}

// treePodLoad counts the tree's edges that leave the busiest pod.
func (c *Cluster) treePodLoad() float64 {
	leaving := make([]int, c.pods())
	for r := 1; r < c.Racks; r++ {
		if a, b := r/c.inPod(), (r-1)/2/c.inPod(); a != b {
			leaving[a]++
			leaving[b]++
		}
	}
	most := 0
	for _, n := range leaving {
		most = max(most, n)
	}
	return float64(most)
}

// Prediction is what a step of a shape takes.
type Prediction struct {
	Shape   Shape   `json:"-"`
	Name    string  `json:"shape"`
	Seconds float64 `json:"seconds"`
	Bound   float64 `json:"bound_seconds"` // of the tightest link, or of the folds
	Fill    float64 `json:"fill_seconds"`
	Binding string  `json:"binding"` // what the bound is of
	Loads   Loads   `json:"-"`       // bytes of the step
	Unfit   error   `json:"-"`       // why the cluster cannot have the shape; then nothing else holds
}

// Predict returns what exchanging a model takes in a shape: model is its bytes on the wire, chunk those of one chunk.
func (c *Cluster) Predict(s Shape, model, chunk float64) Prediction {
	p := Prediction{Shape: s, Name: s.String(), Unfit: s.Fits(c), Loads: c.Loads(s)}
	if p.Unfit != nil {
		return p
	}
	for l := range links {
		p.Loads[l] *= model
	}
	c.bind(&p, chunk)
	if c.Outer.Every > 0 {
		c.between(&p, model, chunk)
	}
	return p
}

// bind fills in what follows from a prediction's loads.
func (c *Cluster) bind(p *Prediction, chunk float64) {
	p.Bound = 0
	for l := range links {
		if rate := c.Rate(l); rate > 0 && p.Loads[l]/rate > p.Bound {
			p.Bound, p.Binding = p.Loads[l]/rate, l.String()
		}
	}
	if c.FoldRate > 0 {
		if folds := p.Loads[AggregatorNIC] / c.FoldRate; folds > p.Bound {
			p.Bound, p.Binding = folds, "aggregator cores"
		}
	}
	p.Fill = c.fill(p.Shape, chunk)
	p.Seconds = p.Bound + p.Fill
}

// between turns the prediction of a step in which racks add all gradients into the mean of the steps from one meeting to the next:
// in some a fragment crosses the core, in the others nothing does.
func (c *Cluster) between(p *Prediction, model, chunk float64) {
	alone := *c
	alone.Racks, alone.Pods, alone.Outer = 1, 0, Outer{}
	rest := alone.Predict(Sharded, model, chunk)
	meetings := float64(max(c.Outer.Fragments, 1))
	for l := range links {
		p.Loads[l] = rest.Loads[l] + (p.Loads[l]-rest.Loads[l])/meetings
	}
	c.bind(p, chunk)
	share := meetings / float64(c.Outer.Every)
	if share*p.Seconds < (1-share)*rest.Seconds {
		p.Binding = rest.Binding
	}
	mean := func(meeting *float64, other float64) { *meeting = share**meeting + (1-share)*other }
	mean(&p.Seconds, rest.Seconds)
	mean(&p.Bound, rest.Bound)
	mean(&p.Fill, rest.Fill)
	for l := range links {
		mean(&p.Loads[l], rest.Loads[l])
	}
}

// fill is what the last chunk takes alone: on every hop its latency, and as many chunks as come to the same node at once, because
// all racks send their chunks in the same order.
func (c *Cluster) fill(s Shape, chunk float64) float64 {
	W, R := float64(c.Workers), float64(c.Racks)
	hops := float64(s.Hops(c))
	together := W // gradients that an aggregator gets at once, and answers
	if s == Flat {
		together = W * R
	}
	fill := 2*c.RackLatency + 2*chunk/c.WorkerNIC + 2*together*chunk/c.AggregatorNIC
	across := math.Min(c.Uplink, c.AggregatorNIC)
	switch {
	case s == Flat && c.Racks > 1:
		fill += 2*(c.CoreLatency-c.RackLatency) + 2*W*(R-1)*chunk/c.Uplink
		hops = 0
	case s == Flat:
		hops = 0
	case s == Spine:
		fill += hops*c.CoreLatency + 2*chunk/across + 2*R*chunk/c.SpineNIC
	case s == Sharded || s == Root:
		if hops > 0 {
			fill += hops*c.CoreLatency + 2*(R-1)*chunk/across
		}
	case s == Pods:
		P, Q := float64(c.pods()), float64(c.inPod())
		fill += hops*c.CoreLatency + 2*(Q+P-2)*chunk/across
	default:
		fill += hops * (c.CoreLatency + chunk/across)
	}
	if c.FoldRate > 0 {
		folds := together + hops/2
		fill += folds * chunk / c.FoldRate
	}
	return fill
}

// Choose predicts every shape, the fastest first. Shapes that the cluster cannot have come last.
func (c *Cluster) Choose(model, chunk float64) ([]Prediction, error) {
	if err := c.Check(); err != nil {
		return nil, err
	}
	if !(model > 0) || !(chunk > 0) || chunk > model {
		return nil, fmt.Errorf("%w: a model of %g bytes in chunks of %g", ErrCluster, model, chunk)
	}
	var all []Prediction
	for _, s := range Shapes() {
		all = append(all, c.Predict(s, model, chunk))
	}
	fastestFirst(all)
	return all, nil
}

// fastestFirst sorts predictions by their time, and those of shapes that cannot be had last.
func fastestFirst(all []Prediction) {
	sort.SliceStable(all, func(i, j int) bool {
		a, b := &all[i], &all[j]
		if (a.Unfit == nil) != (b.Unfit == nil) {
			return a.Unfit == nil
		}
		return a.Seconds < b.Seconds
	})
}
