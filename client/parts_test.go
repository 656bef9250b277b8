package client_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/rackweave/rackweave/aggregate"
	"github.com/rackweave/rackweave/aggregate/optim"
	"github.com/rackweave/rackweave/aggregate/racktest"
	"github.com/rackweave/rackweave/cgo/fabric/simfabric"
	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/client"
	"github.com/rackweave/rackweave/service"
	"github.com/rackweave/rackweave/service/api"
	"github.com/rackweave/rackweave/service/api/apiconnect"
	"github.com/rackweave/rackweave/service/racks"
	"github.com/rackweave/rackweave/verbs"
)

// serveSeveral runs aggregators that know nothing of each other, and returns what workers are told of them.
func serveSeveral(t testing.TB, n int, o service.Options) (services []*service.Service, server string) {
	t.Helper()
	var urls []string
	for range n {
		s := serve(t, o)
		services, urls = append(services, s), append(urls, s.URL())
	}
	return services, strings.Join(urls, ",")
}

// joinSpread joins workers whose job is spread over aggregators.
func joinSpread(t testing.TB, server string, cfg client.Config) ([]*client.Worker, []error) {
	workers := make([]*client.Worker, cfg.Workers)
	errs := every(workers, func(rank int, _ *client.Worker) (err error) {
		own := cfg
		own.Server, own.Rank, own.Timeout = server, rank, deadline
		workers[rank], err = client.Join(bounded(t), own)
		return err
	})
	t.Cleanup(func() { closeAll(t, workers) })
	return workers, errs
}

func noErrors(t testing.TB, errs []error) {
	t.Helper()
	for i, err := range errs {
		if err != nil {
			t.Fatalf("worker %d: %v", i, err)
		}
	}
}

func TestAJobSpreadOverAggregatorsIsBitEqualToTheReference(t *testing.T) {
	momentum := map[string]float64{"momentum": 0.9, "scale": 0.25}
	for _, tc := range []struct {
		provider    string
		aggregators int
		mode        string
		rule        optim.Rule
		wire        chunk.DType
		alloc       bool
	}{
		{simfabric.Provider, 2, "aggregate", optim.Sum, chunk.F32, false},
		{verbs.ProviderSHM, 2, "eager", optim.SGDTorch, chunk.F32, false},
		{verbs.ProviderSHM, 3, "eager", optim.SGDTorch, chunk.BF16, true},
		{verbs.ProviderTCP, 3, "eager", optim.SGDTorch, chunk.F32, true},
		{"auto", 2, "eager", optim.SGDTorch, chunk.F32, false},
	} {
		t.Run(fmt.Sprintf("%s %d", tc.provider, tc.aggregators), func(t *testing.T) {
			o := service.Options{Cores: 2, Providers: []string{tc.provider}}
			if tc.provider == "auto" {
				o.Providers = nil
			}
			services, server := serveSeveral(t, tc.aggregators, o)
			cfg := client.Config{Job: "j", Workers: 4, Mode: tc.mode, Provider: tc.provider, WireType: tc.wire, ChunkBytes: 4096}
			hyper := tc.rule.Defaults()
			if tc.mode == "eager" {
				cfg.Optimizer, cfg.Hyper = tc.rule.String(), momentum
				hyper.Momentum, hyper.Scale = 0.9, 0.25
			}
			mode, err := aggregate.ParseMode(tc.mode)
			if err != nil {
				t.Fatal(err)
			}
			workers, errs := joinSpread(t, server, cfg)
			noErrors(t, errs)
			tensors := model()
			start := randomModel(7, tensors)
			for i := range start {
				start[i] = racktest.OnWire(tc.wire, start[i])
			}
			exchange(t, workers, tensors, racktest.NewReference(mode, tc.rule, hyper, tc.wire, start), 2, tc.alloc)
			stats, err := workers[0].Stats()
			if err != nil {
				t.Fatal(err)
			}
			var least, most uint64
			waitFor(t, "the lanes' counters", func() bool { // lanes publish them now and then
				var sum uint64
				least, most = math.MaxUint64, 0
				for i, s := range services {
					status, err := s.Status(bounded(t), nil)
					if err != nil {
						t.Fatal(err)
					}
					j := status.Jobs[0]
					if int(j.Part) != i || int(j.Parts) != tc.aggregators {
						t.Errorf("part %d of %d at aggregator %d of %d", j.Part, j.Parts, i, tc.aggregators)
					}
					got := j.Members[0].ReceivedBytes
					least, most, sum = min(least, got), max(most, got), sum+got
				}
				return sum >= stats.SentBytes
			})
			// Two lanes of each differ by a chunk in each step, and control records. What is NACKed is sent again.
			if most-least > (3*3+1+stats.NACKs)*4096 {
				t.Errorf("one aggregator received %d bytes of worker 0, another %d; it was to send %d chunks again", least, most, stats.NACKs)
			}
		})
	}
}

