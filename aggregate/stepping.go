package aggregate

import (
	"github.com/rackweave/rackweave/aggregate/reduce"
	"github.com/rackweave/rackweave/chunk"
)

// What a share does in mode stream.

// updateOne applies one worker's gradient by itself and answers it.
func (s *share) updateOne(a *reduce.Action) {
	c := &s.store.chunks[a.Index]
	of := &s.links[a.Worker].stream
	tau := c.updates - min(c.updates, of.seen[a.Index]) // a restored job may have had fewer updates
	factor := s.pace.rate(uint64(tau))
	s.src[0] = a.Message.Payload
	p := payload{result: noResult}
	var outs []uint64
	if a.Result {
		p.result, p.bytes = s.results.take(), s.store.wireBytes(c)
		p.addr = s.results.addr(p.result)
		s.outs[0] = p.addr
		outs = s.outs[:1]
	}
	var t0, t1 int64
	if s.trace != nil {
		t0 = s.now()
	}
	s.stepOne(&s.store, c, &of.hypers[c.tensor], factor, len(s.links), s.src[:1], outs)
	if a.Result {
		of.seen[a.Index] = c.updates
	}
	if s.trace != nil {
		t1 = s.now()
	}
	s.answer(a.Worker, &a.Message, a, p)
	if s.trace != nil {
		s.trace.put(TraceEvent{At: t0, Took: uint32(t1 - t0), Posted: uint32(s.now() - t1), Kind: TraceUpdate, Op: a.Op, Epoch: a.Epoch,
			Worker: a.Worker, Chunk: a.Index})
	}
	if a.Result {
		s.release(p.result)
	}
	s.local.Chunks++
}

// addOne adds one worker's gradient to the chunk's accumulator, and acknowledges it. The update takes the hyper-parameters of the
// worker that is added last.
func (s *share) addOne(a *reduce.Action) {
	c := &s.store.chunks[a.Index]
	of := &s.links[a.Worker].stream
	s.src[0] = a.Message.Payload
	s.accumulateOne(&s.store, c, s.src[:1], of.weight, s.results.addr(resultBuffers))
	s.store.tensors[c.tensor].hyper = of.hypers[c.tensor]
	s.answer(a.Worker, &a.Message, a, payload{result: noResult})
	s.local.Chunks++
}

func (s *share) answerStep(a *reduce.Action) {
	p := payload{bytes: chunk.RecordBytes, result: s.results.take()}
	p.addr = s.results.addr(p.result)
	s.results.write(p.result, &s.links[a.Worker].stream.answer)
	if s.trace != nil {
		s.trace.put(TraceEvent{At: s.now(), Kind: TraceGo, Op: a.Op, Epoch: a.Epoch, Worker: a.Worker})
	}
	s.answer(a.Worker, &a.Message, a, p)
	s.release(p.result)
}
