package shard

import (
	"github.com/rackweave/rackweave/aggregate/pace"
	"github.com/rackweave/rackweave/aggregate/reduce"
	"github.com/rackweave/rackweave/aggregate/store"
	"github.com/rackweave/rackweave/cgo/kernel"
	"github.com/rackweave/rackweave/chunk"
)

// stream is the part of a shard in mode stream. It implements pace.Shard.
type stream struct {
	*Shard
	update pace.Update // of the set under way
	drift  drift
}

// Stream returns the shard of a job in mode stream for the job's gate.
func (s *Shard) Stream() pace.Shard { return s.stream }

// Admit puts a worker's step into a set, its gradients times weight.
func (m *stream) Admit(rank int, set uint64, weight float64) {
	if k := m.Workers.links[rank]; k != nil {
		k.stream.weight = weight
		m.Machine.Admit(m.Lane.Stamp, rank, set)
		m.CarryOut()
	}
}

// LeaveOut puts a worker's step into no set.
func (m *stream) LeaveOut(rank int) {
	m.Machine.LeaveOut(m.Lane.Stamp, rank)
	m.CarryOut()
}

// UpdateSet makes the update of the oldest set.
func (m *stream) UpdateSet(u pace.Update) {
	m.update = u
	m.Machine.UpdateSet(m.Lane.Stamp)
	m.CarryOut()
}

// Release answers the commit with which a worker ended its step.
func (m *stream) Release(rank int, answer chunk.TensorRecord, next reduce.Standing) {
	if k := m.Workers.links[rank]; k != nil {
		k.stream.answer = answer
		m.Machine.Release(m.Lane.Stamp, rank, next)
		m.CarryOut()
	}
}

// Lose takes out a lost worker while the job continues.
func (m *stream) Lose(rank int) {
	if k := m.Workers.links[rank]; k != nil {
		m.Workers.cut(k)
		k.stream.lost = true
		m.Machine.Lose(m.Lane.Stamp, rank)
		m.CarryOut()
	}
}

func (m *stream) updateOne(a *reduce.Action) {
	s := m.Shard
	c, of := &s.Store.Chunks[a.Index], &s.Workers.links[a.Worker].stream
	m.pushed(a.Worker, c)
	tau := c.Updates - min(c.Updates, of.seen[a.Index]) // a restored job may have had fewer updates
	factor := s.Job.Gate.Rate(uint64(tau))
	p := payload{buffer: store.NoBuffer}
	var outs []uint64
	if a.Buffered {
		p = s.answerOf(a, c)
		s.Scratch.outs[0] = p.addr
		outs = s.Scratch.outs[:1]
	}
	t0 := s.traceTime()
	s.Scratch.StepOne(s.Store, c, &of.hypers[c.Tensor], factor, len(s.Workers.links), m.gradient(a, c), outs)
	if a.Buffered {
		of.seen[a.Index] = c.Updates
		m.read(a.Worker, c)
	}
	t1 := s.traceTime()
	s.answer(a.Worker, &a.Message, a, p)
	s.trace.put(TraceEvent{At: t0, Took: uint32(t1 - t0), Posted: uint32(s.traceTime() - t1), Kind: TraceUpdate, Op: a.Op,
		Epoch: a.Epoch, Worker: a.Worker, Chunk: a.Index})
	s.release(p.buffer)
	s.Lane.Count.Chunks++
}

// addOne adds one worker's gradient to the chunk's accumulator, and acknowledges it. The update takes the hyper-parameters of the
// worker that is added last.
func (m *stream) addOne(a *reduce.Action) {
	s := m.Shard
	c, of := &s.Store.Chunks[a.Index], &s.Workers.links[a.Worker].stream
	m.pushed(a.Worker, c)
	s.Scratch.AccumulateOne(s.Store, c, m.gradient(a, c), of.weight, s.buffers.Addr(store.NumBuffers))
	s.Store.Tensors[c.Tensor].Hyper = of.hypers[c.Tensor]
	s.answer(a.Worker, &a.Message, a, payload{buffer: store.NoBuffer})
	s.Lane.Count.Chunks++
}

// gradient returns the payload of one worker's gradient.
func (m *stream) gradient(a *reduce.Action, c *store.Chunk) kernel.Sources {
	src := m.Scratch.sources(1)
	src.set(0, &a.Message.Where)
	src.Type = uint8(m.Store.Tensors[c.Tensor].Wire)
	return src.listed()
}

// applySet makes the update of the set under way to one chunk.
func (m *stream) applySet(c *store.Chunk, index uint32) {
	s, at := m.Shard, m.traceTime()
	s.Scratch.ApplySet(s.Store, c, m.update.Size, m.update.Rate, len(s.Workers.links))
	s.trace.put(TraceEvent{At: at, Took: uint32(s.traceTime() - at), Kind: TraceFold, Op: chunk.OpCommit, Worker: -1, Chunk: index})
}

func (m *stream) answerStep(a *reduce.Action) {
	s := m.Shard
	p := s.record(&s.Workers.links[a.Worker].stream.answer)
	s.trace.put(TraceEvent{At: s.traceTime(), Kind: TraceGo, Op: a.Op, Epoch: a.Epoch, Worker: a.Worker})
	s.answer(a.Worker, &a.Message, a, p)
	s.release(p.buffer)
}
