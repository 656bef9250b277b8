package shard

import (
	"github.com/rackweave/rackweave/aggregate/reduce"
	"github.com/rackweave/rackweave/aggregate/store"
	"github.com/rackweave/rackweave/cgo/kernel"
	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/codec"
)

// gauge measures, in a job whose codecs a controller chooses, one worker's gradients in one lane.
type gauge struct {
	WorkerGauge          // of the lane's tensors, by their place in it; of none unless codecs are chosen
	gradients   []uint64 // by tensor
	answered    int64    // when the last answer was made
	last        int64    // when the last gradient came
	more        bool     // the worker could send another at once
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

func (t *TensorGauge) add(o TensorGauge) {
	*t = TensorGauge{o.Codec, t.Elems + o.Elems, t.Energy + o.Energy, t.Lost + o.Lost}
}

const (
	tryEvery = 100 // steps between the gradients of a worker that candidates are tried with
	tryMost  = 0.1 // of a gradient's energy: if its codec has lost more, the losses of others cannot be measured
)

// fit makes room for the store's tensors.
func (g *gauge) fit(s *store.Store) {
	if s.Codecs.Auto != "" {
		more := len(s.Tensors) - len(g.Tensors)
		g.Tensors, g.gradients = append(g.Tensors, make([]TensorGauge, more)...), append(g.gradients, make([]uint64, more)...)
	}
}

// arrive measures a gradient. One that was NACKed comes twice, which changes the sums little and steps not at all.
func (g *gauge) arrive(s *Shard, rank int, c *store.Chunk, m *reduce.Message) {
	t, gradients, now := &g.Tensors[c.Tensor], &g.gradients[c.Tensor], s.Lane.Stamp
	if newer := (m.Epoch - uint8(*gradients)) & chunk.EpochMask; newer > 0 {
		if *gradients += uint64(newer); (*gradients-1)%tryEvery == uint64(rank)%tryEvery && len(s.Store.Candidates) > 0 {
			s.try(c, m)
		}
	}
	if *gradients > g.Steps {
		g.Steps, g.Computed = *gradients, 0
		if g.answered > 0 {
			g.Computed = now - g.answered
		}
	}
	if g.more {
		g.Flow.Bytes, g.Flow.Chunks, g.Flow.NS = g.Flow.Bytes+int64(m.Bytes), g.Flow.Chunks+1, g.Flow.NS+now-g.last
	}
	g.last, g.more = now, false
	if m.Where.Form == 0 {
		return
	}
	h := codec.HeaderOf(store.Bytes(m.Where.Payload, codec.HeaderBytes))
	g.more = h.More
	if t.Codec != h.ID {
		*t = TensorGauge{Codec: h.ID}
	}
	t.add(TensorGauge{h.ID, uint64(c.Elems), float64(h.Energy), float64(h.Lost)})
}

// try measures what the candidates that are shorter than a gradient's payload would lose of it.
func (s *Shard) try(c *store.Chunk, m *reduce.Message) {
	k, values, payload := &s.Scratch.Arithmetic, m.Where.Payload, s.buffers.Addr(store.NumBuffers+1)
	if m.Where.Form != 0 {
		if h := codec.HeaderOf(store.Bytes(values, codec.HeaderBytes)); !(h.Lost <= tryMost*h.Energy) {
			return
		}
		from := s.Scratch.sources(1)
		from.set(0, &m.Where)
		values = s.buffers.Addr(store.NumBuffers)
		from.Type = kernel.F32
		k.SumInto(values, kernel.F32, from.listed(), c.Elems)
	}
	for i, by := range s.Store.Candidates {
		t := &s.tries[int(c.Tensor)*len(s.Store.Candidates)+i]
		switch {
		case by.ID == codec.Raw && m.Where.Form == 0:
			t.add(TensorGauge{by.ID, uint64(c.Elems), kernel.SumSq(k.ISA, values, uint64(c.Elems)), 0})
		case by.Bytes(int(c.Elems)) < int(m.Bytes):
			e := s.Store.Encoding(c, by)
			// An earlier candidate has left a finite residual, which the factor 0 cancels.
			e.Values, e.Payload, e.Memory, e.Factor = values, payload, s.buffers.Addr(store.NumBuffers+2), 0
			if e.Run(k.ISA) < s.Store.WireBytes(c) {
				h := codec.HeaderOf(store.Bytes(payload, codec.HeaderBytes))
				t.add(TensorGauge{by.ID, uint64(c.Elems), float64(h.Energy), float64(h.Lost)})
			}
		}
	}
}

// ReadGauges moves the workers' measurements to out, by rank, and those of candidates to tries, by tensor and candidate. It leaves
// those of tensors that these have no room for. It is called on the lane's goroutine.
func (s *Shard) ReadGauges(out []WorkerGauge, tries []TensorGauge) {
	n := len(s.Store.Candidates)
	for i := range s.tries {
		if at := s.Store.Tensors[i/n].Number*n + i%n; at < len(tries) {
			tries[at].add(s.tries[i])
			s.tries[i] = TensorGauge{}
		}
	}
	for rank, k := range s.Workers.links {
		if k == nil {
			continue
		}
		g, o := &k.gauge, &out[rank]
		o.Steps, o.Computed = max(o.Steps, g.Steps), max(o.Computed, g.Computed)
		// Lanes receive at the same time, over one link.
		o.Flow.Bytes, o.Flow.Chunks, o.Flow.NS = o.Flow.Bytes+g.Flow.Bytes, o.Flow.Chunks+g.Flow.Chunks, max(o.Flow.NS, g.Flow.NS)
		g.Flow = FlowGauge{}
		for i := range g.Tensors {
			t, number := &g.Tensors[i], s.Store.Tensors[i].Number
			if t.Elems == 0 || number >= len(o.Tensors) || o.Tensors[number].Elems > 0 && o.Tensors[number].Codec != t.Codec {
				continue
			}
			o.Tensors[number].add(*t)
			*t = TensorGauge{Codec: t.Codec}
		}
	}
}
