package aggregate

import "github.com/rackweave/rackweave/chunk"

// TraceKind says what happened.
type TraceKind uint8

// The kinds of events.
const (
	// TraceArrive: a gradient of a worker's came.
	TraceArrive TraceKind = iota
	// TraceFold: the gradients of all workers made one update, or rank 0's values became the parameters, or the update of a set was
	// made, where Op is [chunk.OpCommit]. Worker is -1.
	TraceFold
	// TraceUpdate: one worker's gradient made an update.
	TraceUpdate
	// TracePull: a worker was sent the parameters.
	TracePull
	// TraceEnd: a worker has ended its step, all of which is applied in this lane.
	TraceEnd
	// TraceGo: the worker may begin its next step.
	TraceGo
)

// TraceEvent is something that happened to a chunk or to a worker's step in a lane.
type TraceEvent struct {
	At     int64  // ns of the aggregator's clock, when it began
	Took   uint32 // ns of arithmetic
	Posted uint32 // ns in which the answers were posted, after that
	Chunk  uint32 // of the lane
	Worker int32
	Kind   TraceKind
	Op     chunk.Op // of the message
	Epoch  uint8    // of the message
}

// trace is a ring of the last events of a job in one lane. Only the lane's goroutine touches it.
type trace struct {
	ring []TraceEvent
	next uint64 // events so far
}

func (t *trace) put(e TraceEvent) {
	t.ring[t.next%uint64(len(t.ring))] = e
	t.next++
}

// take returns what is kept, oldest first, and how many events were overwritten, and begins anew.
func (t *trace) take() (events []TraceEvent, lost uint64) {
	size := uint64(len(t.ring))
	if t.next <= size {
		events = append(events, t.ring[:t.next]...)
	} else {
		lost = t.next - size
		events = append(append(events, t.ring[t.next%size:]...), t.ring[:t.next%size]...)
	}
	t.next = 0
	return events, lost
}
