package aggregate

import "context"

// Detach lets go of a worker that has left the job in peace: from here on losing its connection fails nothing. The job can
// finish no more chunks without it.
func (j *Job) Detach(ctx context.Context, rank int) error {
	for _, s := range j.shares {
		err := s.lane.Do(ctx, func() {
			if c := s.conns[rank]; c != nil {
				c.dead = true
			}
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// Awaited counts, by rank, the chunks in progress that miss a worker's gradient; of a failed job, those when it failed.
func (j *Job) Awaited(ctx context.Context) ([]int, error) {
	out := make([]int, j.workers)
	for _, s := range j.shares {
		if err := s.lane.Do(ctx, func() { s.countAwaited(out) }); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func (s *share) countAwaited(out []int) {
	for i := s.folds.first; i != noFold; i = s.folds.at(i).next {
		for rank := range out {
			if !s.folds.arrival(i, rank).present {
				out[rank]++
			}
		}
	}
}
