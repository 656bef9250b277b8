package planner

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"sort"

	"github.com/rackweave/rackweave/hierarchy"
)

// Loads holds the bytes of one step on the busiest link of each class, in its busier direction, for a model of one byte. The bytes
// of a model are a multiple of them. Sums cross between racks without codecs.
type Loads [links]float64

// MarshalJSON returns the bytes by class, without classes that carry none.
func (l Loads) MarshalJSON() ([]byte, error) {
	by := map[string]float64{}
	for class, bytes := range l {
		if bytes > 0 {
			by[Link(class).String()] = bytes
		}
	}
	return json.Marshal(by)
}

// Loads returns the loads of a shape on the links.
func (c *Cluster) Loads(s hierarchy.Shape) Loads {
	one, between := c.coded(), crossing(c.topology(s))
	W := one * float64(c.Workers)
	uplink, podUplink := busiest(between, 1), busiest(between, c.inPod())
	if s == hierarchy.Flat { // each worker's gradient crosses, and no sum
		return Loads{one, W, W * uplink, W * podUplink}
	}
	return Loads{one, W + uplink, uplink, podUplink}
}

// crossing returns the traffic between racks in a step, by sender and receiver, in models.
func crossing(t hierarchy.Topology) [][]float64 {
	load := square(t.Racks)
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

// square returns n times n zeros.
func square(n int) [][]float64 {
	all := make([][]float64, n)
	for i := range all {
		all[i] = make([]float64, n)
	}
	return all
}

// ends returns the sums of what leaves each run of size racks and of what enters it.
func ends(between [][]float64, size int) (out, in []float64) {
	out, in = make([]float64, len(between)/size), make([]float64, len(between)/size)
	for i := range between {
		for j, x := range between[i] {
			if i/size != j/size {
				out[i/size] += x
				in[j/size] += x
			}
		}
	}
	return out, in
}

// busiest returns the largest traffic of a run of size racks, in its busier direction.
func busiest(between [][]float64, size int) float64 {
	out, in := ends(between, size)
	return max(slices.Max(out), slices.Max(in))
}

// Prediction is the predicted time of a step of a shape.
type Prediction struct {
	Shape   hierarchy.Shape `json:"shape"`
	Seconds float64         `json:"seconds"`
	Bound   float64         `json:"bound_seconds"` // time on the tightest link, or on the resource that limits an aggregator
	Fill    float64         `json:"fill_seconds"`
	Binding string          `json:"binding"`                // name of that link or resource
	Loads   Loads           `json:"bytes_by_link,omitzero"` // bytes of the step, where they are known
	Unfit   string          `json:"unfit,omitempty"`        // the reason for which the cluster cannot have the shape; other fields are then invalid
}

// unfit returns the text of an error, or "" if it is nil.
func unfit(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// bind makes what takes so many seconds the bound, if nothing takes longer.
func (p *Prediction) bind(seconds float64, format string, args ...any) {
	if seconds > p.Bound {
		p.Bound, p.Binding = seconds, fmt.Sprintf(format, args...)
	}
}

// Predict returns the time for exchanging a model in a shape. model is its bytes on the wire, and chunk the bytes of one chunk.
func (c *Cluster) Predict(s hierarchy.Shape, model, chunk float64) Prediction {
	p := Prediction{Shape: s, Unfit: unfit(c.Fits(s))}
	if p.Unfit != "" {
		return p
	}
	for l, load := range c.Loads(s) {
		p.Loads[l] = load * model
		if load > 0 {
			p.bind(p.Loads[l]/c.Rate(Link(l)), "%v", Link(l))
		}
	}
	if c.Memory > 0 {
		p.bind(touches*p.Loads[AggregatorNIC]/c.Memory, "aggregator's memory")
	}
	p.Fill = c.fill(s, chunk)
	p.Seconds = p.Bound + p.Fill
	return p
}

// touches is the number of times that a gradient crosses memory: the NIC writes it, and the sum reads it.
const touches = 2

// Capacity returns the number of workers that an aggregator carries, each exchanging a model of so many bytes on the wire per step
// of so many seconds, and the resource that limits it.
func (c *Cluster) Capacity(model, step float64) (workers int, binding string) {
	rate, binding := c.AggregatorNIC, "NIC"
	if c.Memory > 0 && c.Memory/touches < rate {
		rate, binding = c.Memory/touches, "memory"
	}
	return int(rate * step / (model * c.coded())), binding
}

// fill returns the time of the last chunk alone: on every hop its latency, and the serialization of all chunks that reach the node
// at once, because all racks send their chunks in one order.
func (c *Cluster) fill(s hierarchy.Shape, chunk float64) float64 {
	W, R := float64(c.Workers), float64(c.Racks)
	near := chunk * c.coded()
	atOnce, across := W, 0.0 // gradients that an aggregator gets at once, and answers
	if s != hierarchy.Flat {
		rates := slices.Repeat([]float64{min(c.Uplink, c.AggregatorNIC)}, c.Racks)
		across = last(c.topology(s), chunk, rates, rates, func(int, int) float64 { return c.CoreLatency })
	} else if atOnce = W * R; R > 1 {
		across = 2*(c.CoreLatency-c.RackLatency) + 2*W*(R-1)*near/c.Uplink
	}
	fill := 2*c.RackLatency + 2*near/c.WorkerNIC + 2*atOnce*near/c.AggregatorNIC + across
	if c.Memory > 0 {
		fill += atOnce * touches * near / c.Memory
	}
	return fill
}

// last returns the time in which the last chunk alone crosses the core, for the owner with the longest: on every hop its latency,
// and the serialization of all chunks that reach the rack at once.
func last(t hierarchy.Topology, chunk float64, out, in []float64, latency func(from, to int) float64) (longest float64) {
	for _, owner := range t.Owners() {
		var climb func(rack int) (up, down float64)
		climb = func(rack int) (up, down float64) {
			children := t.Route(rack, owner).Children
			for _, child := range children {
				u, d := climb(child)
				up, down = max(up, u+latency(child, rack)), max(down, latency(rack, child)+d)
			}
			n := float64(len(children)) * chunk
			return up + n/in[rack], down + n/out[rack]
		}
		up, down := climb(owner)
		longest = max(longest, up+down)
	}
	return longest
}

// Choose predicts every shape, the fastest first. Shapes that the cluster cannot have come last.
func (c *Cluster) Choose(model, chunk float64) ([]Prediction, error) {
	if err := c.Check(); err != nil {
		return nil, err
	}
	return choose(hierarchy.Shapes(), model, chunk, c.Predict)
}

// choose predicts shapes, and sorts the predictions by their time, with unfit shapes last.
func choose(shapes []hierarchy.Shape, model, chunk float64,
	predict func(s hierarchy.Shape, model, chunk float64) Prediction) (all []Prediction, err error) {
	if !(model > 0) || !(chunk > 0) {
		return nil, fmt.Errorf("%w: a model of %g bytes in chunks of %g", hierarchy.ErrCluster, model, chunk)
	}
	for _, s := range shapes {
		all = append(all, predict(s, model, min(chunk, model)))
	}
	order := func(p *Prediction) float64 {
		if p.Unfit != "" {
			return math.Inf(1)
		}
		return p.Seconds
	}
	sort.SliceStable(all, func(i, j int) bool { return order(&all[i]) < order(&all[j]) })
	return all, nil
}
