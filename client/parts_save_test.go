package client_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rackweave/rackweave/client"
	"github.com/rackweave/rackweave/service"
	"github.com/rackweave/rackweave/service/racks"
	"github.com/rackweave/rackweave/verbs"
)

// trainSpread is trainRacks for workers that all join these servers.
func trainSpread(t *testing.T, cfg client.Config, servers ...string) *trainer {
	t.Helper()
	cfg.Workers, cfg.Timeout = 4, deadline
	tr := &trainer{t: t, workers: make([]*client.Worker, cfg.Workers), tensors: model(), results: make([][][]float32, cfg.Workers)}
	each(t, tr.workers, func(rank int, _ *client.Worker) (err error) {
		own := cfg
		own.Server, own.Rank = servers[rank*len(servers)/cfg.Workers], rank
		if tr.workers[rank], err = client.Join(bounded(t), own); err != nil {
			return err
		}
		for _, d := range tr.tensors {
			tr.results[rank] = append(tr.results[rank], make([]float32, d.Elems()))
		}
		return tr.workers[rank].Register(bounded(t), tr.tensors)
	})
	t.Cleanup(func() { closeAll(t, tr.workers) })
	return tr
}

// flatOrSpread starts n aggregators as the racks of a flat cluster or on their own, and returns what the workers are told of them.
func flatOrSpread(t *testing.T, n int, flat bool, o service.Options) (services []*service.Service, servers []string) {
	t.Helper()
	if !flat {
		services, server := serveSeveral(t, n, o)
		return services, []string{server}
	}
	services = serveRacksWith(t, n, o, func(_ int, c *racks.Cluster) { c.Shape = "flat" })
	for _, s := range services {
		servers = append(servers, s.URL())
	}
	return services, servers
}