// Shape flat adds the workers' gradients rack by rack, and pod by pod, as the shapes do in which aggregators reduce.
func TestFlatHasTheBitsOfEveryShape(t *testing.T) {
	sameCode(t)
	for _, pods := range []int{1, 2} {
		t.Run(fmt.Sprint(pods, " pods"), func(t *testing.T) {
			const n = 4
			services := serveRacks(t, n, func(_ int, c *racks.Cluster) {
				c.Shape, c.Racks = "flat", slices.Clone(c.Racks)
				for i := range c.Racks {
					if c.Racks[i].Size = 1 + i%2; pods > 1 {
						c.Racks[i].Pod = fmt.Sprintf("p%d", i*pods/n)
					}
				}
			})
			in := []int{0, 1, 1, 2, 3, 3}                            // the rack of each worker
			ask := []int{client.AnyRank, 1, 2, client.AnyRank, 4, 5} // the only worker of a rack gets that one's rank
			workers := make([]*client.Worker, len(in))
			noErrors(t, every(workers, func(rank int, _ *client.Worker) (err error) {
				workers[rank], err = client.Join(bounded(t), client.Config{
					Server: services[in[rank]].URL(), Job: "j", Token: "t", Rank: ask[rank], Workers: len(in), Timeout: deadline,
					Provider: verbs.ProviderTCP, Optimizer: "sgd_torch", Hyper: map[string]float64{"momentum": 0.9}, ChunkBytes: 4096,
				})
				return err
			}))
			defer closeAll(t, workers)
			for rank, w := range workers {
				if w.Rank() != rank {
					t.Fatalf("worker %d got rank %d", rank, w.Rank())
				}
			}
			if by, p := workers[0].Racks(); !slices.Equal(by, []int{1, 2, 1, 2}) || p != pods || workers[0].Aggregators() != n {
				t.Fatalf("racks %v with %d pods at %d aggregators", by, p, workers[0].Aggregators())
			}
			hyper := optim.SGDTorch.Defaults()
			hyper.Momentum = 0.9
			tensors := model()
			ref := racktest.NewReference(aggregate.Eager, optim.SGDTorch, hyper, chunk.F32, randomModel(7, tensors))
			exchangeBy(t, workers, tensors, ref, func(g [][][]float32) [][]float32 {
				return ref.StepRacks([][][][]float32{g[:1], g[1:3], g[3:4], g[4:]}, pods)
			}, 2, false)
		})
	}
}

// playSpread plays two aggregators, and returns what workers are told of them.
func playSpread(t *testing.T, provider string) (parts [2]*part, urls [2]string) {
	t.Helper()
	for i := range parts {
		parts[i] = play(t, "aggregator", service.Options{Providers: []string{provider}, Unpinned: true, Cores: 1})
		urls[i] = parts[i].line(t)
	}
	return parts, urls
}

// endless joins workers to a job that is spread over aggregators, with a tensor to exchange for ever.
func endless(t *testing.T, cfg client.Config, n int) []*client.Worker {
	t.Helper()
	workers := make([]*client.Worker, n)
	t.Cleanup(func() {
		for _, w := range workers {
			if w != nil {
				w.Close() // it may say that the aggregator is lost
			}
		}
	})
	each(t, workers, func(rank int, _ *client.Worker) (err error) {
		own := cfg
		own.Rank, own.Timeout = rank, deadline
		if workers[rank], err = client.Join(bounded(t), own); err != nil {
			return err
		}
		return workers[rank].Register(bounded(t), endlessModel)
	})
	return workers
}

