package data

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/rackweave/rackweave/bench/report"
	"github.com/rackweave/rackweave/client"
	"github.com/rackweave/rackweave/client/data"
	"github.com/rackweave/rackweave/data/manifest"
	"github.com/rackweave/rackweave/service"
)

// A real training goes through an aggregator over shared memory, which deals the rows of a manifest. Workers sleep for the rest of
// their steps, which take far longer than what is computed.
const (
	realRow     = 10 * time.Millisecond // at a fast worker
	realEpochs  = 2                     // of which the last one counts
	realTimeout = 30 * time.Second
	realFile    = "digits.npz"
)

// source is a [data.Rows], or the batches of an earlier training.
type source interface {
	Next(context.Context) (data.Batch, error)
	Computed()
	Done() error
}

// recorded are a worker's batches of an earlier training.
type recorded []data.Batch

func (r *recorded) Next(context.Context) (b data.Batch, err error) {
	b, *r = (*r)[0], (*r)[1:]
	return b, nil
}
func (r *recorded) Computed()   {}
func (r *recorded) Done() error { return nil }

// real is a training through an aggregator.
type real struct {
	name, deal, policy string // without a policy, workers are in step
	slow               float64
	balance            bool
	batch              int
	row                time.Duration // that a fast worker takes
	epochs             int

	*problem
	batches [workers][]data.Batch // that each worker had
	ends    [workers][]time.Time  // of the epochs
	models  [workers]softmax
	replay  bool // of batches
}

// run trains. Its times are those of the epochs.
func (r *real) run(ctx context.Context, s *service.Service) (times []float64, err error) {
	job := fmt.Sprintf("data-%d", time.Now().UnixNano())
	g, running := errgroup.WithContext(ctx)
	for rank := range workers {
		g.Go(func() error { return r.work(running, s.URL(), job, rank) })
	}
	if err := g.Wait(); err != nil {
		return nil, fmt.Errorf("%s: %w", r.name, err)
	}
	var last time.Time
	for e := range r.epochs + 1 {
		var end time.Time
		for rank := range r.ends {
			if at := r.ends[rank][e]; at.After(end) {
				end = at
			}
		}
		if e > 0 {
			times = append(times, end.Sub(last).Seconds())
		}
		last = end
	}
	return times, nil
}

