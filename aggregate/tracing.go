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
	events = make([][]TraceEvent, len(j.shares))
	for i, s := range j.shares {
		var n uint64
		err := j.lanes[i].Do(ctx, func() {
			if s.trace != nil {
				events[i], n = s.trace.take()
			}
		})
		if err != nil {
			return nil, 0, err
		}
		lost += n
	}
	return events, lost, nil
}
