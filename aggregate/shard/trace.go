package shard

import (
	"context"
	"slices"

	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/codec"
)

// TraceKind is the kind of an event.
type TraceKind uint8

const (
	// TraceArrive is the arrival of a worker's gradient.
	TraceArrive TraceKind = iota
	// TraceFold is an update by the gradients of all workers, the adoption of rank 0's values as the parameters, or, where Op is
	// [chunk.OpCommit], the update of a set. Worker is -1.
	TraceFold
	// TraceUpdate is an update by one worker's gradient.
	TraceUpdate
	// TracePull is an answer with the parameters to one worker.
	TracePull
	// TraceEnd is the end of a worker's step, after this lane has applied all of it.
	TraceEnd
	// TraceGo is the release of a worker to its next step.
	TraceGo
)

// TraceEvent is an event of a chunk or of a worker's step in a lane.
type TraceEvent struct {
	At     int64  // ns of the aggregator's clock at the beginning
	Took   uint32 // ns of arithmetic
	Posted uint32 // ns from the arithmetic to the last posted answer
	Chunk  uint32 // its index in the lane
	Worker int32
	Kind   TraceKind
	Op     chunk.Op // of the message
	Epoch  uint8    // of the message
	Codec  codec.ID // of the gradient that arrives, or of the answer to a fold
	Bytes  uint32   // of the same
	Rows   uint32   // of a sparse tensor: the rows in the lane before the end of an update, or the number of rows pulled; else 0
}

// trace is a ring of the last events of a job in one lane. If nil, no event is kept.
type trace struct {
	events []TraceEvent
	next   uint64 // number of events so far
}

func (t *trace) put(e TraceEvent) {
	if t != nil {
		t.events[t.next%uint64(len(t.events))] = e
		t.next++
	}
}

// traceTime returns the time for an event, or 0 if none is kept.
func (s *Shard) traceTime() int64 {
	if s.trace == nil {
		return 0
	}
	return s.Lane.Now()
}

// Trace keeps the last n events from now on, or none if n is 0. It returns the events that were kept until now, oldest first, and
// the number of events that newer ones replaced.
func (s *Shard) Trace(ctx context.Context, n int) (events []TraceEvent, lost uint64, err error) {
	var next, t *trace
	if n > 0 {
		next = &trace{events: make([]TraceEvent, n)}
	}
	if err := s.Flow.Do(ctx, func() error { t, s.trace = s.trace, next; return nil }); err != nil || t == nil {
		return nil, 0, err
	}
	size := uint64(len(t.events))
	if t.next <= size {
		return t.events[:t.next], 0, nil
	}
	return slices.Concat(t.events[t.next%size:], t.events[:t.next%size]), t.next - size, nil
}
