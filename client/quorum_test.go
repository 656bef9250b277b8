package client_test

import (
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/rackweave/rackweave/client"
	"github.com/rackweave/rackweave/service"
	"github.com/rackweave/rackweave/verbs"
)

// quorumSteps is how many steps racks take that meet every second.
const quorumSteps = 8

// steps takes a worker's steps up to one, and returns what the last one answered.
func steps(t *testing.T, w *client.Worker, from, to int) ([]float32, error) {
	i, _ := w.Lookup("layer7.weight")
	x, g := make([]float32, 100_000), make([]float32, 100_000)
	for n := from; n <= to; n++ {
		for k := range g {
			g[k] = float32(n*(w.Rank()+1)) + float32(k%7)
		}
		h, err := w.PushPull(i, client.Bytes(g), client.Bytes(x), 0)
		if err == nil {
			err = h.Wait(context20(t))
		}
		if err != nil {
			return nil, fmt.Errorf("step %d: %w", n, err)
		}
	}
	return x, nil
}

// joinQuorum joins two workers in each of three racks of which two make a quorum.
func joinQuorum(t *testing.T) ([]*client.Worker, []*service.Service) {
	t.Helper()
	services := serveRacks(t, 3, nil)
	workers, errs := joinRacks(t, services, client.Config{Job: "j", Token: "t", Provider: verbs.ProviderTCP,
		Optimizer: "sgd_torch", Mode: "eager", Hyper: map[string]float64{"lr": 0.125},
		Outer: "every=2,rule=sgd,quorum=2,grace=0s"})
	for _, err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
	each(t, workers, func(_ int, w *client.Worker) error { return w.Register(context20(t), model()) })
	return workers, services
}

// Racks meet without one whose workers do not come. When they come they go on with the last meeting's result, and without meetings
// while the others wait at a barrier. The status says who has missed what.
func TestARackThatIsLateGoesOnWithTheLastMeetingsResult(t *testing.T) {
	t.Parallel()
	workers, services := joinQuorum(t)
	defer closeAll(t, workers)
	var fast sync.WaitGroup
	fast.Add(4)
	met := make([][]float32, len(workers))
	each(t, workers, func(rank int, w *client.Worker) (err error) {
		if rank < 4 {
			met[rank], err = steps(t, w, 1, quorumSteps)
			fast.Done()
		} else {
			if _, err = steps(t, w, 1, 1); err == nil {
				fast.Wait()
				met[rank], err = steps(t, w, 2, 2)
			}
			if err == nil {
				_, err = steps(t, w, 3, quorumSteps)
			}
		}
		if err != nil {
			return err
		}
		return w.Barrier(context20(t), "end")
	})
	for rank := range met {
		if !slices.Equal(met[rank], met[0]) {
			t.Errorf("worker %d got %v of the last meeting, worker 0 %v", rank, met[rank][:4], met[0][:4])
		}
	}
	status, err := client.Status(context20(t), client.Config{Server: services[0].URL(), Token: "t"})
	if err != nil {
		t.Fatal(err)
	}
	j := status.Jobs[0]
	if j.Meetings != quorumSteps/2 || j.Racks[0].MissedMeetings != 0 || j.Racks[2].MissedMeetings != quorumSteps/2 ||
		j.Racks[0].LastWeight != 2 || j.Racks[2].LastWeight != 0 {
		t.Errorf("%d meetings, racks %v", j.Meetings, j.Racks)
	}
}

// A rack goes on by itself when others have done their steps and left.
func TestALateRackEndsAfterTheOthers(t *testing.T) {
	t.Parallel()
	workers, _ := joinQuorum(t)
	var fast sync.WaitGroup
	fast.Add(4)
	each(t, workers, func(rank int, w *client.Worker) error {
		from, to := 1, quorumSteps
		if rank >= 4 {
			if _, err := steps(t, w, 1, 1); err != nil {
				return err
			}
			fast.Wait()
			from = 2
		}
		_, err := steps(t, w, from, to)
		if rank < 4 {
			fast.Done()
		}
		if err != nil {
			return err
		}
		return w.Close()
	})
}
