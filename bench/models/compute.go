package models

import (
	"slices"
	"time"
)

// Compute is the time of a forward and a backward pass together.
type Compute struct {
	Time   time.Duration
	Batch  int    // samples that a worker computes in it. If 0, it is not known
	Source string // where the time comes from
}

// phub is a time, in milliseconds, that the Parameter Hub paper gives.
func phub(ms, batch int) Compute {
	return Compute{time.Duration(ms) * time.Millisecond, batch, "Luo et al., arXiv:1805.07891, table 3, GTX 1080 Ti"}
}

// spread divides the model's time among its tensors by their shares of the work. A backward pass does a forward pass's work twice:
// once for the gradients of weights, once for those of inputs.
func (m *Model) spread(work []float64) {
	var total float64
	for _, w := range work {
		total += w
	}
	if total == 0 {
		return
	}
	third := float64(m.Compute.Time) / 3
	for i := range m.Tensors {
		share := third * work[i] / total
		m.Tensors[i].Forward, m.Tensors[i].Backward = time.Duration(share), time.Duration(2*share)
	}
}

// Computing returns the model with passes that take so long together: its own times in proportion, or, where it has none, times by
// the tensors' elements.
func (m Model) Computing(total time.Duration) Model {
	m.Tensors = slices.Clone(m.Tensors)
	if m.Compute.Time > 0 {
		scale := float64(total) / float64(m.Compute.Time)
		for i := range m.Tensors {
			t := &m.Tensors[i]
			t.Forward, t.Backward = time.Duration(float64(t.Forward)*scale), time.Duration(float64(t.Backward)*scale)
		}
	} else {
		m.Compute.Time = total
		work := make([]float64, len(m.Tensors))
		for i, t := range m.Tensors {
			work[i] = float64(t.Elems())
		}
		m.spread(work)
	}
	m.Compute = Compute{total, m.Compute.Batch, "as given"}
	return m
}