// One of several aggregators that is killed ends the job at once for all workers and at the other aggregators, by name.
func TestAKilledAggregatorOfSeveralIsNamedByAll(t *testing.T) {
	for _, provider := range []string{verbs.ProviderSHM, verbs.ProviderTCP} {
		t.Run(provider, func(t *testing.T) {
			parts, urls := playSpread(t, provider)
			cfg := client.Config{Server: urls[0] + "," + urls[1], Job: "doomed", Workers: 3, Provider: provider}
			workers := endless(t, cfg, 3)
			killedAt := make(chan time.Time, 1)
			time.AfterFunc(100*time.Millisecond, func() {
				parts[1].kill()
				killedAt <- time.Now()
			})
			for rank, err := range knowSoon(t, workers, killedAt) {
				if !strings.Contains(err.Error(), urls[1]) || !errors.Is(err, client.ErrServerLost) && !errors.Is(err, client.ErrAborted) {
					t.Errorf("worker %d: %v: want it to name %s", rank, err, urls[1])
				}
			}
			// The other soon knows why, and is free for the job's next run, although these workers have not closed.
			var failure string
			waitFor(t, "the other aggregator to know", func() bool {
				status, err := client.Status(bounded(t), client.Config{Server: urls[0]})
				if err != nil {
					t.Fatal(err)
				}
				if len(status.Jobs) == 0 {
					return true // it has forgotten the job already, as all have left
				}
				failure = status.Jobs[0].Failure.GetText()
				return status.Jobs[0].State == "failed"
			})
			if failure != "" && !strings.Contains(failure, urls[1]) {
				t.Errorf("the other aggregator says %q: want it to name %s", failure, urls[1])
			}
			cfg.Server = urls[0]
			again := endless(t, cfg, 3)
			each(t, again, func(_ int, w *client.Worker) error { return w.Barrier(bounded(t), "runs") })
		})
	}
}

func TestAKilledWorkerIsNamedThroughAllAggregators(t *testing.T) {
	_, server := serveSeveral(t, 2, service.Options{Providers: []string{verbs.ProviderTCP}, Cores: 1})
	cfg := client.Config{Server: server, Job: "doomed", Workers: 3, Provider: verbs.ProviderTCP, Timeout: deadline}
	killed := cfg
	killed.Rank = 2
	victim := play(t, "worker", killed)
	workers := endless(t, cfg, 2)
	killedAt := make(chan time.Time, 1)
	go func() {
		victim.lines.Scan() // "pushing"
		victim.kill()
		killedAt <- time.Now()
	}()
	for rank, err := range knowSoon(t, workers, killedAt) {
		if !errors.Is(err, client.ErrAborted) || !strings.Contains(err.Error(), "worker 2") {
			t.Errorf("worker %d: %v: want an abort because of worker 2", rank, err)
		}
	}
}

func TestAWorkerThatPushesNothingIsNamedByTheAggregatorsThatWait(t *testing.T) {
	services, server := serveSeveral(t, 2, service.Options{Providers: []string{verbs.ProviderTCP}, Cores: 1})
	workers := endless(t, client.Config{Server: server, Job: "late", Workers: 2, Provider: verbs.ProviderTCP}, 2)
	buf := make([]byte, endlessModel[0].Elems()*4)
	h, err := workers[0].PushPull(0, buf, buf, 0)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	err = h.Wait(ctx)
	for _, s := range services {
		if want := "at " + s.URL() + " waits for worker 1 ("; err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: want it to say %q", err, want)
		}
	}
}