// work joins as a worker, and trains.
func (r *real) work(ctx context.Context, server, job string, rank int) (err error) {
	mode, m := "eager", &r.models[rank]
	if r.policy != "" {
		mode = "stream"
	}
	w, err := client.Join(ctx, client.Config{
		Server: server, Job: job, Rank: rank, Workers: workers, Mode: mode, Policy: r.policy, Optimizer: "sgd_torch", Provider: "shm",
		Timeout: realTimeout, Hyper: map[string]float64{"lr": rate, "scale": 1. / workers},
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.Close()) }() // the others wait for it no more
	if err := w.Register(ctx, []client.Tensor{{Name: "softmax", Shape: []uint64{uint64(len(m))}}}); err != nil {
		return err
	}
	clear(m[:])
	h, err := w.Broadcast(0, client.Bytes(m[:]))
	if err == nil {
		err = h.Wait(ctx)
	}
	if err != nil {
		return err
	}
	var rows source = (*recorded)(&r.batches[rank])
	if r.batches[rank] = slices.Clone(r.batches[rank]); !r.replay {
		r.batches[rank] = nil
		rows, err = w.OpenRows(ctx, data.Options{Manifest: realFile, Seed: 1, Deal: r.deal, Batch: r.batch, Balance: r.balance, Ahead: 1})
	}
	if err = errors.Join(err, w.Barrier(ctx, "begin")); err != nil {
		return err
	}
	r.ends[rank] = []time.Time{time.Now()}
	for pull := false; len(r.ends[rank]) <= r.epochs; {
		b, err := rows.Next(ctx)
		if !r.replay {
			r.batches[rank] = append(r.batches[rank], b)
		}
		if err == nil && b.End {
			r.ends[rank] = append(r.ends[rank], time.Now())
			continue
		}
		if err == nil {
			pull, err = r.exchange(ctx, w, rank, rows, &b, pull)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// exchange computes a batch's gradient, in the time that it has, and sends it.
func (r *real) exchange(ctx context.Context, w *client.Worker, rank int, rows source, b *data.Batch, pull bool) (bool, error) {
	from, m := time.Now(), &r.models[rank]
	wait := func(h client.Handle, err error) error {
		if err == nil {
			err = h.Wait(ctx)
		}
		return err
	}
	if pull {
		if err := wait(w.Pull(0, client.Bytes(m[:]), 0)); err != nil {
			return false, err
		}
	}
	var g softmax
	for _, row := range b.Rows {
		g.add(m, &r.train[row], float32(b.Weight)/float32(len(b.Rows)))
	}
	took := float64(r.row) * float64(len(b.Rows))
	if rank == workers-1 {
		took *= r.slow
	}
	time.Sleep(time.Duration(took) - time.Since(from))
	rows.Computed()
	if err := wait(w.PushPull(0, client.Bytes(g[:]), client.Bytes(m[:]), 0)); err != nil {
		return false, err
	}
	pull = false
	if r.policy != "" {
		end, err := w.EndStep(ctx)
		if err != nil {
			return false, err
		}
		pull = end.Pull
	}
	return pull, rows.Done()
}

// through trains through an aggregator in several ways, and once more with the same batches.
func through(ctx context.Context, p *plan, cfg *Config, out io.Writer) (s Study, err error) {
	return throughAt(ctx, p, cfg, out, realRow, realEpochs)
}

func throughAt(ctx context.Context, p *plan, cfg *Config, out io.Writer, row time.Duration, epochs int) (s Study, err error) {
	dir, err := os.MkdirTemp("", "rackweave-data-")
	if err != nil {
		return s, err
	}
	defer os.RemoveAll(dir)
	digits := newProblem(false)
	if err := writeManifest(filepath.Join(dir, realFile), digits); err != nil {
		return s, err
	}
	aggregator, err := service.New(service.Options{
		Listen: "127.0.0.1:0", Providers: []string{"shm"}, Unpinned: true, DataDir: dir, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return s, err
	}
	ended := make(chan error, 1)
	go func() { ended <- aggregator.Serve(ctx) }()
	defer func() { err = errors.Join(err, aggregator.Close(), <-ended) }()
	runs := []real{
		{name: "1:1, in step, shards", deal: "shards", slow: 1},
		{name: "1:3, in step, shards", deal: "shards", slow: 3},
		{name: "1:3, in step, queue", deal: "queue", slow: 3},
		{name: "1:3, in step, queue, sizes by speed", deal: "queue", slow: 3, balance: true},
		{name: "1:3, asynchronous, shards", deal: "shards", policy: "asp", slow: 3},
		{name: "1:3, asynchronous, queue", deal: "queue", policy: "asp", slow: 3},
	}
	s = Study{Name: p.name, Title: p.title}
	bar := report.NewProgress(cfg.Log, p.name, len(runs))
	lines, last := [][]string{{"workers, training, way", "s of an epoch", "over ideal", "accuracy %"}}, map[string]float64{}
	for i := range runs {
		r := &runs[i]
		r.problem, r.row, r.epochs, r.batch = digits, row, epochs, batch
		if r.policy != "" {
			r.batch /= 2 // an asynchronous epoch ends with the batches that the slow worker holds
		}
		times, err := r.run(ctx, aggregator)
		if err != nil {
			return s, err
		}
		if r.balance {
			s.Findings, err = again(ctx, aggregator, r)
			if err != nil {
				return s, err
			}
		}
		loss, accuracy := r.models[0].measure(digits.test)
		s.Rows = append(s.Rows, Row{r.name, []float64{100 * accuracy}, []float64{loss}, times})
		ideal := row.Seconds() * float64(len(digits.train)) / (workers - 1 + 1/r.slow)
		last[r.name] = times[len(times)-1]
		lines = append(lines, []string{r.name, fmt.Sprintf("%.2f", last[r.name]), fmt.Sprintf("%.2f", last[r.name]/ideal),
			fmt.Sprintf("%.2f", 100*accuracy)})
		bar.Add(1)
	}
	s.Findings = append(s.Findings, fmt.Sprintf("with a slow worker, shards take %.2f of the queue's time, asynchronous; in step, %.2f of that "+
		"of sizes by speed", last["1:3, asynchronous, shards"]/last["1:3, asynchronous, queue"],
		last["1:3, in step, shards"]/last["1:3, in step, queue, sizes by speed"]))
	return s, table(out, lines)
}

// again repeats a training with the batches that its workers had, without a service or sleep.
func again(ctx context.Context, s *service.Service, r *real) ([]string, error) {
	other := *r
	other.replay, other.row = true, 0
	if _, err := other.run(ctx, s); err != nil {
		return nil, err
	}
	if other.models != r.models {
		return nil, fmt.Errorf("%s: the same batches make another model", r.name)
	}
	return []string{fmt.Sprintf("%s: the same batches make the same model, to the bit", r.name)}, nil
}

// writeManifest divides a problem by class.
func writeManifest(path string, p *problem) (err error) {
	w, err := manifest.NewWriter(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.Close()) }()
	for i := range p.train {
		if err := w.Add(p.train[i].digit); err != nil {
			return err
		}
	}
	return w.Finish(&manifest.Header{Input: "digits", How: "stratified", Start: "rotate", Seed: 1, Workers: workers, Label: "digit"},
		[]string{"0", "1", "2", "3", "4", "5", "6", "7", "8", "9"})
}
