package client_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/client"
	"github.com/rackweave/rackweave/service"
	"github.com/rackweave/rackweave/service/racks"
	"github.com/rackweave/rackweave/verbs"
)

// racksAlone starts two racks that can save, and joins workers to a job in which they meet so.
func racksAlone(t *testing.T, dir, outer string, spoil func(*client.Config, *racks.Cluster)) (*trainer, func()) {
	t.Helper()
	cfg := adam(verbs.ProviderTCP)
	cfg.Outer = outer
	o := service.Options{Providers: []string{cfg.Provider}, Cores: 2, CheckpointDir: dir}
	services := serveRacksWith(t, 2, o, func(_ int, c *racks.Cluster) {
		if spoil != nil {
			spoil(&cfg, c)
		}
	})
	tr := trainRacks(t, services, cfg)
	return tr, func() {
		t.Helper()
		closeAll(t, tr.workers)
		for _, s := range services {
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// everywhere is what every worker got last: racks that train on their own differ.
func (tr *trainer) everywhere() (out [][][]float32) {
	for _, x := range tr.results {
		out = append(out, copies(x))
	}
	return out
}

func copies(m [][]float32) (out [][]float32) {
	for _, x := range m {
		out = append(out, append([]float32(nil), x...))
	}
	return out
}

// Racks that train on their own go on from a checkpoint, at a meeting or between two, with the bits of a run that nothing
// interrupts. It is saved in one rack and restored in the other, in the same job and in one that begins anew.
func TestRacksThatMeetSeldomGoOnFromACheckpoint(t *testing.T) {
	const after = 6 // steps more: each chunk meets twice, or once
	cases := []struct {
		name, outer, shape string
		before             uint64 // steps
		wire               chunk.DType
	}{
		{"between meetings", "every=4,rule=nesterov", "sharded", 6, chunk.F32},
		{"four fragments of bf16", "every=4,fragments=4,rule=sgd,momentum=0.5", "sharded", 5, chunk.BF16},
		{"at a meeting", "every=4,rule=sgd,momentum=0.5", "root", 4, chunk.F32},
		{"four fragments", "every=4,fragments=4,rule=nesterov", "sharded", 6, chunk.F32},
		{"before the first meeting", "every=4,rule=sgd", "sharded", 2, chunk.F32},
	}
	if testing.Short() { // a detector sees the same code in each
		cases = cases[:1]
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			spoil := func(cfg *client.Config, c *racks.Cluster) { cfg.WireType, c.Shape = tc.wire, tc.shape }
			tr, end := racksAlone(t, dir, tc.outer, spoil)
			want := [][][][]float32{tr.saved(tc.before)}
			for n := range uint64(after) {
				tr.step(tc.before + n)
				want = append(want, tr.everywhere())
			}
			tr.goesOn(want, tc.before)
			end()

			tr, end = racksAlone(t, dir, tc.outer, spoil)
			defer end()
			tr.goesOn(want, tc.before)
		})
	}
}

// saved trains for so many steps, saves checkpoint c, and returns what every worker has then.
func (tr *trainer) saved(steps uint64) [][][]float32 {
	tr.t.Helper()
	tr.start()
	for n := range steps {
		tr.step(n)
	}
	tr.barrier("before")
	if _, err := tr.workers[3].Save(bounded(tr.t), "c"); err != nil {
		tr.t.Fatal(err)
	}
	tr.barrier("after")
	return tr.everywhere()
}

// goesOn restores checkpoint c, of so many steps, and checks what every worker has got then and after each step more.
func (tr *trainer) goesOn(want [][][][]float32, steps uint64) {
	tr.t.Helper()
	tr.barrier("restore")
	if err := tr.workers[0].Restore(bounded(tr.t), "c"); err != nil {
		tr.t.Fatal(err)
	}
	tr.barrier("restored")
	tr.all(client.Pull, 0)
	for n := range want {
		if n > 0 {
			tr.step(steps + uint64(n) - 1)
		}
		for rank, got := range tr.results {
			sameModel(tr.t, fmt.Sprintf("worker %d, %d steps after", rank, n), got, want[n][rank])
		}
	}
}

// A checkpoint is refused while racks are at different steps.
func TestRacksAtDifferentStepsAreNotSaved(t *testing.T) {
	t.Parallel()
	tr, end := racksAlone(t, t.TempDir(), "every=4,rule=sgd", nil)
	defer end()
	tr.start()
	tr.step(0)
	each(t, tr.workers[:2], func(rank int, w *client.Worker) error { // rack 0 takes a step more with a tensor of one chunk
		h, err := w.PushPull(0, client.Bytes([]float32{1}), client.Bytes(tr.results[rank][0]), 0)
		if err != nil {
			return err
		}
		return h.Wait(bounded(t))
	})
	for rank, w := range tr.workers {
		_, err := w.Save(bounded(t), "c")
		if !errors.Is(err, client.ErrRefused) || !strings.Contains(err.Error(), `tensor "layer0.weight" has had`) {
			t.Errorf("worker %d saves: %v, want it to name the tensor", rank, err)
		}
	}
}

func TestCheckpointsOfOtherRacksAreRefused(t *testing.T) {
	sameCode(t)
	t.Parallel()
	const alone = "every=4,rule=nesterov"
	dir := t.TempDir()
	for _, outer := range []string{"none", alone} {
		tr, end := racksAlone(t, dir, outer, nil)
		tr.start()
		tr.step(0)
		tr.barrier("before")
		if _, err := tr.workers[0].Save(bounded(t), strings.Fields(outer)[0][:4]); err != nil {
			t.Fatal(err)
		}
		tr.barrier("after")
		end()
	}
	rename := func(_ *client.Config, c *racks.Cluster) {
		c.Own, c.Racks = "s"+c.Own, slices.Clone(c.Racks)
		for i := range c.Racks {
			c.Racks[i].Name = "s" + c.Racks[i].Name
		}
	}
	for _, tc := range []struct {
		name, outer, from, want string
		spoil                   func(*client.Config, *racks.Cluster)
	}{
		{"of racks that train together", alone, "none", "restore it in a job with outer none", nil},
		{"of racks that train on their own", "none", "ever", "with an outer optimizer", nil},
		{"of another rule", "every=4,rule=sgd,momentum=0.9", "ever", `rule "nesterov", the job has racks [r0 r1] and rule "sgd"`, nil},
		{"of other racks", alone, "ever", `racks [r0 r1] have trained it with outer rule "nesterov", the job has racks [sr0 sr1]`, rename},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tr, end := racksAlone(t, dir, tc.outer, tc.spoil)
			defer end()
			tr.start()
			err := tr.workers[2].Restore(bounded(t), tc.from)
			if !errors.Is(err, client.ErrRefused) || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%v, want it to say %q", err, tc.want)
			}
			tr.step(0)
		})
	}
}

