package shard

import (
	"github.com/rackweave/rackweave/aggregate/reduce"
	"github.com/rackweave/rackweave/aggregate/store"
	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/codec"
)

// gauge measures, in a job whose codecs a controller chooses, one worker's gradients in one lane.
type gauge struct {
	tensors  []tensorGauge // by tensor of the lane; nil unless codecs are chosen
	steps    uint64
	computed int64
	answered int64 // when the last answer was made
	last     int64 // when the last gradient came
	more     bool  // the worker could send another at once
	flow     FlowGauge
}

type tensorGauge struct {
	gradients uint64
	TensorGauge
}

// WorkerGauge holds the measurements of a worker since they were last read.
type WorkerGauge struct {
	Steps    uint64 // begun since the job did: the gradients of the tensor that had the most
	Computed int64  // ns from the last answer of a step to the first gradient of the next, in the last step; 0 if unknown
	Flow     FlowGauge
	Tensors  []TensorGauge // by number in the plan
}

// FlowGauge holds the gradients that came when their worker could send at once, so that the link alone decided when.
type FlowGauge struct {
	Bytes, Chunks, NS int64
}

// TensorGauge sums what the headers of a tensor's gradients in one codec tell. Gradients in other codecs do not count.
type TensorGauge struct {
	Codec        codec.ID
	Elems        uint64
	Energy, Lost float64
}

// fit makes room for the store's tensors.
func (g *gauge) fit(s *store.Store) {
	if s.Codecs.Auto != "" {
		g.tensors = append(g.tensors, make([]tensorGauge, len(s.Tensors)-len(g.tensors))...)
	}
}

// arrive measures a gradient. One that was NACKed comes twice, which changes the sums little and steps not at all.
func (g *gauge) arrive(s *Shard, c *store.Chunk, m *reduce.Message) {
	t, now := &g.tensors[c.Tensor], s.Lane.Stamp
	t.gradients += uint64((m.Epoch - uint8(t.gradients)) & chunk.EpochMask)
	if t.gradients > g.steps {
		g.steps, g.computed = t.gradients, 0
		if g.answered > 0 {
			g.computed = now - g.answered
		}
	}
	if g.more {
		g.flow.Bytes, g.flow.Chunks, g.flow.NS = g.flow.Bytes+int64(m.Bytes), g.flow.Chunks+1, g.flow.NS+now-g.last
	}
	g.last, g.more = now, false
	if m.Where.Form == 0 {
		return
	}
	h := codec.HeaderOf(store.Bytes(m.Where.Payload, codec.HeaderBytes))
	g.more = h.More
	if t.Codec != h.ID {
		t.TensorGauge = TensorGauge{Codec: h.ID}
	}
	t.Elems, t.Energy, t.Lost = t.Elems+uint64(c.Elems), t.Energy+float64(h.Energy), t.Lost+float64(h.Lost)
}

// ReadGauges adds the workers' measurements to out, by rank, and begins anew, except of tensors for which out has no room. It is
// called on the lane's goroutine.
func (s *Shard) ReadGauges(out []WorkerGauge) {
	for rank, k := range s.Workers.links {
		if k == nil {
			continue
		}
		g, o := &k.gauge, &out[rank]
		o.Steps, o.Computed = max(o.Steps, g.steps), max(o.Computed, g.computed)
		// Lanes receive at the same time, over one link.
		o.Flow.Bytes, o.Flow.Chunks, o.Flow.NS = o.Flow.Bytes+g.flow.Bytes, o.Flow.Chunks+g.flow.Chunks, max(o.Flow.NS, g.flow.NS)
		g.flow = FlowGauge{}
		for i := range g.tensors {
			t, number := &g.tensors[i].TensorGauge, s.Store.Tensors[i].Number
			if t.Elems == 0 || number >= len(o.Tensors) {
				continue
			}
			sum := &o.Tensors[number]
			if sum.Elems > 0 && sum.Codec != t.Codec {
				continue
			}
			*sum = TensorGauge{t.Codec, sum.Elems + t.Elems, sum.Energy + t.Energy, sum.Lost + t.Lost}
			*t = TensorGauge{Codec: t.Codec}
		}
	}
}