func TestWhatCannotBeSpreadIsRefusedByName(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: refusals are the same under the race detector")
	}
	t.Parallel()
	tcp := service.Options{Providers: []string{verbs.ProviderTCP}, Cores: 1}
	_, server := serveSeveral(t, 2, tcp)
	two := tcp
	two.Cores = 2
	wider := serve(t, two)
	first, second, _ := strings.Cut(server, ",")
	reduces := serveRacks(t, 2, nil)
	flat := serveRacks(t, 2, func(_ int, c *racks.Cluster) { c.Shape = "flat" })
	for _, tc := range []struct {
		name, server string
		edit         func(*client.Config)
		want         string
	}{
		{"twice", first + "," + first + "/", nil, "is there twice"},
		{"url", first + ",b:7077", nil, `server "b:7077": use a URL`},
		{"cores", first + "," + wider.URL(), nil, "it has lanes"},
		{"stream", server, func(c *client.Config) { c.Optimizer, c.Mode = "sgd_torch", "stream" }, "mode stream runs at one aggregator"},
		{"two-phase", server, func(c *client.Config) { c.Optimizer, c.Mode = "sgd_torch", "two-phase" },
			"mode two-phase runs at one aggregator"},
		{"orders", server, func(c *client.Config) {
			if c.Rank == 1 {
				c.Server = second + "," + first
			}
		}, "of 2 workers came in time"},
		{"one and several", server, func(c *client.Config) {
			if c.Rank == 1 {
				c.Server = first
			}
		}, "this aggregator's place is "},
		{"reducing racks", reduces[0].URL() + "," + reduces[1].URL(), nil, "reduce among themselves, in shape sharded"},
		{"a flat cluster's list", flat[0].URL() + "," + flat[1].URL(), nil, "join that of the worker's rack alone"},
		{"another rack", "", func(c *client.Config) { c.Server = flat[1-c.Rank].URL() }, `rank 1 of 2 does not belong to rack "r0"`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var said []string
			for _, err := range every(make([]*client.Worker, 2), func(rank int, _ *client.Worker) error {
				cfg := client.Config{Server: tc.server, Job: "j", Rank: rank, Workers: 2, Provider: verbs.ProviderTCP, Timeout: 2 * time.Second}
				if tc.edit != nil {
					tc.edit(&cfg)
				}
				w, err := client.Join(bounded(t), cfg)
				if err == nil {
					w.Close()
				}
				return err
			}) {
				said = append(said, fmt.Sprint(err))
			}
			if all := strings.Join(said, "\n"); !strings.Contains(all, tc.want) {
				t.Errorf("%s\nwant one to say %q", all, tc.want)
			}
		})
	}
}

// A worker that can join only one aggregator is told why that does not do.
func TestAWorkerThatJoinsOneAggregatorIsRefusedByAFlatCluster(t *testing.T) {
	flat := serveRacks(t, 2, func(_ int, c *racks.Cluster) { c.Shape = "flat" })
	h := &http.Client{Transport: &http.Transport{}}
	defer h.CloseIdleConnections()
	_, err := apiconnect.NewJobServiceClient(h, flat[0].URL()).Join(bounded(t),
		&api.JoinRequest{Job: "j", Workers: 2, Mode: "aggregate", Providers: []string{verbs.ProviderTCP}})
	if want := "use a client of the aggregators' version, or another shape"; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%v: want it to say %q", err, want)
	}
}

// A worker that has come to another rack than its own ends the others' wait for it, by name.
func TestAWorkerInAnotherRackOfAFlatClusterEndsTheWaitOfTheOthers(t *testing.T) {
	flat := serveRacks(t, 2, func(_ int, c *racks.Cluster) { c.Shape = "flat" })
	errs := every(make([]*client.Worker, 2), func(rank int, _ *client.Worker) error {
		if rank == 1 {
			waitFor(t, "the other worker to wait", func() bool {
				status, err := flat[0].Status(bounded(t), nil)
				return err == nil && len(status.Jobs) == 1
			})
		}
		w, err := client.Join(bounded(t), client.Config{Server: flat[0].URL(), Job: "j", Rank: rank, Workers: 2, Timeout: deadline,
			Provider: verbs.ProviderTCP})
		if err == nil {
			w.Close()
		}
		return err
	})
	for rank, err := range errs {
		if want := `rank 1 of 2 does not belong to rack "r0"`; err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("worker %d: %v: want it to say %q", rank, err, want)
		}
	}
}

// A flat cluster tells its aggregators' URLs to workers of the job alone.
func TestAFlatClusterTellsStrangersNothing(t *testing.T) {
	o := service.Options{Providers: []string{verbs.ProviderTCP}, Cores: 1, Jobs: map[string]string{"j": "secret"}}
	flat := serveRacksWith(t, 2, o, func(_ int, c *racks.Cluster) { c.Shape = "flat" })
	h := &http.Client{Transport: &http.Transport{}}
	defer h.CloseIdleConnections()
	const denied = connect.CodePermissionDenied
	for token, want := range map[string]connect.Code{"secret": 0, "guess": denied, "": denied} {
		who := api.Identify(func() string { return "" }, token)
		out, err := apiconnect.NewJobServiceClient(h, flat[0].URL(), who).Join(bounded(t),
			&api.JoinRequest{Job: "j", Workers: 2, Mode: "aggregate", Providers: []string{verbs.ProviderTCP}, Spreads: true})
		if err != nil && connect.CodeOf(err) != want || err == nil && (want != 0 || len(out.Aggregators) != 2) {
			t.Errorf("token %q: %v, %v, want code %v", token, out, err, want)
		}
	}
}

