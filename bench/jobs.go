package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/rackweave/rackweave/bench/models"
	"github.com/rackweave/rackweave/bench/report"
)

// floodFactor is how many times the others' bytes a flooding job exchanges: its windows are always full.
const floodFactor = 16

// Jobs is a benchmark of several jobs that exchange side by side at one aggregator.
type Jobs struct {
	Spec
	N     int
	Flood bool // the last job exchanges more, and as long as the others do
}

// Check completes the spec and reports what in it cannot be done.
func (j *Jobs) Check() error {
	switch {
	case j.N < 2 || j.N > 64:
		return fmt.Errorf("%d jobs side by side: use 2 to 64", j.N)
	case j.Job != "":
		return fmt.Errorf("%d jobs of the name %q: leave the name out, so that each gets its own", j.N, j.Job)
	case j.Replay || j.Verify:
		return errors.New("several jobs side by side are not replayed or verified: leave --replay and --verify out")
	}
	return j.Spec.Check()
}

// spec is what a job exchanges: it does not end by itself.
func (j *Jobs) spec(i int) (s Spec, err error) {
	s = j.Spec
	s.Iters = maxIters
	if j.Flood && i == j.N-1 {
		s.Model, err = models.FromBytes(fmt.Sprint(floodFactor*s.Bytes()), s.DType)
	}
	return s, err
}

// jobRun is one job, and when its rank 0 ended each exchange. It runs until it is ended.
type jobRun struct {
	spec Spec
	mu   sync.Mutex
	ends []time.Time
}

// RunJobs runs one job alone, then all side by side.
func (r *Runner) RunJobs(ctx context.Context, j Jobs) (res report.Jobs, err error) {
	if err := j.Check(); err != nil {
		return res, err
	}
	quiet := *r
	quiet.Progress, quiet.Log = nil, nil // that jobs are ended is no news
	server := j.Server
	if server == "" {
		var stop func() error
		if server, stop, err = quiet.serve(ctx, &j.Spec); err != nil {
			return res, err
		}
		defer func() { err = errors.Join(err, stop()) }()
	}
	if r.Started != nil {
		r.Started(server)
	}
	var runs []*jobRun
	for i := range j.N {
		s, err := j.spec(i)
		if err != nil {
			return res, err
		}
		runs = append(runs, &jobRun{spec: s})
	}
	alone := &jobRun{spec: runs[0].spec}
	from, to, err := quiet.sideBySide(ctx, []*jobRun{alone}, 1, j.Iters, server)
	if err != nil {
		return res, err
	}
	res = report.Jobs{Machine: report.ThisMachine(), Provider: j.Provider, Model: j.Model.Name, Workers: j.Workers,
		Note: noteFor(j.Provider), Alone: alone.measure(from, to)}
	measured := j.N
	if j.Flood {
		measured--
	}
	if from, to, err = quiet.sideBySide(ctx, runs, measured, j.Iters, server); err != nil {
		return res, err
	}
	for i, run := range runs {
		job := run.measure(from, to)
		job.Floods = i >= measured
		res.Jobs = append(res.Jobs, job)
	}
	res.Share()
	return res, nil
}

// sideBySide runs jobs until the first few of them have made so many exchanges while all were warm. It returns when that was.
func (r *Runner) sideBySide(ctx context.Context, runs []*jobRun, few, iters int, server string) (from, to time.Time, err error) {
	ctx, cancel := context.WithCancel(ctx)
	var all sync.WaitGroup
	ended := make(chan error, len(runs))
	stepped := make(chan struct{}, 1)
	for i, run := range runs {
		all.Go(func() {
			_, err := r.workers(ctx, &run.spec, server, make([]*os.File, run.spec.Workers), func() {
				run.mu.Lock()
				run.ends = append(run.ends, time.Now())
				run.mu.Unlock()
				select {
				case stepped <- struct{}{}:
				default:
				}
			})
			ended <- fmt.Errorf("job %d of %d: %w", i, len(runs), err)
		})
	}
	for err == nil {
		select {
		case <-stepped:
			if from, to = overlap(runs, few, iters); !to.IsZero() {
				cancel()
				all.Wait()
				return from, to, nil
			}
		case err = <-ended:
		}
	}
	cancel()
	all.Wait()
	return from, to, err
}

// overlap is the time from when all jobs were warm until the first few of them had made so many exchanges since; zero: not yet.
func overlap(runs []*jobRun, few, iters int) (from, to time.Time) {
	for _, run := range runs {
		run.mu.Lock()
		defer run.mu.Unlock()
		warm := max(run.spec.Warmup, 1)
		if len(run.ends) < warm {
			return from, to
		}
		if begin := run.ends[warm-1]; begin.After(from) {
			from = begin
		}
	}
	for _, run := range runs[:few] {
		first, _ := slices.BinarySearchFunc(run.ends, from, func(a, b time.Time) int { return a.Compare(b) })
		if len(run.ends) <= first+iters {
			return from, time.Time{}
		}
		if end := run.ends[first+iters]; end.After(to) {
			to = end
		}
	}
	return from, to
}

// measure returns what a job did in a time: an exchange that lies in it partly counts in part.
func (run *jobRun) measure(from, to time.Time) report.Job {
	n, times := 0.0, report.NewHistogram()
	for i := 1; i < len(run.ends); i++ {
		begin, end := run.ends[i-1], run.ends[i]
		took, inside := end.Sub(begin), min(end.Sub(from), to.Sub(begin), end.Sub(begin), to.Sub(from))
		if took <= 0 || inside <= 0 {
			continue
		}
		n += float64(inside) / float64(took)
		times.Record(took)
	}
	bytes := run.spec.Bytes()
	moved := n * 2 * float64(bytes) * float64(run.spec.Workers)
	return report.Job{Bytes: bytes, Weight: 1, TimeUS: times.Summary(), GBs: moved / to.Sub(from).Seconds() / 1e9}
}
