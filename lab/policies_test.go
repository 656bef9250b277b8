package lab

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/rackweave/rackweave/aggregate"
	"github.com/rackweave/rackweave/aggregate/optim"
	"github.com/rackweave/rackweave/aggregate/racktest"
	"github.com/rackweave/rackweave/cgo/worker"
	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/policy"
	"github.com/rackweave/rackweave/verbs"
)

// Gradients are small and whole and hyper-parameters powers of two, so that sums are exact in any order.
const (
	pacedElems = 20_000
	pacedSteps = 4
)

func wholeGradient(rank int, step uint64) []float32 {
	g := make([]float32, pacedElems)
	for i := range g {
		g[i] = float32((rank+1)*(int(step)%5+1) + i%7)
	}
	return g
}

// trainPaced makes a worker's steps in mode stream.
func trainPaced(r *racktest.Rack, w *racktest.Worker) error {
	const timeout = 3 * time.Minute
	for step := uint64(0); step < pacedSteps; {
		copy(w.SrcF32(0), wholeGradient(w.Rank, step))
		if err := w.Run(timeout, w.Op(chunk.OpPushPull, 0, 0)); err != nil {
			return err
		}
		h, rc := w.CommitStart(chunk.TensorRecord{})
		if rc == 0 {
			rc = worker.Wait(w.C, h, uint32(timeout.Milliseconds()))
		}
		if rc < 0 {
			return w.Error(rc)
		}
		end, err := w.Answer()
		if err != nil {
			return err
		}
		if step = uint64(end.Step); end.Pull {
			if err := w.Run(timeout, w.Op(chunk.OpPull, 0, 0)); err != nil {
				return err
			}
		}
	}
	return r.Job.Detach(context.Background(), w.Rank)
}

// replayPaced trains under a policy and compares the parameters with what plain Go makes of the updates that were decided.
func replayPaced(t *testing.T, nics []*verbs.Device, workers [][]*verbs.Device, text string) {
	spec, err := policy.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	hyper := optim.SGDTorch.Defaults()
	hyper.LR, hyper.Scale = 0.25, 0.5
	var decided []policy.Act
	job := aggregate.JobConfig{
		Name: "paced", Mode: aggregate.Stream, Rule: optim.SGDTorch, Hyper: hyper, ChunkBytes: 4096, Policy: spec,
		Decided: func(a policy.Act) {
			a.Parts = slices.Clone(a.Parts)
			decided = append(decided, a)
		},
	}
	r := openRack(t, racktest.Config{
		NICs: nics, Workers: workers, Lanes: 1, Window: 8, Job: job,
		Tensors: []chunk.Tensor{{Name: "t", Elems: pacedElems, DType: chunk.F32}},
	})
	errs := make([]error, len(r.Workers))
	var all sync.WaitGroup
	for rank, w := range r.Workers {
		all.Go(func() { errs[rank] = trainPaced(r, w) })
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	got, err := parametersOf(r)
	if err != nil {
		t.Fatal(err)
	}
	ref := racktest.NewReference(aggregate.Eager, job.Rule, job.Hyper, chunk.F32, [][]float32{make([]float32, pacedElems)})
	for _, u := range decided {
		ref.Replay(u, len(r.Workers), func(rank int, step uint64) [][]float32 { return [][]float32{wholeGradient(rank, step)} })
	}
	if i, same := racktest.SameBits(got, ref.W[0]); !same {
		t.Errorf("element %d is %v, the replay of %d updates says %v", i, got[i], len(decided), ref.W[0][i])
	}
}

// parametersOf reads the parameters once every update is made.
func parametersOf(r *racktest.Rack) ([]float32, error) {
	for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(time.Millisecond) {
		s, err := r.Job.Snapshot(context.Background(), r.Plan)
		if errors.Is(err, aggregate.ErrNotQuiet) && time.Now().Before(deadline) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read the parameters: %w", err)
		}
		var all []float32
		for c := range r.Plan.NumChunks() {
			data := make([]float32, r.Plan.Chunk(c).Elems)
			if err := s.Read(context.Background(), []aggregate.Piece{{Chunk: c, Data: data}}); err != nil {
				return nil, err
			}
			all = append(all, data...)
		}
		return all, nil
	}
}

var pacedPolicies = []string{"asp", "ssp:s=1", "lagtuner:sl=0,su=2", "bsp", "k-bsp:k=1", "k-asp:k=2"}

func TestIBVPolicies(t *testing.T) {
	nic := devices(t, 1)
	for _, text := range pacedPolicies {
		t.Run(text, func(t *testing.T) { replayPaced(t, nic, [][]*verbs.Device{nic, nic}, text) })
	}
}

// letIn lets peers in that connect to a device, and returns what ends that and closes it.
func letIn(t *testing.T, d *verbs.Device) func() {
	stop, done := make(chan struct{}), make(chan error, 1)
	go func() {
		for {
			select {
			case <-stop:
				done <- nil
				return
			default:
			}
			if _, _, err := d.AsyncEvent(20 * time.Millisecond); err != nil {
				done <- err
				return
			}
		}
	}()
	return func() {
		close(stop)
		if err := errors.Join(<-done, d.Close()); err != nil {
			t.Error(err)
		}
	}
}

// The same over TCP needs no device: what it checks in a guest is checked here, too.
func TestPoliciesOverTCPEqualTheirReplay(t *testing.T) {
	for _, text := range pacedPolicies {
		t.Run(text, func(t *testing.T) {
			var each [][]*verbs.Device
			for range 3 {
				d, err := verbs.Open(verbs.ProviderTCP, "", "")
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(letIn(t, d))
				each = append(each, []*verbs.Device{d})
			}
			replayPaced(t, each[0], each[1:], text)
		})
	}
}