// What one aggregator's quota does not admit is refused with the remedy, and the remedy works.
func TestAModelTooLargeForOneAggregatorIsSpread(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: quotas are the same under the race detector")
	}
	large := []client.Tensor{{Name: "large", Shape: []uint64{4 << 20}}} // 16 MiB, and 20 MiB with what it takes beside
	o := service.Options{Providers: []string{verbs.ProviderTCP}, Cores: 1, Quota: service.Quota{MemoryBytes: 16 << 20}, Window: 8,
		CheckpointDir: t.TempDir()}
	_, server := serveSeveral(t, 2, o)
	cfg := client.Config{Workers: 2, Provider: verbs.ProviderTCP, Optimizer: "sgd_torch", Mode: "eager"}
	one, _, _ := strings.Cut(server, ",")
	register := func(job, server string) error {
		cfg.Job = job
		workers, errs := joinSpread(t, server, cfg)
		noErrors(t, errs)
		errs = every(workers, func(rank int, w *client.Worker) error {
			err := w.Register(bounded(t), large)
			if err == nil && rank == 1 {
				_, err = w.Save(bounded(t), "small")
			}
			return err
		})
		return errors.Join(errs...)
	}
	if err := register("one", one); err == nil || !strings.Contains(err.Error(), "spread the job over several aggregators") {
		t.Errorf("%v: want the remedy", err)
	}
	if err := register("several", server); err != nil {
		t.Error(err)
	}
}

// A lane of the second aggregator leaves a NIC of that one whose link is down, and returns to it.
func TestLanesOfSeveralAggregatorsFailOverThere(t *testing.T) {
	r := newLinkRigOf(t, []string{"agg", "other"}, 2, 2, 2, 5*time.Second)
	r.exchange(atLeast(1))
	r.link(false, "other", 1)
	r.exchange(func(int) bool { return r.guests() == 2 })
	r.exchange(atLeast(2))
	r.link(true, "other", 1)
	// The aggregator knows first that both workers' lanes are back.
	r.exchange(func(int) bool { return r.guests() == 0 && r.failovers() >= 4 })
	status, err := r.others[0].Status(bounded(t), nil)
	if err != nil {
		t.Fatal(err)
	}
	for i, lane := range status.Engines[0].Lanes {
		if lane.Failovers > 0 {
			t.Errorf("lane %d of the first aggregator, whose links are up, failed over %d times", i, lane.Failovers)
		}
	}
}

// Aggregators that listen on all addresses are each reached at the one that calls reach.
func TestAggregatorsThatListenOnAllAddressesAreReachedAtTheirOwn(t *testing.T) {
	var urls []string
	for _, at := range []struct{ network, listen, reach string }{
		{"tcp6", "[::]:0", "[::1]"}, {"tcp4", "0.0.0.0:0", "127.0.0.1"}, {"tcp4", "0.0.0.0:0", "127.0.0.1"},
	} {
		l, err := net.Listen(at.network, at.listen)
		if err != nil && at.network == "tcp6" {
			t.Skipf("this host has no IPv6: %v", err)
		}
		if err != nil {
			t.Fatal(err)
		}
		serve(t, service.Options{Listener: l, Insecure: true, Providers: []string{verbs.ProviderTCP}, Cores: 2})
		urls = append(urls, fmt.Sprintf("http://%s:%d", at.reach, l.Addr().(*net.TCPAddr).Port))
	}
	workers, errs := joinSpread(t, strings.Join(urls, ","), client.Config{Job: "j", Workers: 2, Provider: verbs.ProviderTCP})
	noErrors(t, errs)
	tensors := model()
	ref := racktest.NewReference(aggregate.Aggregate, optim.Sum, optim.Sum.Defaults(), chunk.F32, randomModel(7, tensors))
	exchange(t, workers, tensors, ref, 2, true)
}
