package bench

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/rackweave/rackweave/bench/models"
	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/client"
	"github.com/rackweave/rackweave/service/api"
	"github.com/rackweave/rackweave/verbs"
)

// residentBytes is how much memory a process has in use (proc_pid_status(5)).
func residentBytes(t *testing.T, pid int) uint64 {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "VmRSS:")
	kib, err := strconv.ParseUint(strings.Fields(rest)[0], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return kib << 10
}

// afterTwoSteps is the job's memory as an aggregator process of its own reports it, and the process's resident memory, when
// every worker has its second answer and none has left.
func afterTwoSteps(t *testing.T, s Spec) (*api.JobStatus, uint64) {
	t.Helper()
	if err := s.Check(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	defer cancel()
	r := testRunner(t)
	r.Serve = append(r.Serve, "--cores", "1", "--unpinned")
	aggregator, err := r.serve(ctx, &s)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := aggregator.Stop(); err != nil {
			t.Error(err)
		}
	}()
	var arrived, done sync.WaitGroup
	arrived.Add(s.Workers)
	measured := make(chan struct{})
	for rank := range s.Workers {
		done.Go(func() {
			once := sync.OnceFunc(arrived.Done)
			defer once() // a worker that fails does not hold up the others
			o := &order{Spec: s, Rank: rank}
			o.Spec.Server, o.Spec.Job = aggregator.URL, "memory"
			if err := runWorker(ctx, o, func(r workerReport) error {
				if r.Step == 2 {
					once()
					<-measured
				}
				return nil
			}); err != nil {
				t.Errorf("worker %d: %v", rank, err)
			}
		})
	}
	arrived.Wait()
	status, err := client.Status(ctx, client.Config{Server: aggregator.URL})
	pids := slices.Collect(maps.Keys(children(t)))
	if err != nil || len(status.Jobs) != 1 || len(pids) != 1 {
		t.Fatalf("jobs %v of the processes %v: %v", status.GetJobs(), pids, err)
	}
	resident := residentBytes(t, pids[0])
	close(measured)
	done.Wait()
	return status.Jobs[0], resident
}

// What an aggregator holds is parameters, optimizer state and slots: a model that is larger by some bytes takes them once for
// the parameters and once for each state, and not a byte for each worker.
func TestAggregatorMemoryGrowsByParametersAndStateAlone(t *testing.T) {
	if testing.Short() {
		t.Skip("measures resident memory, of which detectors take some: left out by -short")
	}
	const (
		workers = 4
		arrays  = 2 // parameters and momentum
		small   = 8_000_000
		large   = 40_000_000
		page    = 2 << 20 // what an arena may be rounded up to
	)
	run := func(provider string, bytes uint64) (*api.JobStatus, uint64) {
		model, err := models.FromBytes(fmt.Sprint(bytes), chunk.F32)
		if err != nil {
			t.Fatal(err)
		}
		return afterTwoSteps(t, Spec{
			Workers: workers, Provider: provider, Model: model, DType: chunk.F32, Optimizer: "sgd_torch",
			Hyper: map[string]float64{"momentum": 0.9}, Iters: 2,
		})
	}
	for _, provider := range []string{verbs.ProviderTCP, verbs.ProviderSHM} {
		t.Run(provider, func(t *testing.T) {
			before, residentBefore := run(provider, small)
			after, residentAfter := run(provider, large)
			t.Logf("%d bytes of parameters: %d in use; %d: %d", small, residentBefore, large, residentAfter)
			for _, job := range []struct {
				status *api.JobStatus
				model  uint64
			}{{before, small}, {after, large}} {
				if got := job.status.ParameterBytes; got < arrays*job.model || got > arrays*job.model+page {
					t.Errorf("%d bytes of parameters and state for a model of %d, want %d", got, job.model, arrays*job.model)
				}
			}
			if before.SlotBytes != after.SlotBytes || before.ResultBytes != after.ResultBytes {
				t.Errorf("slots grew from %d to %d bytes, results from %d to %d", before.SlotBytes, after.SlotBytes, before.ResultBytes,
					after.ResultBytes)
			}
			if provider == verbs.ProviderSHM && after.SlotBytes != 0 {
				t.Errorf("%d bytes of slots where gradients stay where they are", after.SlotBytes)
			}
			// A Go process moves by some MB by itself; one more copy of the model would be 32.
			const slack = 16 << 20
			grown, want := int64(residentAfter)-int64(residentBefore), int64(arrays*(large-small))
			if grown < want-slack || grown > want+slack {
				t.Errorf("the process grew by %d bytes, want %d within %d", grown, want, slack)
			}
		})
	}
}
