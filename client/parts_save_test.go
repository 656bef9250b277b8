package client_test

import (
	"context"
	"errors"
	"fmt"
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
		if tr.workers[rank], err = client.Join(context20(t), own); err != nil {
			return err
		}
		for _, d := range tr.tensors {
			tr.results[rank] = append(tr.results[rank], make([]float32, d.Elems()))
		}
		return tr.workers[rank].Register(context20(t), tr.tensors)
	})
	t.Cleanup(func() { closeAll(t, tr.workers) })
	return tr
}

// What several aggregators save in parts, one restores, and the reverse; so do other numbers of them.
func TestACheckpointOfASpreadJobRestoresAnywhere(t *testing.T) {
	for _, tc := range []struct{ from, to string }{
		{"spread 2", "one"}, {"one", "spread 3"}, {"spread 3", "flat"}, {"flat", "sharded"},
	} {
		t.Run(tc.from+" to "+tc.to, func(t *testing.T) {
			dir := t.TempDir()
			o := service.Options{Providers: []string{verbs.ProviderTCP}, Cores: 2, CheckpointDir: dir}
			start := func(how string, cfg client.Config) (*trainer, []*service.Service) {
				var n int
				switch {
				case how == "one":
					services, server := serveSeveral(t, 1, o)
					return trainSpread(t, cfg, server), services
				case strings.HasPrefix(how, "spread"):
					fmt.Sscanf(how, "spread %d", &n)
					services, server := serveSeveral(t, n, o)
					return trainSpread(t, cfg, server), services
				}
				services := serveRacksWith(t, 2, o, func(_ int, c *racks.Cluster) { c.Shape = how })
				return trainSpread(t, cfg, services[0].URL(), services[1].URL()), services
			}
			cfg := adam(verbs.ProviderTCP)
			tr, services := start(tc.from, cfg)
			tr.start()
			tr.stepInTwo(1)
			tr.stepInTwo(2)
			tr.barrier("before")
			path, err := tr.workers[3].Save(context20(t), "two")
			if want := filepath.Join(dir, "adam", "two.rwck"); err != nil || path != want {
				t.Fatalf("saved %q, %v; want %s", path, err, want)
			}
			tr.barrier("after")
			saved := tr.parameters()
			tr.stepInTwo(3)
			want := tr.parameters()
			closeAll(t, tr.workers)
			for _, s := range services {
				if err := s.Close(); err != nil {
					t.Fatal(err)
				}
			}

			cfg.ChunkBytes = 8192
			tr, _ = start(tc.to, cfg)
			if err := tr.workers[1].Restore(context20(t), "two"); err != nil {
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

// A gradient under way at one of the aggregators keeps the job from being saved, and a refusal hurts nobody.
func TestASpreadJobIsNotSavedInMidStep(t *testing.T) {
	_, server := serveSeveral(t, 2, service.Options{Providers: []string{verbs.ProviderTCP}, Cores: 1, CheckpointDir: t.TempDir()})
	tr := trainSpread(t, adam(verbs.ProviderTCP), server)
	tr.start()
	tr.barrier("started")
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
			_, err := tr.workers[0].Save(context20(t), "mid")
			if err != nil && (!errors.Is(err, client.ErrRefused) || !strings.Contains(err.Error(), "let every worker finish")) {
				t.Fatalf("%v: want it to say what to do", err)
			}
			return err != nil
		})
		push(0, 1, 2)
		for _, h := range under {
			if err := h.Wait(context20(t)); err != nil {
				t.Fatal(err)
			}
		}
	}
	tr.barrier("all")
	if _, err := tr.workers[2].Save(context20(t), "end"); err != nil {
		t.Error(err)
	}
}

// An aggregator that is lost during a save ends it with an error that names the aggregator, and no file appears.
func TestASaveOfASpreadJobEndsWithAnAggregator(t *testing.T) {
	dir := t.TempDir()
	o := service.Options{Providers: []string{verbs.ProviderTCP}, Unpinned: true, Cores: 1, CheckpointDir: dir}
	first := serve(t, o)
	other := play(t, "aggregator", o)
	url := other.line(t)
	cfg := client.Config{Server: first.URL() + "," + url, Job: "doomed", Workers: 1, Provider: verbs.ProviderTCP,
		Optimizer: "adam_torch"}
	workers := endless(t, cfg, 1)
	buf := make([]byte, endlessModel[0].Elems()*4)
	h, err := workers[0].Broadcast(0, buf)
	if err == nil {
		err = h.Wait(context20(t))
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
