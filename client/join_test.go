package client_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/client"
	"github.com/rackweave/rackweave/service"
	"github.com/rackweave/rackweave/verbs"
)

// refused checks that an error is a refusal with this code that says this.
func refused(t *testing.T, err error, code connect.Code, want string) {
	t.Helper()
	var c *connect.Error
	if !errors.Is(err, client.ErrRefused) || !errors.As(err, &c) || c.Code() != code || !strings.Contains(err.Error(), want) {
		t.Errorf("%v: want it refused as %v and to say %q", err, code, want)
	}
}

func TestJoinRefusesWhatCannotBeAndSaysWhatCan(t *testing.T) {
	s := serve(t, service.Options{
		Providers: []string{verbs.ProviderTCP},
		Jobs:      map[string]string{"j": "", "listed": "secret"}, Quota: service.Quota{Workers: 2},
	})
	ok := client.Config{Server: s.URL(), Job: "j", Workers: 1, Mode: "eager", Optimizer: "sgd_torch", Provider: verbs.ProviderTCP}
	for _, c := range []struct {
		name string
		edit func(*client.Config)
		code connect.Code
		want string
	}{
		{"mode", func(c *client.Config) { c.Mode = "lazy" }, connect.CodeInvalidArgument,
			`unknown mode "lazy": use eager, aggregate, two-phase or stream`},
		{"optimizer", func(c *client.Config) { c.Optimizer = "sgd_troch" }, connect.CodeInvalidArgument, "did you mean sgd_torch?"},
		{"no optimizer", func(c *client.Config) { c.Optimizer = "" }, connect.CodeInvalidArgument, "mode eager needs an optimizer"},
		{"useless optimizer", func(c *client.Config) { c.Mode = "aggregate" }, connect.CodeInvalidArgument, "runs no optimizer"},
		{"optimizer of whole tensors", func(c *client.Config) { c.Optimizer = "lamb" }, connect.CodeInvalidArgument,
			"use mode two-phase"},
		{"provider", func(c *client.Config) { c.Provider = verbs.ProviderSHM }, connect.CodeInvalidArgument,
			"is not served here: use auto, or tcp"},
		{"hyper-parameter", func(c *client.Config) { c.Hyper = map[string]float64{"learning_rate": 1} }, connect.CodeInvalidArgument,
			"use lr, wd,"},
		{"its value", func(c *client.Config) { c.Hyper = map[string]float64{"lr": -1} }, connect.CodeInvalidArgument, "lr is -1"},
		{"chunk size", func(c *client.Config) { c.ChunkBytes = 5000 }, connect.CodeInvalidArgument, "use a power of two"},
		{"no workers", func(c *client.Config) { c.Workers = 0 }, connect.CodeInvalidArgument, "use 1 to 1024"},
		{"too many workers", func(c *client.Config) { c.Workers = 5000 }, connect.CodeInvalidArgument, "use 1 to 1024"},
		{"rank", func(c *client.Config) { c.Rank = 1 }, connect.CodeInvalidArgument, "rank 1 in a job of 1 workers"},
		{"job name", func(c *client.Config) { c.Job = "a/b" }, connect.CodeInvalidArgument, "job name"},
		{"no job name", func(c *client.Config) { c.Job = "" }, connect.CodeInvalidArgument, "job name"},
		{"token of a listed job", func(c *client.Config) { c.Job, c.Token = "listed", "guess" }, connect.CodePermissionDenied,
			"wrong token"},
		{"quota of workers", func(c *client.Config) { c.Job, c.Token, c.Workers = "listed", "secret", 3 },
			connect.CodeResourceExhausted, "its quota is 2"},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg := ok
			c.edit(&cfg)
			w, err := client.Join(bounded(t), cfg)
			if err == nil {
				w.Close()
			}
			refused(t, err, c.code, c.want)
		})
	}
	w, err := client.Join(bounded(t), ok)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Error(err)
	}
}