// Racks whose meetings follow the drift begin with one in every step, in the job and after a restore.
func TestRacksMeetInEveryStepAfterARestoreIfTheirMeetingsFollowTheDrift(t *testing.T) {
	sameCode(t)
	const outer, before, after = "every=4,rule=sgd,drift=1e6", 5, 6 // they meet in steps 1, 3 and 6
	dir := t.TempDir()
	tr, end := racksAlone(t, dir, outer, nil)
	want := [][][][]float32{tr.saved(before)}
	tr.goesOn(want, before)
	for n := range uint64(after) {
		tr.step(before + n)
		want = append(want, tr.everywhere())
	}
	if met := want[1]; !slices.Equal(met[0][0], met[3][0]) || slices.Equal(want[2][0][0], want[2][3][0]) {
		t.Error("racks do not meet in the first step after a restore alone")
	}
	end()

	tr, end = racksAlone(t, dir, outer, nil)
	defer end()
	tr.goesOn(want, before)
}

// The steps between meetings of racks follow how far they drift apart, which status and metrics show, over every transport.
func TestStatusShowsHowOftenRacksMeetAndHowFarTheyDrift(t *testing.T) {
	for _, provider := range []string{verbs.ProviderTCP, verbs.ProviderSHM} {
		t.Run(provider, func(t *testing.T) {
			services := serveRacksWith(t, 2, service.Options{Providers: []string{provider}, Cores: 2}, nil)
			tr := trainRacks(t, services, client.Config{
				Job: "j", Mode: "eager", Optimizer: "sgd_torch", Hyper: map[string]float64{"lr": 1}, Provider: provider, ChunkBytes: 4096,
				Outer: "every=4,rule=sgd,drift=0.1",
			})
			run := func(kind client.Kind, value func(rank int) float32) {
				t.Helper()
				each(t, tr.workers, func(rank int, w *client.Worker) error {
					var ops []client.Op
					for i, d := range tr.tensors {
						g := slices.Repeat([]float32{value(rank)}, int(d.Elems()))
						ops = append(ops, client.Op{Kind: kind, Tensor: i, Src: client.Bytes(g), Dst: client.Bytes(tr.results[rank][i])})
					}
					handles, err := w.Submit(ops...)
					if err != nil {
						return err
					}
					return w.WaitAll(bounded(t), handles)
				})
			}
			calm, differ := func(int) float32 { return 0 }, func(rank int) float32 { return float32(rank/2*2 - 1) }
			run(client.Broadcast, func(int) float32 { return 1 })
			for _, phase := range []struct {
				steps int
				value func(rank int) float32
				every uint32
				drift float64
			}{
				{1, calm, 2, 0}, {5, calm, 4, 0}, // they meet in steps 1, 3 and 6
				// A rack scales the sum of its two workers as if it were that of all four.
				{4, differ, 2, 16}, {2, differ, 1, 8}, {1, calm, 2, 0},
			} {
				for range phase.steps {
					run(client.PushPull, phase.value)
				}
				for _, s := range services {
					status, err := client.Status(bounded(t), client.Config{Server: s.URL()})
					if err != nil {
						t.Fatal(err)
					}
					d := status.Jobs[0].Drift
					if d.GetLeastInterval() != phase.every || d.GetMostInterval() != phase.every || d.GetMeanInterval() != float64(phase.every) ||
						d.GetDrift() != phase.drift || d.GetThreshold() != 0.1 {
						t.Errorf("drift %v, want %v and meetings every %d steps", d, phase.drift, phase.every)
					}
				}
			}
			resp, err := http.Get(services[1].URL() + "/metrics")
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			page, err := io.ReadAll(resp.Body)
			if err != nil {
				t.Fatal(err)
			}
			for _, want := range []string{`rackweave_job_drift{job="j"} 0`, `rackweave_job_drift_threshold{job="j"} 0.1`,
				`rackweave_job_interval_steps{job="j"} 2`} {
				if !strings.Contains(string(page), want+"\n") {
					t.Errorf("the metrics have no %s", want)
				}
			}
		})
	}
}
