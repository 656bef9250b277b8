package aggregate

import (
	"context"
	"fmt"
)

// MaxTrace is the most events that a trace keeps in each lane.
const MaxTrace = 1 << 21

// Trace keeps the last n events of the job in every lane from now on. With 0 it keeps none.
func (j *Job) Trace(ctx context.Context, n int) error {
	if n < 0 || n > MaxTrace {
		return fmt.Errorf("job %q: a trace of %d events: use 1 to %d, or 0 for none", j.name, n, MaxTrace)
	}
	for i, s := range j.shares {
		var t *trace
		if n > 0 {
			t = &trace{ring: make([]TraceEvent, n)}
		}
		if err := j.lanes[i].Do(ctx, func() { s.trace = t }); err != nil {
			return err
		}
	}
	return nil
}

// Traced takes the events that were kept since it was last called, by lane, oldest first. lost counts those that newer ones
// replaced.
func (j *Job) Traced(ctx context.Context) (events [][]TraceEvent, lost uint64, err error) {
	j.tracing.Lock()
	defer j.tracing.Unlock()
	events = make([][]TraceEvent, len(j.shares))
	for i := range j.shares {
		t, err := j.swapTrace(ctx, i)
		if err != nil {
			return nil, 0, err
		}
		if t != nil {
			var n uint64
			events[i], n = t.take()
			lost += n
		}
		j.shares[i].spare = t
	}
	return events, lost, nil
}

// swapTrace gives a lane an empty ring for the one that it has, if any: to copy many events takes longer than a lane may be held.
func (j *Job) swapTrace(ctx context.Context, lane int) (full *trace, err error) {
	s := j.shares[lane]
	for {
		size := 0
		err = j.lanes[lane].Do(ctx, func() {
			switch {
			case s.trace == nil:
			case s.spare == nil || len(s.spare.ring) != len(s.trace.ring):
				size = len(s.trace.ring)
			default:
				full, s.trace = s.trace, s.spare
			}
		})
		if err != nil || size == 0 {
			return full, err
		}
		s.spare = &trace{ring: make([]TraceEvent, size)}
	}
}