func TestJoinChecksItsOwnConfiguration(t *testing.T) {
	for _, c := range []struct {
		cfg  client.Config
		want string
	}{
		{client.Config{Server: "host:7077"}, "use a URL such as"},
		{client.Config{Server: "http://h:1/path"}, "without a path"},
		{client.Config{Server: "http://h:1", CA: "/x"}, "use https://"},
		{client.Config{Server: "https://h:1", CA: "/does/not/exist"}, "CA file"},
		{client.Config{Server: "http://h:1", Timeout: -1}, "at least a millisecond"},
		{client.Config{Server: "http://h:1", Spin: -2}, "spin of -2"},
	} {
		if _, err := client.Join(bounded(t), c.cfg); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v, want it to say %q", c.cfg, err, c.want)
		}
	}
}

func TestAWorkerMustSayWhatTheJobIs(t *testing.T) {
	t.Parallel()
	s := serve(t, service.Options{Providers: []string{verbs.ProviderTCP}})
	first := client.Config{
		Server: s.URL(), Job: "j", Token: "t", Rank: 0, Workers: 2, Mode: "eager", Optimizer: "sgd_torch",
		Hyper: map[string]float64{"momentum": 0.9}, Provider: verbs.ProviderTCP,
	}
	for _, c := range []struct {
		name string
		edit func(*client.Config)
		code connect.Code
		want string
	}{
		{"token", func(c *client.Config) { c.Token = "T" }, connect.CodePermissionDenied, "wrong token"},
		{"rank", func(c *client.Config) { c.Rank = 0 }, connect.CodeAlreadyExists, "rank 0 of job \"j\" is taken by worker 0 ("},
		{"workers", func(c *client.Config) { c.Workers = 3 }, connect.CodeFailedPrecondition, "workers is 3 here and 2 in the job"},
		{"mode", func(c *client.Config) { c.Mode = "two-phase" }, connect.CodeFailedPrecondition,
			"mode is two-phase here and eager in the job"},
		{"optimizer", func(c *client.Config) { c.Optimizer = "sgd_mxnet" }, connect.CodeFailedPrecondition,
			"optimizer is sgd_mxnet here and sgd_torch"},
		{"hyper-parameter", func(c *client.Config) { c.Hyper = map[string]float64{"momentum": 0.5} }, connect.CodeFailedPrecondition,
			"momentum is 0.5 here and 0.9"},
		{"chunk size", func(c *client.Config) { c.ChunkBytes = 4096 }, connect.CodeFailedPrecondition,
			"chunk_bytes is 4096 here and 32768"},
	} {
		t.Run(c.name, func(t *testing.T) {
			joined := make(chan error, 1)
			ctx, cancel := context.WithCancel(bounded(t))
			defer cancel()
			go func() {
				_, err := client.Join(ctx, first)
				joined <- err
			}()
			waitFor(t, "the first worker", func() bool { return forming(t, s) == 1 })
			cfg := first
			cfg.Rank = 1
			c.edit(&cfg)
			_, err := client.Join(bounded(t), cfg)
			refused(t, err, c.code, c.want)
			if c.code == connect.CodeFailedPrecondition {
				// It is of the job, and the job cannot be: the first does not wait for its timeout.
				refused(t, <-joined, c.code, "worker 1 (")
			} else {
				cancel()
				if err := <-joined; !errors.Is(err, context.Canceled) {
					t.Errorf("the first worker, cancelled: %v", err)
				} else if strings.Count(err.Error(), context.Canceled.Error()) != 1 {
					t.Errorf("the first worker, cancelled: %q says so more than once", err)
				}
			}
			waitFor(t, "the job to be forgotten", func() bool { return forming(t, s) == 0 })
		})
	}
}

