package data

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/rackweave/rackweave/bench/report"
	"github.com/rackweave/rackweave/bench/study/local"
	"github.com/rackweave/rackweave/client"
	"github.com/rackweave/rackweave/client/data"
	"github.com/rackweave/rackweave/data/manifest"
)

// A real training goes through an aggregator, which deals the rows of a manifest. Workers sleep for the rest of their steps, which
// take far longer than what is computed.
const (
	realRow    = 10 * time.Millisecond // at a fast worker
	realEpochs = 2                     // the last one counts
	realFile   = "digits.npz"
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
	row                time.Duration // that a fast worker takes
	epochs             int

	*problem
	given   [workers]recorded // the batches to train with. Without, the aggregator deals them
	batches [workers]recorded
	begun   time.Time
	ends    [workers][]float64 // seconds until the first epoch began, and until the end of each
	models  [workers]softmax
}

// run trains. It returns the seconds of each epoch.
func (r *real) run(ctx context.Context, server string) (times []float64, err error) {
	c := client.Config{
		Server: server, Job: fmt.Sprintf("data-%d", time.Now().UnixNano()), Workers: workers, Policy: r.policy,
		Hyper: map[string]float64{"lr": rate, "scale": 1. / workers},
	}
	r.begun = time.Now()
	g, running := errgroup.WithContext(ctx)
	for c.Rank = range workers {
		of := c
		g.Go(func() error { return r.work(running, of) })
	}
	if err := g.Wait(); err != nil {
		return nil, fmt.Errorf("%s: %w", r.name, err)
	}
	last := 0.0
	for e := range r.epochs + 1 {
		end := 0.0
		for rank := range r.ends {
			end = max(end, r.ends[rank][e])
		}
		if e > 0 {
			times = append(times, end-last)
		}
		last = end
	}
	return times, nil
}

// work joins as a worker, and trains.
func (r *real) work(ctx context.Context, c client.Config) (err error) {
	m, ends := &r.models[c.Rank], &r.ends[c.Rank]
	w, err := local.Join(ctx, c, m[:])
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.Close()) }() // the others wait for it no more
	given := r.given[c.Rank]
	rows := source(&given)
	if given == nil {
		size := batch
		if r.policy != "" {
			size /= 2 // an asynchronous epoch ends with the batches that the slow worker holds
		}
		rows, err = w.OpenRows(ctx, data.Options{Manifest: realFile, Seed: 1, Deal: r.deal, Batch: size, Balance: r.balance, Ahead: 1})
	}
	if err == nil {
		err = w.Barrier(ctx, "begin")
	}
	if err != nil {
		return err
	}
	for *ends = append(*ends, time.Since(r.begun).Seconds()); len(*ends) <= r.epochs; {
		b, err := rows.Next(ctx)
		if err != nil {
			return err
		}
		r.batches[c.Rank] = append(r.batches[c.Rank], b)
		if b.End {
			*ends = append(*ends, time.Since(r.begun).Seconds())
		} else if err := r.step(ctx, w, rows, &b, m); err != nil {
			return err
		}
	}
	return nil
}

// step computes a batch's gradient, in the time that it has, and sends it.
func (r *real) step(ctx context.Context, w *local.Worker, rows source, b *data.Batch, m *softmax) error {
	from := time.Now()
	if err := w.Begin(ctx); err != nil {
		return err
	}
	var g softmax
	for _, row := range b.Rows {
		g.add(m, &r.train[row], float32(b.Weight)/float32(len(b.Rows)))
	}
	took := float64(r.row) * float64(len(b.Rows))
	if w.Rank() == workers-1 {
		took *= r.slow
	}
	time.Sleep(time.Duration(took) - time.Since(from))
	rows.Computed()
	if err := w.End(ctx, g[:]); err != nil {
		return err
	}
	return rows.Done()
}

// through returns a study that trains through an aggregator in several ways, and once more with the batches of one of them.
func through(row time.Duration, epochs int) func(context.Context, *plan, *Config, io.Writer) (Study, error) {
	return func(ctx context.Context, p *plan, cfg *Config, out io.Writer) (s Study, err error) {
		dir, err := os.MkdirTemp("", "rackweave-data-")
		if err != nil {
			return s, err
		}
		defer os.RemoveAll(dir)
		digits := newProblem(false)
		if err := writeManifest(filepath.Join(dir, realFile), digits); err != nil {
			return s, err
		}
		aggregator, end, err := local.Serve(ctx, dir)
		if err != nil {
			return s, err
		}
		defer func() { err = errors.Join(err, end()) }()
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
			r.problem, r.row, r.epochs = digits, row, epochs
			times, err := r.run(ctx, aggregator.URL())
			if err == nil && r.balance {
				s.Findings, err = r.again(ctx, aggregator.URL())
			}
			if err != nil {
				return s, err
			}
			loss, accuracy := r.models[0].measure(digits.test)
			s.Rows = append(s.Rows, Row{r.name, []float64{100 * accuracy}, []float64{loss}, times})
			ideal := row.Seconds() * float64(len(digits.train)) / (workers - 1 + 1/r.slow)
			last[r.name] = times[epochs-1]
			lines = append(lines, []string{r.name, fmt.Sprintf("%.2f", last[r.name]), fmt.Sprintf("%.2f", last[r.name]/ideal),
				fmt.Sprintf("%.2f", 100*accuracy)})
			bar.Add(1)
		}
		s.Findings = append(s.Findings, fmt.Sprintf("with a slow worker, asynchronous shards take %.2f of a queue's time, and shards in step "+
			"%.2f of sizes by speed", last["1:3, asynchronous, shards"]/last["1:3, asynchronous, queue"],
			last["1:3, in step, shards"]/last["1:3, in step, queue, sizes by speed"]))
		return s, table(out, lines)
	}
}

// again repeats a training with the batches that its workers had, without sleep.
func (r *real) again(ctx context.Context, server string) ([]string, error) {
	other := real{name: r.name, slow: 1, epochs: r.epochs, problem: r.problem, given: r.batches}
	if _, err := other.run(ctx, server); err != nil {
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
		if err := w.Add(int(p.train[i].Digit)); err != nil {
			return err
		}
	}
	return w.Finish(&manifest.Header{Input: "digits", How: "stratified", Start: "rotate", Seed: 1, Workers: workers, Label: "digit"},
		[]string{"0", "1", "2", "3", "4", "5", "6", "7", "8", "9"})
}
