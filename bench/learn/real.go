package learn

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/rackweave/rackweave/client"
	"github.com/rackweave/rackweave/policy"
	"github.com/rackweave/rackweave/service"
)

// A real training goes through an aggregator over shared memory. Workers sleep for the rest of their steps, which take far longer
// than what is computed.
const (
	realStep    = 20 * time.Millisecond // of length 1
	realSteps   = 150                   // of the fastest worker, in the study
	realTimeout = 20 * time.Second
)

// realWorker is one worker of a real training.
type realWorker struct {
	*client.Worker
	rank   int
	params *network
	pushes int
	waited time.Duration // from gradients to the next steps
	took   time.Duration // all
}

// runReal trains through an aggregator.
func runReal(ctx context.Context, s *service.Service, setting Setting) (Outcome, error) {
	n := len(setting.Cluster.Steps)
	job := fmt.Sprintf("learn-%d", time.Now().UnixNano())
	workers := make([]*realWorker, n)
	errs := make([]error, n)
	var all sync.WaitGroup
	for rank := range workers {
		workers[rank] = &realWorker{rank: rank}
		all.Go(func() { errs[rank] = workers[rank].train(ctx, s.URL(), job, &setting) })
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		return Outcome{}, err
	}
	var o Outcome
	for _, w := range workers {
		o.Pushes += uint64(w.pushes)
	}
	for _, w := range workers {
		o.Time = max(o.Time, float64(w.took)/float64(realStep))
		o.Held += float64(w.waited) / float64(w.took) / float64(n)
		o.Shares = append(o.Shares, float64(w.pushes)/float64(o.Pushes))
	}
	_, test := split(setting.Fold)
	o.Loss, o.Accuracy = workers[0].params.test(test)
	return o, nil
}

// train joins, takes rank 0's parameters, and makes steps until the time is over.
func (w *realWorker) train(ctx context.Context, server, job string, s *Setting) (err error) {
	n := len(s.Cluster.Steps)
	cfg := client.Config{
		Server: server, Job: job, Rank: w.rank, Workers: n, Optimizer: "sgd_torch", Provider: "shm", Timeout: realTimeout,
		Hyper: map[string]float64{"lr": s.LR, "momentum": s.Momentum, "scale": 1 / float64(n)},
	}
	stream := s.Policy.Stream()
	if stream {
		cfg.Policy = s.Policy.String()
	}
	if w.Worker, err = client.Join(ctx, cfg); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.Close()) }()
	if err := w.Register(ctx, []client.Tensor{{Name: "network", Shape: []uint64{parameters}}}); err != nil {
		return err
	}
	w.params = newNetwork(rand.New(rand.NewPCG(s.Seed, 1)))
	h, err := w.Broadcast(0, client.Bytes(w.params[:]))
	if err == nil {
		err = errors.Join(h.Wait(ctx), w.Barrier(ctx, "begin"))
	}
	if err != nil {
		return err
	}
	// The synchronous end together, after as many steps as the slowest can take.
	begun := time.Now()
	last := max(1, int(float64(s.Steps)/slices.Max(s.Cluster.Steps)))
	over := func() bool {
		if stream {
			return time.Since(begun) >= time.Duration(s.Steps)*realStep
		}
		return w.pushes >= last
	}
	times, images := rand.New(rand.NewPCG(s.Seed, uint64(w.rank)+3)), rand.New(rand.NewPCG(s.Seed, uint64(w.rank)+100))
	train, _ := split(s.Fold)
	var g network
	batch := make([]*image, s.Batch/n)
	for !over() {
		until := time.Now().Add(time.Duration(s.Cluster.stepTime(w.rank, times)) * realStep / unit)
		for i := range batch {
			batch[i] = &train[images.IntN(len(train))]
		}
		w.params.gradient(&g, batch)
		time.Sleep(time.Until(until))
		computed := time.Now()
		if err := w.step(ctx, &g, stream); err != nil {
			return err
		}
		w.waited += time.Since(computed)
		w.pushes++
	}
	w.took = time.Since(begun)
	return nil
}

// step pushes a gradient, and returns with the parameters of the next step.
func (w *realWorker) step(ctx context.Context, g *network, stream bool) error {
	h, err := w.PushPull(0, client.Bytes(g[:]), client.Bytes(w.params[:]), 0)
	if err == nil {
		err = h.Wait(ctx)
	}
	if err != nil || !stream {
		return err
	}
	end, err := w.EndStep(ctx)
	if err != nil || !end.Pull {
		return err
	}
	if h, err = w.Pull(0, client.Bytes(w.params[:]), 0); err != nil {
		return err
	}
	return h.Wait(ctx)
}

// runRealStudy runs every policy on every cluster once, one after another, beside its simulation.
func (p *plan) runReal(ctx context.Context, cfg *Config) (err error) {
	specs := append([]policy.Spec{{}}, p.policies...)
	var rows []Setting
	for _, c := range p.clusters {
		for _, spec := range specs {
			s := p.base
			s.Cluster, s.Policy, s.Seed = c, spec, 1
			rows = append(rows, s)
		}
	}
	bar := cfg.bar(p.Name, len(rows))
	defer bar.Close()
	s, err := service.New(service.Options{
		Listen: "127.0.0.1:0", Providers: []string{"shm"}, Unpinned: true, Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
	})
	if err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx) }()
	defer func() { err = errors.Join(err, s.Close(), <-ended) }()
	var bsp Outcome
	for _, setting := range rows {
		o, err := runReal(ctx, s, setting)
		if err != nil {
			return fmt.Errorf("%v on %v: %w", setting.Policy, setting.Cluster, err)
		}
		if setting.Policy == (policy.Spec{}) {
			bsp = o
		}
		row := summarise(setting, []Outcome{o}, []Outcome{bsp})
		if row.Predicted, err = simulatedRate(ctx, setting); err != nil {
			return err
		}
		p.Rows = append(p.Rows, row)
		bar.Add(1)
	}
	p.tell(&p.Study)
	return nil
}

// simulatedRate is the rate of pushes over BSP's that the simulation gives.
func simulatedRate(ctx context.Context, s Setting) (float64, error) {
	s.Blind = float64(s.Steps)
	o, err := Run(ctx, s)
	if err != nil {
		return 0, err
	}
	s.Policy = policy.Spec{}
	bsp, err := Run(ctx, s)
	return float64(o.Pushes) / o.Time * bsp.Time / float64(bsp.Pushes), err
}
