package client_test

import (
	"errors"
	"fmt"
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
		cases = cases[:2]
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			spoil := func(cfg *client.Config, c *racks.Cluster) { cfg.WireType, c.Shape = tc.wire, tc.shape }
			tr, end := racksAlone(t, dir, tc.outer, spoil)
			tr.start()
			for n := range tc.before {
				tr.step(n)
			}
			tr.barrier("before")
			if _, err := tr.workers[3].Save(context20(t), "c"); err != nil {
				t.Fatal(err)
			}
			tr.barrier("after")
			want := [][][][]float32{tr.everywhere()}
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

// goesOn restores checkpoint c, of so many steps, and checks what every worker has got then and after each step more.
func (tr *trainer) goesOn(want [][][][]float32, steps uint64) {
	tr.t.Helper()
	tr.barrier("restore")
	if err := tr.workers[0].Restore(context20(tr.t), "c"); err != nil {
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
		return h.Wait(context20(t))
	})
	for rank, w := range tr.workers {
		_, err := w.Save(context20(t), "c")
		if !errors.Is(err, client.ErrRefused) || !strings.Contains(err.Error(), `tensor "layer0.weight" has had`) {
			t.Errorf("worker %d saves: %v, want it to name the tensor", rank, err)
		}
	}
}

func TestCheckpointsOfOtherRacksAreRefused(t *testing.T) {
	t.Parallel()
	const alone = "every=4,rule=nesterov"
	dir := t.TempDir()
	for _, outer := range []string{"none", alone} {
		tr, end := racksAlone(t, dir, outer, nil)
		tr.start()
		tr.step(0)
		tr.barrier("before")
		if _, err := tr.workers[0].Save(context20(t), strings.Fields(outer)[0][:4]); err != nil {
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
			err := tr.workers[2].Restore(context20(t), tc.from)
			if !errors.Is(err, client.ErrRefused) || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%v, want it to say %q", err, tc.want)
			}
			tr.step(0)
		})
	}
}
