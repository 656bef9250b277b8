package aggregate

import (
	"context"
	"errors"
	"unsafe"

	"github.com/rackweave/rackweave/aggregate/shard"
)

// TraceEvent is an event of a trace.
type TraceEvent = shard.TraceEvent

const (
	TraceArrive = shard.TraceArrive
	TraceFold   = shard.TraceFold
	TracePull   = shard.TracePull
	TraceEnd    = shard.TraceEnd
	TraceGo     = shard.TraceGo
)

// TraceBytes returns the memory of a trace of n events in each lane: its ring, and a copy in the order of time.
func TraceBytes(n int) int64 { return 2 * int64(n) * int64(unsafe.Sizeof(TraceEvent{})) }

// Trace keeps the last n events of the job in every lane from now on, or none if n is 0. It returns the events that were kept until
// now, by lane, oldest first. lost counts the events that newer ones replaced.
func (j *Job) Trace(ctx context.Context, n int) (events [][]TraceEvent, lost uint64, err error) {
	events = make([][]TraceEvent, len(j.shards))
	for i, s := range j.shards {
		of, n, laneErr := s.Trace(ctx, n)
		events[i], lost, err = of, lost+n, errors.Join(err, laneErr)
	}
	return events, lost, err
}
