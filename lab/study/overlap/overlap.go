package overlap

import (
	"math"
	"sort"

	"github.com/rackweave/rackweave/bench/models"
	"github.com/rackweave/rackweave/pqueue"
)

// Way is a way to exchange gradients among workers that have one NIC each. Shares are in models, of N workers.
type Way struct {
	Name string
	// Up is the share of a gradient that the busiest NIC carries until it is summed, in either direction. Down is the share of the
	// result that it carries until everybody has it.
	Up, Down float64
	// Shared: both use the same direction of the NIC, because it serves as well as asks. Otherwise they go beside each other.
	Shared bool
	// Grain is the most bytes that go in one piece, which anything more urgent waits for. If 0, whole tensors.
	Grain float64
	// Urgent: what the next forward pass needs first goes first; otherwise what was ready first.
	Urgent bool
}

// Ways are those of the RackWeave paper's Table II, and what their bytes are with N workers: an aggregator with a NIC for each of
// them; parameter servers sharded over the workers' machines; and a ring, whose two halves are one operation.
func Ways(n int) []Way {
	part := float64(n-1) / float64(n)
	return []Way{
		{Name: "aggregator", Up: 1, Down: 1, Grain: 32 << 10, Urgent: true},
		{Name: "sharded servers", Up: part, Down: part, Shared: true, Urgent: true},
		{Name: "ring", Up: 2 * part},
	}
}

// Step has the times of one step, in seconds.
type Step struct {
	Total, Compute float64
	Exposed        float64 // in which the forward pass waits for parameters
}

// Step returns the time from the begin of a backward pass to the begin of the next, with links of so many bytes per second. All
// parameters have arrived when a backward pass begins, so that steps do not reach into each other. A tensor's gradient is there
// when its layer's backward pass is done. It crosses the link, and the result crosses it back, in pieces; a layer's forward pass
// begins when that of the layer before is done and its own parameters are there. Latency and work of the processors are left out:
// it is the least that a step can take.
func (w Way) Step(m models.Model, rate float64) Step {
	there := w.arrivals(m, rate)
	var s Step
	for _, t := range m.Tensors {
		s.Compute += t.Forward.Seconds() + t.Backward.Seconds()
	}
	for _, t := range m.Tensors {
		s.Total += t.Backward.Seconds()
	}
	for i, t := range m.Tensors {
		s.Total = max(s.Total, there[i]) + t.Forward.Seconds()
	}
	s.Exposed = s.Total - s.Compute
	return s
}

// piece is a part of a tensor on its way.
type piece struct {
	tensor, order int
	bytes         float64 // of the gradient
	result        bool
}

// before reports whether a link takes piece a before b.
func (w Way) before(a, b piece) bool {
	if w.Urgent && a.tensor != b.tensor {
		return a.tensor < b.tensor
	}
	return a.order < b.order
}

// arrival is a piece that comes to a link.
type arrival struct {
	at float64
	piece
}

// carry sends pieces over a link, one at a time, and tells when each is through; then may return one that follows it over the same
// link.
func (w Way) carry(in []arrival, seconds func(piece) float64, then func(piece, float64) (piece, bool)) {
	sort.SliceStable(in, func(i, j int) bool { return in[i].at < in[j].at })
	q := pqueue.New(w.before)
	free := 0.0
	for len(in) > 0 || q.Len() > 0 {
		if q.Len() == 0 {
			free = max(free, in[0].at)
		}
		for len(in) > 0 && in[0].at <= free {
			q.Push(in[0].piece)
			in = in[1:]
		}
		p := q.Pop()
		free += seconds(p)
		if next, ok := then(p, free); ok {
			q.Push(next)
		}
	}
}

// arrivals returns when each tensor's result is there, counted from the begin of the backward pass.
func (w Way) arrivals(m models.Model, rate float64) []float64 {
	var up []arrival
	now, order := 0.0, 0
	for t := len(m.Tensors) - 1; t >= 0; t-- {
		now += m.Tensors[t].Backward.Seconds()
		bytes := 4 * float64(m.Tensors[t].Elems())
		n := 1
		if w.Grain > 0 {
			n = int(math.Ceil(bytes / w.Grain))
		}
		for range n {
			up = append(up, arrival{now, piece{tensor: t, order: order, bytes: bytes / float64(n)}})
			order++
		}
	}
	there := make([]float64, len(m.Tensors))
	done := func(p piece, at float64) { there[p.tensor] = max(there[p.tensor], at) }
	seconds := func(p piece) float64 {
		if p.result {
			return p.bytes * w.Down / rate
		}
		return p.bytes * w.Up / rate
	}
	var down []arrival
	w.carry(up, seconds, func(p piece, at float64) (piece, bool) {
		switch {
		case p.result || w.Down == 0:
			done(p, at)
			return piece{}, false
		case w.Shared:
			p.result = true
			return p, true
		}
		p.result = true
		down = append(down, arrival{at, p})
		return piece{}, false
	})
	w.carry(down, seconds, func(p piece, at float64) (piece, bool) {
		done(p, at)
		return piece{}, false
	})
	return there
}

// Enough returns the least rate, in bytes per second, with which a step takes at most share more than its computation alone: from
// there on communication stops mattering. It is at most the rate at which the model crosses the link in a thousandth of the
// computation.
func (w Way) Enough(m models.Model, share float64) float64 {
	var bytes float64
	for _, t := range m.Tensors {
		bytes += 4 * float64(t.Elems())
	}
	high := 1000 * bytes / m.Compute.Time.Seconds()
	low := high / 1e6
	for range 40 {
		middle := math.Sqrt(low * high)
		if s := w.Step(m, middle); s.Total <= (1+share)*s.Compute {
			high = middle
		} else {
			low = middle
		}
	}
	return high
}
