package aggregate

import (
	"context"
	"time"
)

// tellingTime is how long the workers of a failed job have to hear of it.
const tellingTime = 500 * time.Millisecond

// tellWorkers waits until the workers that are there know that their job has failed: a program in C hears it in no other way.
func tellWorkers(lanes []*Lane, shares []*share) {
	ctx, cancel := context.WithTimeout(context.Background(), tellingTime)
	defer cancel()
	await(ctx, lanes, shares, (*share).told)
}

// await waits until a condition holds of a job's shares. Lanes that are stepped by hand are not waited for, nor shares that have
// panicked.
func await(ctx context.Context, lanes []*Lane, shares []*share, holds func(s *share) bool) {
	for i, s := range shares {
		for held := lanes[i].manual; !held; {
			if lanes[i].Do(ctx, func() { held = s.dead || holds(s) }) != nil {
				break // the lane has ended, or the time is over
			}
			if !held {
				time.Sleep(time.Millisecond)
			}
		}
	}
}
