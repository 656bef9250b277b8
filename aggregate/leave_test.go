package aggregate_test

import (
	"context"
	"testing"
	"time"

	"github.com/rackweave/rackweave/aggregate"
	"github.com/rackweave/rackweave/aggregate/optim"
	"github.com/rackweave/rackweave/aggregate/racktest"
	"github.com/rackweave/rackweave/chunk"
)

// The lane is busy when the worker leaves. The worker stops waiting for it, and closes its connections.
func TestAWorkerThatLeftFailsNobodyAlsoWhereTheLaneHearsLate(t *testing.T) {
	for _, provider := range []string{"tcp", "shm"} {
		t.Run(provider, func(t *testing.T) {
			r := threadedRack(t, provider, 2, racktest.Config{
				Lanes: 1, Window: 8,
				Job:     aggregate.JobConfig{Name: "job", Mode: aggregate.Aggregate, Hyper: optim.Sum.Defaults(), ChunkBytes: 4096},
				Tensors: tensorsOf(chunk.F32, 3000),
			})
			lane := r.Engine.Lanes()[0]
			busy, free := make(chan struct{}), make(chan struct{})
			go lane.Do(context.Background(), func() { close(busy); <-free })
			<-busy
			ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
			defer cancel()
			if err := r.Job.Detach(ctx, 1); err == nil {
				t.Fatal("the lane was not busy")
			}
			if err := r.Workers[1].Session.Close(); err != nil {
				t.Fatal(err)
			}
			close(free)
			select {
			case <-r.Job.Failed():
				t.Errorf("the others fail: %v", r.Job.Failure().Err)
			case <-time.After(300 * time.Millisecond):
			}
			r.Workers = r.Workers[:1]
		})
	}
}