func closeServices(t *testing.T, services []*service.Service) {
	t.Helper()
	for _, s := range services {
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// What several aggregators save in parts, as many restore, in the bits of a run that nothing interrupted.
func TestACheckpointOfASpreadJobRestoresAtAsManyAggregators(t *testing.T) {
	for _, tc := range []struct {
		name string
		n    int
		flat bool
	}{{"spread over 2", 2, false}, {"spread over 3", 3, false}, {"flat", 2, true}} {
		t.Run(tc.name, func(t *testing.T) {
			dir := t.TempDir()
			o := service.Options{Providers: []string{verbs.ProviderTCP}, Cores: 2, CheckpointDir: dir}
			cfg := adam(verbs.ProviderTCP)
			services, servers := flatOrSpread(t, tc.n, tc.flat, o)
			tr := trainSpread(t, cfg, servers...)
			tr.start()
			path := filepath.Join(dir, "adam", "latest.rwck")
			for step := uint64(1); step <= 2; step++ {
				tr.stepInTwo(step)
				tr.barrier("before")
				if got, err := tr.workers[3].Save(bounded(t), "latest"); err != nil || got != path {
					t.Fatalf("saved %q, %v; want %s", got, err, path)
				}
				tr.barrier("after")
			}
			if files, err := filepath.Glob(filepath.Join(dir, "adam", "*")); err != nil || len(files) != 1+tc.n {
				t.Errorf("%d files, %v: want a manifest and %d parts of the last save", len(files), err, tc.n)
			}
			saved := tr.parameters()
			tr.stepInTwo(3)
			want := tr.parameters()
			closeAll(t, tr.workers)
			closeServices(t, services)

			_, servers = flatOrSpread(t, tc.n, tc.flat, o)
			tr = trainSpread(t, cfg, servers...)
			if err := tr.workers[1].Restore(bounded(t), "latest"); err != nil {
				t.Fatal(err)
			}
			tr.barrier("restored")
			tr.pulled("restored parameters", saved)
			tr.stepInTwo(3)
			for _, got := range tr.results {
				sameModel(t, "the step after", got, want)
			}
		})
	}
}

// A checkpoint that lacks a part, or that other aggregators have saved, is refused by name and leaves the job alone.
func TestPartsThatDisagreeAreRefused(t *testing.T) {
	sameCode(t)
	t.Parallel()
	dir := t.TempDir()
	o := service.Options{Providers: []string{verbs.ProviderTCP}, Cores: 1, CheckpointDir: dir}
	cfg := adam(verbs.ProviderTCP)
	job := func(name string) string { return filepath.Join(dir, "adam", name) }
	trained := func(n int, f func(tr *trainer)) {
		services, server := serveSeveral(t, n, o)
		tr := trainSpread(t, cfg, server)
		f(tr)
		closeAll(t, tr.workers)
		closeServices(t, services)
	}
	save := func(name string) func(*trainer) {
		return func(tr *trainer) {
			tr.start()
			tr.barrier("started")
			if _, err := tr.workers[0].Save(bounded(t), name); err != nil {
				t.Fatal(err)
			}
			tr.barrier("saved")
		}
	}
	refused := func(tr *trainer, name, why string) {
		t.Helper()
		if err := tr.workers[0].Restore(bounded(t), name); !errors.Is(err, client.ErrRefused) || !strings.Contains(err.Error(), why) {
			t.Errorf("restore %q: %v, want %q", name, err, why)
		}
	}
	trained(1, save("whole"))
	trained(3, save("three"))
	trained(2, func(tr *trainer) {
		save("two")(tr)
		save("torn")(tr)
		save("lost")(tr)
		second := func(name string) string {
			files, err := filepath.Glob(job(name + ".2of2-*.rwck"))
			if err != nil || len(files) != 1 {
				t.Fatalf("second parts of %q: %v, %v", name, files, err)
			}
			return files[0]
		}
		if err := os.Remove(second("lost")); err != nil {
			t.Fatal(err)
		}
		other, err := os.ReadFile(second("two"))
		if err == nil {
			other[len(other)/2] ^= 1
			err = os.WriteFile(second("torn"), other, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		garbled := job("garbled.rwck")
		if err := os.WriteFile(garbled, []byte("no manifest"), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := tr.workers[0].Save(bounded(t), "garbled"); err == nil || !strings.Contains(err.Error(), "remove "+garbled) {
			t.Errorf("save over a damaged manifest: %v, want the remedy", err)
		}
		refused(tr, "whole", "a job at one aggregator saved it")
		refused(tr, "three", "it is in 3 parts, and the job is spread over 2 aggregators")
		refused(tr, "lost", "no such file")
		refused(tr, "torn", "corrupt checkpoint")
		refused(tr, "none", "no such file")
		if err := tr.workers[0].Restore(bounded(t), "two"); err != nil {
			t.Errorf("the job after refusals: %v", err)
		}
	})
	trained(1, func(tr *trainer) { refused(tr, "two", "manifest of parts") })
	cfg.ChunkBytes = 8192
	trained(2, func(tr *trainer) { refused(tr, "two", "chunk size") })
}

// A gradient under way at one of the aggregators keeps the job from being saved, and a refusal hurts neither
// the job nor the checkpoint of that name.
func TestASpreadJobIsNotSavedInMidStep(t *testing.T) {
	_, server := serveSeveral(t, 2, service.Options{Providers: []string{verbs.ProviderTCP}, Cores: 1, CheckpointDir: t.TempDir()})
	tr := trainSpread(t, adam(verbs.ProviderTCP), server)
	tr.start()
	tr.barrier("started")
	if _, err := tr.workers[0].Save(bounded(t), "mid"); err != nil {
		t.Fatal(err)
	}
	for tensor := range tr.tensors { // they lie at either aggregator, the small ones at one alone
		var under []client.Handle
		push := func(ranks ...int) {
			for _, rank := range ranks {
				x := make([]float32, tr.tensors[tensor].Elems())
				h, err := tr.workers[rank].PushPull(tensor, client.Bytes(x), client.Bytes(x), 0)
				if err != nil {
					t.Fatal(err)
				}
				under = append(under, h)
			}
		}
		push(3)
		waitFor(t, "the gradient to arrive", func() bool {
			_, err := tr.workers[0].Save(bounded(t), "mid")
			if err != nil && (!errors.Is(err, client.ErrRefused) || !strings.Contains(err.Error(), "let every worker finish")) {
				t.Fatalf("%v: want it to say what to do", err)
			}
			return err != nil
		})
		push(0, 1, 2)
		for _, h := range under {
			if err := h.Wait(bounded(t)); err != nil {
				t.Fatal(err)
			}
		}
	}
	tr.barrier("all")
	if err := tr.workers[2].Restore(bounded(t), "mid"); err != nil {
		t.Errorf("the checkpoint of that name from before: %v", err)
	}
	if _, err := tr.workers[2].Save(bounded(t), "end"); err != nil {
		t.Error(err)
	}
}

// An aggregator that is lost during a save ends it with an error that names the aggregator, and no file appears.
func TestASaveOfASpreadJobEndsWithAnAggregator(t *testing.T) {
	dir := t.TempDir()
	o := service.Options{Providers: []string{verbs.ProviderTCP}, Unpinned: true, Cores: 1, CheckpointDir: dir}
	first := serve(t, o)
	o.CheckpointDir = t.TempDir()
	other := play(t, "aggregator", o)
	url := other.line(t)
	cfg := client.Config{Server: first.URL() + "," + url, Job: "doomed", Workers: 1, Provider: verbs.ProviderTCP,
		Optimizer: "adam_torch"}
	workers := endless(t, cfg, 1)
	buf := make([]byte, endlessModel[0].Elems()*4)
	h, err := workers[0].Broadcast(0, buf)
	if err == nil {
		err = h.Wait(bounded(t))
	}
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()
	killed := make(chan struct{})
	time.AfterFunc(20*time.Millisecond, func() { other.kill(); close(killed) })
	for n := 0; ; n++ {
		if _, err = workers[0].Save(ctx, fmt.Sprint("n", n)); err != nil {
			break
		}
	}
	<-killed
	if ctx.Err() != nil || !strings.Contains(err.Error(), url) {
		t.Errorf("%v: want it to name %s", err, url)
	}
	for { // the worker may hear of the end before the aggregator has cleaned up
		left, err := filepath.Glob(filepath.Join(dir, "doomed", ".*"))
		if err == nil && !slices.ContainsFunc(left, func(p string) bool { return strings.Contains(p, ".rwck") }) {
			return
		}
		if err != nil || ctx.Err() != nil {
			t.Fatalf("left behind: %v, %v", left, err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}
