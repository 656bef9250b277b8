package learn

import (
	"context"
	"time"

	"github.com/rackweave/rackweave/bench/study"
	"github.com/rackweave/rackweave/bench/study/local"
	"github.com/rackweave/rackweave/bench/study/simulate"
	"github.com/rackweave/rackweave/bench/study/task"
	"github.com/rackweave/rackweave/client"
)

// A real training goes through an aggregator. Workers sleep for the rest of their steps, which take far longer than what is
// computed.
const (
	realStep  = 20 * time.Millisecond // of length 1
	realSteps = 150                   // of the fastest worker, in the study
)

// trainReal trains through an aggregator for so many steps of the fastest worker. The outcome also has the pushes in a time of a
// simulation with steps of the same lengths.
func trainReal(ctx context.Context, s simulate.Setting, steps int) (o study.Outcome, err error) {
	n := len(s.Cluster.Steps)
	took := make([]time.Duration, n)
	s.Taken = make([][]int64, n)
	c := client.Config{
		Workers: n, Policy: s.Policy.String(), Hyper: map[string]float64{"lr": s.LR, "momentum": s.Momentum, "scale": 1 / float64(n)},
	}
	models, err := local.Train(ctx, c, "", s.Task(0).Fresh(random(s.Seed, 1)), func(ctx context.Context, w *local.Worker) error {
		rank, own := w.Rank(), s.Task(0)
		clock := simulate.Clock(s.Seed, rank)
		images, chance := task.Shuffled{Samples: own.Shards(1, false)[0]}, random(s.Seed, uint64(rank)+100)
		if err := w.Barrier(ctx, "begin"); err != nil {
			return err
		}
		for begun := time.Now(); took[rank] < time.Duration(steps)*realStep; took[rank] = time.Since(begun) {
			from := time.Now()
			takes := time.Duration(s.Cluster.StepTime(rank, clock) + s.Wire)
			err := w.Step(ctx, takes*realStep/simulate.Unit, func(g []float32) {
				own.Gradient(w.Params, g, images.Draw(chance, s.Batch/n))
			}, func() {
				s.Taken[rank] = append(s.Taken[rank], int64(time.Since(from))*simulate.Unit/int64(realStep)+s.Wire)
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return o, err
	}
	for rank := range took {
		o.Pushes += float64(len(s.Taken[rank]))
		o.Time = max(o.Time, float64(took[rank])/float64(realStep))
	}
	o.Loss, o.Accuracy = s.Task(0).Test(models[0])
	s.Blind = float64(steps)
	simulated, err := simulate.Run(ctx, s)
	o.Expected = simulated.Pushes / simulated.Time
	return o, err
}
