package client_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"testing"

	"github.com/rackweave/rackweave/client"
	"github.com/rackweave/rackweave/service"
	"github.com/rackweave/rackweave/service/racks"
	"github.com/rackweave/rackweave/verbs"
)

// buddyRacks runs four aggregators, with buddies or without.
func buddyRacks(t *testing.T, buddies bool) ([]*service.Service, service.Options, func(int, *racks.Cluster)) {
	o := service.Options{Providers: []string{verbs.ProviderTCP}, Cores: 1, CheckpointDir: t.TempDir()}
	spoil := func(_ int, c *racks.Cluster) { c.Buddy = buddies }
	return serveRacksWith(t, 4, o, spoil), o, spoil
}

// undisturbed are the parameters after each of so many steps, of a run that nothing interrupts.
func undisturbed(t *testing.T, steps int) (after [][][]float32) {
	services, _, _ := buddyRacks(t, false)
	tr := trainRacks(t, services, adam(verbs.ProviderTCP))
	tr.start()
	after = append(after, tr.parameters())
	for n := range steps {
		tr.step(uint64(n + 1))
		after = append(after, tr.parameters())
	}
	closeAll(t, tr.workers)
	return after
}

// interrupt begins a step and calls crash when the result of a tensor is there; without one the last worker leaves in mid-step.
func (tr *trainer) interrupt(n uint64, tensor int, crash func()) (errs []error) {
	tr.t.Helper()
	errs = every(tr.workers, func(rank int, w *client.Worker) error {
		values := randomModel(1000*(n+1)+uint64(rank), tr.tensors)
		var ops []client.Op
		for i := range tr.tensors {
			src, dst := client.Bytes(values[i]), client.Bytes(tr.results[rank][i])
			ops = append(ops, client.Op{Kind: client.PushPull, Tensor: i, Src: src, Dst: dst})
		}
		leaves := crash == nil && rank == len(tr.workers)-1
		if leaves {
			ops = ops[:len(ops)-1]
		}
		handles, err := w.Submit(ops...)
		if err != nil {
			return err
		}
		if leaves {
			return errors.Join(w.WaitAll(bounded(tr.t), handles), w.Close())
		}
		if rank == 0 && crash != nil {
			if err := handles[tensor].Wait(bounded(tr.t)); err != nil {
				return err
			}
			crash()
		}
		if err := w.WaitAll(bounded(tr.t), handles); err != nil {
			return err
		}
		return w.Barrier(bounded(tr.t), "step")
	})
	for _, w := range tr.workers {
		_ = w.Close() // it has failed
	}
	clear(tr.workers)
	return errs
}

// goOn begins the job's next run, and returns the step that it goes on from, or an error.
func goOn(t *testing.T, services []*service.Service) (tr *trainer, step int, err error) {
	t.Helper()
	tr = trainRacks(t, services, adam(verbs.ProviderTCP))
	steps := make([]int, len(tr.workers))
	errs := every(tr.workers, func(rank int, w *client.Worker) (err error) {
		steps[rank], err = w.GoOn(bounded(t))
		return err
	})
	for rank, err := range errs {
		if (err == nil) != (errs[0] == nil) {
			t.Errorf("worker %d says %v, worker 0 %v", rank, err, errs[0])
		}
		if steps[rank] != steps[0] {
			t.Errorf("worker %d goes on from step %d, worker 0 from %d", rank, steps[rank], steps[0])
		}
	}
	return tr, steps[0], errs[0]
}

// Racks are lost in mid-step, and their aggregators started anew: as long as no two neighbours are, the job goes on with the bits
// of a run that nothing interrupts.
func TestAJobGoesOnWithoutALossFromItsLastWholeStep(t *testing.T) {
	const steps = 6
	want := undisturbed(t, steps)
	losses := [][]int{{0}, {1}, {3}, {0, 2}, {}}
	if testing.Short() {
		losses = losses[3:4]
	}
	for seed, lost := range losses {
		t.Run(fmt.Sprintf("%v", lost), func(t *testing.T) {
			t.Parallel()
			rng := rand.New(rand.NewPCG(uint64(seed), 1))
			services, o, spoil := buddyRacks(t, true)
			tr := trainRacks(t, services, adam(verbs.ProviderTCP))
			tr.start()
			last := rng.IntN(3)
			for n := range last {
				tr.step(uint64(n + 1))
			}
			for range 2 {
				crash := func() {
					for _, rack := range lost {
						if err := services[rack].Close(); err != nil {
							t.Error(err)
						}
					}
				}
				if len(lost) == 0 {
					crash = nil
				}
				errs := tr.interrupt(uint64(last+1), rng.IntN(len(tr.tensors)), crash)
				if text := fmt.Sprint(errs); len(lost) > 0 && !strings.Contains(text, `restore "buddy"`) {
					t.Errorf("the loss says %s, and not how to go on", text)
				}
				for _, rack := range lost {
					services[rack] = again(t, services, rack, o, spoil)
				}
				var step int
				var err error
				if tr, step, err = goOn(t, services); err != nil {
					t.Fatal(err)
				}
				if step != last && step != last+1 {
					t.Fatalf("it goes on from step %d, after %d whole steps and a part of one", step, last)
				}
				last = step
				tr.pulled("the parameters it goes on from", want[last])
				tr.step(uint64(last + 1))
				last++
				if sameModel(t, "the step after", tr.parameters(), want[last]); t.Failed() {
					return
				}
			}
			status, err := client.Status(t.Context(), client.Config{Server: services[0].URL()})
			if err != nil {
				t.Fatal(err)
			}
			j := status.Jobs[len(status.Jobs)-1]
			if j.WholeStep != uint32(last) || len(j.Racks) != 4 || j.Racks[3].Buddy != "r0" {
				t.Errorf("after step %d the status says %v", last, j)
			}
		})
	}
}

// again starts an aggregator where one was.
func again(t *testing.T, services []*service.Service, rack int, o service.Options,
	spoil func(int, *racks.Cluster)) *service.Service {
	t.Helper()
	c := racks.Cluster{Secret: clusterSecret, Shape: "sharded", Own: fmt.Sprintf("r%d", rack)}
	for i, s := range services {
		c.Racks = append(c.Racks, racks.Rack{Name: fmt.Sprintf("r%d", i), URL: "http://" + s.Addr().String()})
	}
	spoil(rack, &c)
	l, err := net.Listen("tcp", services[rack].Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	o.Listener, o.Cluster = l, &c
	return serve(t, o)
}

// What is lost is named.
func TestNeighboursThatAreLostTakeAStateWithThem(t *testing.T) {
	services, o, spoil := buddyRacks(t, true)
	tr := trainRacks(t, services, adam(verbs.ProviderTCP))
	tr.start()
	tr.step(1)
	if _, err := tr.workers[0].Save(bounded(t), client.BuddyName); err == nil || !strings.Contains(err.Error(), "use another") {
		t.Errorf("save says %v", err)
	}
	tr.interrupt(2, 0, func() {
		for _, rack := range []int{1, 2} {
			if err := services[rack].Close(); err != nil {
				t.Error(err)
			}
		}
	})
	for _, rack := range []int{1, 2} {
		services[rack] = again(t, services, rack, o, spoil)
	}
	_, _, err := goOn(t, services)
	for _, want := range []string{`rack "r1"`, `rack "r2", its buddy`, "restore a checkpoint"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("it says %v, want %q", err, want)
		}
	}
}