// forming is how many workers the service's only job has; 0 without a job.
func forming(t testing.TB, s *service.Service) int {
	status, err := s.Status(bounded(t), nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(status.Jobs) == 0 {
		return 0
	}
	return len(status.Jobs[0].Members)
}

func TestTheThirteenthWorkerOfTwelveIsTurnedAway(t *testing.T) {
	s := serve(t, service.Options{Providers: []string{verbs.ProviderTCP}, Cores: 1})
	cfg := client.Config{Job: "twelve", Workers: 12, Provider: verbs.ProviderTCP}
	workers := joinAll(t, s, cfg)
	cfg.Server, cfg.Rank = s.URL(), client.AnyRank
	_, err := client.Join(bounded(t), cfg)
	refused(t, err, connect.CodeResourceExhausted, `job "twelve" has all of its 12 workers`)
	seen := map[int]bool{}
	for _, w := range workers {
		seen[w.Rank()] = true
	}
	if len(seen) != 12 {
		t.Errorf("ranks %v", seen)
	}
}

func TestRanksThatNobodyAskedForAreGivenOut(t *testing.T) {
	s := serve(t, service.Options{Providers: []string{verbs.ProviderTCP}, Cores: 1})
	ranks := []int{client.AnyRank, 2, client.AnyRank, client.AnyRank}
	workers := make([]*client.Worker, len(ranks))
	each(t, workers, func(i int, _ *client.Worker) (err error) {
		workers[i], err = client.Join(bounded(t), client.Config{
			Server: s.URL(), Job: "j", Rank: ranks[i], Workers: 4, Provider: verbs.ProviderTCP,
		})
		return err
	})
	defer closeAll(t, workers)
	if workers[1].Rank() != 2 {
		t.Errorf("who asked for rank 2 has %d", workers[1].Rank())
	}
	seen := map[int]bool{}
	for _, w := range workers {
		seen[w.Rank()] = true
	}
	if len(seen) != 4 {
		t.Errorf("ranks %v", seen)
	}
}

func TestAJoinThatWaitsInVainNamesTheMissingRanks(t *testing.T) {
	s := serve(t, service.Options{Providers: []string{verbs.ProviderTCP}})
	began := time.Now()
	_, err := client.Join(bounded(t), client.Config{
		Server: s.URL(), Job: "j", Rank: 1, Workers: 4, Provider: verbs.ProviderTCP, Timeout: 50 * time.Millisecond,
	})
	if !errors.Is(err, client.ErrTimeout) || !strings.Contains(err.Error(), "1 of 4 workers came in time: missing ranks 0, 2, 3") {
		t.Error(err)
	}
	if took := time.Since(began); took > promptly {
		t.Errorf("took %v", took)
	}
}

func TestAutoChoosesSharedMemoryOnOneHost(t *testing.T) {
	s := serve(t, service.Options{Providers: []string{verbs.ProviderTCP, verbs.ProviderSHM}})
	for _, w := range joinAll(t, s, client.Config{Job: "auto", Workers: 2}) {
		if w.Provider() != verbs.ProviderSHM {
			t.Errorf("worker %d: %s", w.Rank(), w.Provider())
		}
	}
	mixed := make([]*client.Worker, 2)
	errs := every(mixed, func(rank int, _ *client.Worker) error {
		_, err := client.Join(bounded(t), client.Config{
			Server: s.URL(), Job: "mixed", Rank: rank, Workers: 2, Provider: []string{verbs.ProviderTCP, verbs.ProviderSHM}[rank],
		})
		return err
	})
	for _, err := range errs {
		refused(t, err, connect.CodeFailedPrecondition, "all workers must ask for the same, or for auto")
	}
}

func TestWorkersReachTCPWhereTheyReachTheControlPlane(t *testing.T) {
	for _, tc := range []struct{ listen, device string }{{"127.0.0.2:0", "127.0.0.2"}, {"0.0.0.0:0", "0.0.0.0"}} {
		l, err := net.Listen("tcp4", tc.listen)
		if err != nil {
			t.Fatal(err)
		}
		s := serve(t, service.Options{Listener: l, Providers: []string{verbs.ProviderTCP}, Insecure: true})
		joinAll(t, s, client.Config{Job: "j", Workers: 2})
		status, err := client.Status(bounded(t), client.Config{Server: s.URL()})
		if err != nil {
			t.Fatal(err)
		}
		if got := status.Engines[0].Lanes[0].Device; got != tc.device {
			t.Errorf("the aggregator listens on %s, tcp on %s, want %s", tc.listen, got, tc.device)
		}
	}
}

func TestRegistrationsThatDifferFailAtOnceAndNameTheTensor(t *testing.T) {
	t.Parallel()
	s := serve(t, service.Options{Providers: []string{verbs.ProviderTCP}, Cores: 1})
	half := 0.5
	base := func() []client.Tensor {
		return []client.Tensor{
			{Name: "a", Shape: []uint64{3}}, {Name: "conv.weight", Shape: []uint64{64, 3, 3, 3}},
			{Name: "z", Shape: []uint64{9, 1}, Sparse: true, Frequencies: make([]float32, 9)},
		}
	}
	for i, c := range []struct {
		name string
		edit func([]client.Tensor) []client.Tensor
		want []string
	}{
		{"shape", func(ts []client.Tensor) []client.Tensor { ts[1].Shape = []uint64{64, 3, 7, 7}; return ts },
			[]string{`tensor "conv.weight" has shape`, "[64 3 7 7]", "[64 3 3 3]"}},
		{"shape of as many elements", func(ts []client.Tensor) []client.Tensor { ts[1].Shape = []uint64{3, 64, 3, 3}; return ts },
			[]string{`tensor "conv.weight" has shape`}},
		{"dtype", func(ts []client.Tensor) []client.Tensor { ts[1].WireType = chunk.BF16; return ts },
			[]string{`tensor "conv.weight" has dtype`, "bf16", "f32"}},
		{"multiplier", func(ts []client.Tensor) []client.Tensor { ts[1].LRMult = &half; return ts },
			[]string{`tensor "conv.weight" has lr_mult`, "0.5"}},
		{"rows", func(ts []client.Tensor) []client.Tensor { ts[1].Sparse = true; return ts },
			[]string{`tensor "conv.weight" has sparse`, "true at worker 1", "false at worker"}},
		{"rows of another width", func(ts []client.Tensor) []client.Tensor {
			ts[2].Shape, ts[2].Frequencies = []uint64{3, 3}, nil
			return ts
		},
			[]string{`tensor "z" has shape`, "[9 1]", "[3 3]"}},
		{"updates of rows", func(ts []client.Tensor) []client.Tensor { ts[2].Standard = true; return ts },
			[]string{`tensor "z" has standard`, "true at worker 1", "false at worker"}},
		{"frequencies", func(ts []client.Tensor) []client.Tensor {
			ts[2].Frequencies = []float32{0, 0, 0, 0, 0, 0, 0, 0, 7}
			return ts
		}, []string{`tensor "z" has frequencies in chunk 0 that add up to`, "7 at worker 1", "0 at worker"}},
		{"no frequencies", func(ts []client.Tensor) []client.Tensor { ts[2].Frequencies = nil; return ts },
			[]string{`tensor "z" has frequencies of rows for so many chunks:`, "0 at worker 1", "1 at worker"}},
		{"name", func(ts []client.Tensor) []client.Tensor { ts[1].Name = "conv.bias"; return ts },
			[]string{`"conv.weight"`, `"conv.bias"`, "same order"}},
		{"one less", func(ts []client.Tensor) []client.Tensor { return ts[:2] }, []string{`worker 1 lacks "z"`}},
	} {
		t.Run(c.name, func(t *testing.T) {
			workers := joinAll(t, s, client.Config{Job: fmt.Sprint("job", i), Workers: 3, Provider: verbs.ProviderTCP})
			began := time.Now()
			for rank, err := range every(workers, func(rank int, w *client.Worker) error {
				tensors := base()
				if rank == 1 {
					tensors = c.edit(tensors)
				}
				return w.Register(bounded(t), tensors)
			}) {
				if err == nil {
					t.Errorf("worker %d registered", rank)
					continue
				}
				for _, want := range c.want {
					if !strings.Contains(err.Error(), want) {
						t.Errorf("worker %d: %v: want it to say %q", rank, err, want)
					}
				}
				if strings.Contains(err.Error(), "failed_precondition") {
					t.Errorf("worker %d: %v: it names the code of a call", rank, err)
				}
			}
			if took := time.Since(began); took > promptly {
				t.Errorf("took %v", took)
			}
		})
	}
}

func TestARegistrationThatIsNotSoundIsRefused(t *testing.T) {
	s := serve(t, service.Options{Providers: []string{verbs.ProviderTCP}})
	for i, c := range []struct {
		tensors []client.Tensor
		code    connect.Code
		want    string
	}{
		{nil, connect.CodeInvalidArgument, "no tensors"},
		{[]client.Tensor{{Name: "a", Shape: []uint64{0}}}, connect.CodeInvalidArgument, "has no elements"},
		{[]client.Tensor{{Name: "a"}, {Name: "a"}}, connect.CodeInvalidArgument, "is there twice"},
		{[]client.Tensor{{Shape: []uint64{4}}}, connect.CodeInvalidArgument, "has no name"},
		{[]client.Tensor{{Name: "a", Shape: []uint64{1 << 40, 1 << 40}}}, connect.CodeInvalidArgument, "too large"},
	} {
		w := joinAll(t, s, client.Config{Job: fmt.Sprint("job", i), Workers: 1, Provider: verbs.ProviderTCP})[0]
		err := w.Register(bounded(t), c.tensors)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: %v, want it to say %q", c.tensors, err, c.want)
		}
		if !errors.Is(err, client.ErrAborted) { // the call's own answer came before the job's failure
			refused(t, err, c.code, c.want)
		}
	}
}

