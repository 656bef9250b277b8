package learn

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/rackweave/rackweave/bench/report"
	"github.com/rackweave/rackweave/bench/study/local"
	"github.com/rackweave/rackweave/client"
)

// A real training goes through an aggregator. Workers sleep for the rest of their steps, which take far longer than what is
// computed.
const (
	realStep  = 20 * time.Millisecond // of length 1
	realSteps = 150                   // of the fastest worker, in the study
)

// realWorker is one worker of a real training.
type realWorker struct {
	rank   int
	params *network
	taken  []int64       // by step: until its gradient was computed, and what it takes to send, in virtual time
	took   time.Duration // all
}

// runReal trains through an aggregator. taken has the time of every step, by worker, as a simulation takes it.
func runReal(ctx context.Context, server string, setting Setting) (o Outcome, taken [][]int64, err error) {
	n := len(setting.Cluster.Steps)
	job := fmt.Sprintf("learn-%d", time.Now().UnixNano())
	workers := make([]*realWorker, n)
	g, running := errgroup.WithContext(ctx)
	for rank := range workers {
		workers[rank] = &realWorker{rank: rank}
		g.Go(func() error { return workers[rank].train(running, server, job, &setting) })
	}
	if err := g.Wait(); err != nil {
		return o, nil, err
	}
	for _, w := range workers {
		o.Pushes += uint64(len(w.taken))
		o.Time = max(o.Time, float64(w.took)/float64(realStep))
		taken = append(taken, w.taken)
	}
	_, test := split(setting.Fold)
	o.Loss, o.Accuracy = workers[0].params.test(test)
	return o, taken, nil
}

// train joins, takes rank 0's parameters, and makes steps until the time is over.
func (w *realWorker) train(ctx context.Context, server, job string, s *Setting) (err error) {
	n := len(s.Cluster.Steps)
	w.params = newNetwork(rand.New(rand.NewPCG(s.Seed, 1)))
	joined, err := local.Join(ctx, client.Config{
		Server: server, Job: job, Rank: w.rank, Workers: n, Policy: s.Policy.String(),
		Hyper: map[string]float64{"lr": s.LR, "momentum": s.Momentum, "scale": 1 / float64(n)},
	}, w.params[:])
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, joined.Close()) }() // the others wait for it no more
	if err := joined.Barrier(ctx, "begin"); err != nil {
		return err
	}
	times, images := rand.New(rand.NewPCG(s.Seed, uint64(w.rank)+3)), rand.New(rand.NewPCG(s.Seed, uint64(w.rank)+100))
	train, _ := split(s.Fold)
	var g network
	batch := make([]*image, s.Batch/n)
	for begun := time.Now(); w.took < time.Duration(s.Steps)*realStep; w.took = time.Since(begun) {
		from := time.Now()
		if err := joined.Begin(ctx); err != nil {
			return err
		}
		for i := range batch {
			batch[i] = &train[images.IntN(len(train))]
		}
		w.params.gradient(&g, batch)
		time.Sleep(time.Duration(s.Cluster.stepTime(w.rank, times))*realStep/unit - time.Since(from))
		computed := time.Now()
		if err := joined.End(ctx, g[:]); err != nil {
			return err
		}
		w.taken = append(w.taken, int64(computed.Sub(from))*unit/int64(realStep)+wire)
	}
	return nil
}

// runReal runs every variant on every cluster once, one after another, beside its simulation.
func (p *plan) runReal(ctx context.Context, cfg *Config) (err error) {
	variants, err := p.variants()
	if err != nil {
		return err
	}
	bar := report.NewProgress(cfg.Log, p.name, len(p.clusters)*len(variants))
	s, end, err := local.Serve(ctx, "")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, end()) }()
	for _, c := range p.clusters {
		var bsp Outcome
		var inStep float64 // BSP's rate of pushes in the simulation
		for i, setting := range variants {
			setting.Cluster, setting.Seed = c, 1
			o, taken, err := runReal(ctx, s.URL(), setting)
			if err != nil {
				return fmt.Errorf("%v on %v: %w", setting.Policy, c, err)
			}
			setting.Blind, setting.Taken = float64(setting.Steps), taken
			simulated, err := Run(ctx, setting)
			if err != nil {
				return err
			}
			rate := float64(simulated.Pushes) / simulated.Time
			if i == 0 {
				bsp, inStep = o, rate
			}
			row := summarise(setting, []Outcome{o}, []Outcome{bsp})
			row.Predicted = rate / inStep
			p.rows = append(p.rows, row)
			bar.Add(1)
		}
	}
	return nil
}
