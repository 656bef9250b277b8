package data

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"time"

	"github.com/rackweave/rackweave/bench/study"
	"github.com/rackweave/rackweave/bench/study/local"
	"github.com/rackweave/rackweave/bench/study/task"
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

// real is a training through an aggregator.
type real struct {
	name, deal, policy string // without a policy, workers are in step
	slow               float64
	balance            bool

	*problem
	row     time.Duration // that a fast worker takes
	epochs  int
	given   [workers][]data.Batch // to train with. Without, the aggregator deals them
	batches [workers][]data.Batch
	ends    [workers][]time.Time // when the first epoch began, and the end of each
	spent   [workers]struct {    // on the last epoch
		rows    int
		seconds float64
	}
	models [][]float32
}

// train trains, and trains once more with the same batches where they follow the workers' speeds.
func (r real) train(ctx context.Context, _ int) (o study.Outcome, err error) {
	if err := r.run(ctx); err != nil {
		return o, err
	}
	var last [2]time.Time // the end of the last epoch, and of the one before
	for _, ends := range r.ends {
		for i := range last {
			if at := ends[r.epochs-i]; at.After(last[i]) {
				last[i] = at
			}
		}
	}
	speed := 0.0 // rows a second of all workers
	for _, s := range r.spent {
		speed += float64(s.rows) / max(s.seconds, 1e-9)
	}
	took := last[0].Sub(last[1])
	o.Time = float64(took) / float64(r.row) / condition{slow: r.slow}.least(r.problem)
	o.Paced = took.Seconds() * speed / float64(len(r.problem.train))
	if o.Loss, o.Accuracy = r.task(0).Test(r.models[0]); r.balance {
		again := real{slow: 1, epochs: r.epochs, problem: r.problem, given: r.batches}
		if err := again.run(ctx); err != nil {
			return o, err
		}
		if !reflect.DeepEqual(again.models, r.models) {
			return o, errors.New("the same batches make another model")
		}
		o.Note = "the same batches make the same model, to the bit"
	}
	return o, nil
}

// run trains through an aggregator.
func (r *real) run(ctx context.Context) error {
	dir, err := os.MkdirTemp("", "rackweave-data-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := writeManifest(filepath.Join(dir, realFile), r.problem); err != nil {
		return err
	}
	c := client.Config{Workers: workers, Policy: r.policy, Hyper: map[string]float64{"lr": rate, "scale": 1. / workers}}
	r.models, err = local.Train(ctx, c, dir, r.task(0).Fresh(nil), r.work)
	return err
}

// work trains as a worker.
func (r *real) work(ctx context.Context, w *local.Worker) error {
	rank := w.Rank()
	given, own, ends, slow := r.given[rank], r.task(0), &r.ends[rank], 1.0
	if rank == workers-1 {
		slow = r.slow
	}
	next := func(context.Context) (b data.Batch, err error) {
		b, given = given[0], given[1:]
		return b, nil
	}
	computed, done := func() {}, func() error { return nil }
	if given == nil {
		size := batch
		if r.policy != "" {
			size /= 2 // an asynchronous epoch ends with the batches that the slow worker holds
		}
		rows, err := w.OpenRows(ctx, data.Options{Manifest: realFile, Seed: 1, Deal: r.deal, Batch: size, Balance: r.balance, Ahead: 1})
		if err != nil {
			return err
		}
		next, computed, done = rows.Next, rows.Computed, rows.Done
	}
	if err := w.Barrier(ctx, "begin"); err != nil {
		return err
	}
	for *ends = append(*ends, time.Now()); len(*ends) <= r.epochs; {
		b, err := next(ctx)
		if err != nil {
			return err
		}
		if r.batches[rank] = append(r.batches[rank], b); b.End {
			*ends = append(*ends, time.Now())
			continue
		}
		from, takes := time.Now(), time.Duration(float64(r.row)*slow*float64(len(b.Rows)))
		err = w.Step(ctx, takes, func(g []float32) { weighted(own, w.Params, g, &b) }, func() {
			if computed(); len(*ends) == r.epochs {
				s := &r.spent[rank]
				s.rows, s.seconds = s.rows+len(b.Rows), s.seconds+time.Since(from).Seconds()
			}
		})
		if err == nil {
			err = done()
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// weighted sets g to the gradient of a batch.
func weighted(t task.Task, params, g []float32, b *data.Batch) {
	rows := make([]int, len(b.Rows))
	for i, row := range b.Rows {
		rows[i] = int(row)
	}
	t.Gradient(params, g, rows)
	for i := range g {
		g[i] *= float32(b.Weight)
	}
}

// through returns a study that trains through an aggregator in several ways.
func through(row time.Duration, epochs int) study.Plan {
	p := timed("real", fmt.Sprintf("by the clock, through an aggregator that deals the rows of a manifest; workers sleep %v a row", row))
	p.Alone, p.Runs = true, func(int) int { return 1 }
	p.Columns = append(p.Columns, of("over the least at the speeds that sleeps had", "%.2f",
		func(o *study.Outcome) float64 { return o.Paced }, study.Values.Mean))
	p.Rows = func(context.Context, *study.Config) (rows []study.Row, err error) {
		digits := newProblem(false)
		for _, r := range []real{
			{name: "1:1, in step, shards", deal: "shards", slow: 1},
			{name: "1:3, in step, shards", deal: "shards", slow: 3},
			{name: "1:3, in step, queue", deal: "queue", slow: 3},
			{name: "1:3, in step, queue, sizes by speed", deal: "queue", slow: 3, balance: true},
			{name: "1:3, asynchronous, shards", deal: "shards", policy: "asp", slow: 3},
			{name: "1:3, asynchronous, queue", deal: "queue", policy: "asp", slow: 3},
		} {
			r.problem, r.row, r.epochs = digits, row, epochs
			rows = append(rows, study.Row{Way: r.name, Train: r.train})
		}
		return rows, nil
	}
	p.Tell = func(s *study.Study) {
		time := func(way string) float64 { return s.Row("", "1:3, "+way).Of(study.Time).Mean() }
		s.Find("with a slow worker, asynchronous shards take %.2f of a queue's time, and shards in step %.2f of sizes by speed",
			time("asynchronous, shards")/time("asynchronous, queue"), time("in step, shards")/time("in step, queue, sizes by speed"))
	}
	return p
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