func TestARegistrationInVainNamesWhoIsMissing(t *testing.T) {
	s := serve(t, service.Options{Providers: []string{verbs.ProviderTCP}})
	workers := joinAll(t, s, client.Config{Job: "j", Workers: 3, Provider: verbs.ProviderTCP})
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	err := workers[1].Register(ctx, model())
	if text := fmt.Sprint(err); !errors.Is(err, client.ErrTimeout) || !strings.Contains(text, "waited for worker 0 (") ||
		!strings.Contains(text, "worker 2 (") {
		t.Error(err)
	}
	// It may be tried again.
	each(t, workers, func(_ int, w *client.Worker) error { return w.Register(bounded(t), model()) })
}

func TestTensorsAreRegisteredInBatches(t *testing.T) {
	s := serve(t, service.Options{Providers: []string{verbs.ProviderTCP}})
	workers := joinAll(t, s, client.Config{Job: "j", Workers: 2, Provider: verbs.ProviderTCP})
	for batch := range 3 {
		each(t, workers, func(rank int, w *client.Worker) error {
			late := client.Tensor{Name: fmt.Sprint("late", batch), Shape: []uint64{10_000}}
			if err := w.Register(bounded(t), []client.Tensor{late}); err != nil {
				return err
			}
			x := make([]float32, 10_000)
			for k := range x {
				x[k] = float32(rank + 1)
			}
			h, err := w.PushPull(batch, client.Bytes(x), client.Bytes(x), 0)
			if err != nil {
				return err
			}
			if err := h.Wait(bounded(t)); err != nil {
				return err
			}
			if x[0] != 3 || x[9_999] != 3 {
				return fmt.Errorf("sum %v, %v", x[0], x[9_999])
			}
			return nil
		})
	}
}

func TestAHundredThousandTensorsRegister(t *testing.T) {
	s := serve(t, service.Options{Providers: []string{verbs.ProviderTCP}})
	workers := joinAll(t, s, client.Config{Job: "many", Workers: 2, Provider: verbs.ProviderTCP})
	n := 100_000
	if testing.Short() { // a detector sees the same code
		n = 10_000
	}
	tensors := make([]client.Tensor, n)
	for i := range tensors {
		tensors[i] = client.Tensor{Name: fmt.Sprintf("model.layers.%d.self_attention.weight", i), Shape: []uint64{2, 3}}
	}
	each(t, workers, func(_ int, w *client.Worker) error { return w.Register(bounded(t), tensors) })
	last := len(tensors) - 1
	each(t, workers, func(_ int, w *client.Worker) error {
		x := []float32{1, 2, 3, 4, 5, 6}
		h, err := w.PushPull(last, client.Bytes(x), client.Bytes(x), 0)
		if err != nil {
			return err
		}
		if err := h.Wait(bounded(t)); err != nil {
			return err
		}
		if x[5] != 12 {
			return fmt.Errorf("sum %v", x)
		}
		return nil
	})
}
