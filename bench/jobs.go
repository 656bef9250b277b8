package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/rackweave/rackweave/bench/models"
	"github.com/rackweave/rackweave/bench/report"
)

// floodFactor is the size of a flooding job's exchange over the others', so that its windows are always full.
const floodFactor = 16

// turns is the number of times that one job runs alone and then all side by side, so that other load takes from both.
const turns = 4

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
	if j.Flood && j.Sparse() {
		return errors.New("a flood of whole tensors beside rows of an embedding: leave one of the two out")
	}
	return j.Spec.Check()
}

// job is one of the jobs, with what it did in all the time that was measured.
type job struct {
	spec      Spec
	exchanges float64
	within    time.Duration
	times     []time.Duration
	ends      []time.Time // when rank 0 ended each exchange of the present run
}

// jobs returns all jobs: the last one at the server last, the others at server.
func (j *Jobs) jobs(server, last string) (all []*job, err error) {
	for i := range j.N {
		of := &job{spec: j.Spec}
		of.spec.Iters = maxIters // it does not end by itself
		if of.spec.Server = server; i == j.N-1 {
			of.spec.Server = last
		}
		if j.Flood && i == j.N-1 {
			if of.spec.Model, err = models.FromBytes(fmt.Sprint(floodFactor*j.Bytes()), j.DType); err != nil {
				return nil, err
			}
		}
		all = append(all, of)
	}
	return all, nil
}

// RunJobs runs by turns one job alone, all side by side, and where there is a flood, all with that at an aggregator of its own:
// what the others lose then, they lose to its use of the machine's processors, and not in the aggregator.
func (r *Runner) RunJobs(ctx context.Context, j Jobs) (res report.Jobs, err error) {
	if err := j.Check(); err != nil {
		return res, err
	}
	if err := r.together(ctx, &j.Spec); err != nil {
		return res, err
	}
	quiet := *r
	quiet.Progress, quiet.Log = nil, nil // ended jobs are expected
	server := j.Server
	var stops []func() error
	defer func() {
		for _, stop := range stops {
			err = errors.Join(err, stop())
		}
	}()
	start := func() (string, error) {
		aggregator, err := quiet.serve(ctx, &j.Spec)
		if err != nil {
			return "", err
		}
		stops = append(stops, aggregator.Stop)
		return aggregator.URL, nil
	}
	if server == "" {
		if server, err = start(); err != nil {
			return res, err
		}
		if r.Started != nil {
			r.Started(server)
		}
	}
	all, err := j.jobs(server, server)
	if err != nil {
		return res, err
	}
	var apart []*job
	measured := j.N
	if j.Flood {
		measured--
	}
	if j.Flood && j.Server == "" {
		other, err := start()
		if err != nil {
			return res, err
		}
		if apart, err = j.jobs(server, other); err != nil {
			return res, err
		}
	}
	alone := &job{spec: all[0].spec}
	for range turns {
		iters := (j.Iters + turns - 1) / turns
		for _, jobs := range [][]*job{{alone}, all, apart} {
			if err := quiet.sideBySide(ctx, jobs, min(measured, len(jobs)), iters); err != nil {
				return res, err
			}
		}
	}
	return j.report(alone, all, apart, measured), nil
}

// report puts together what the jobs got, of which so many were measured.
func (j *Jobs) report(alone *job, all, apart []*job, measured int) report.Jobs {
	res := report.Jobs{Machine: report.ThisMachine(), Provider: j.Provider, Model: j.Model.Name, Workers: j.Workers,
		Note: noteFor(j.Provider), Alone: alone.report()}
	for i, t := range all {
		job := t.report()
		if job.Floods = i >= measured; !job.Floods && apart != nil {
			job.Apart = apart[i].report().TimeUS
		}
		res.Jobs = append(res.Jobs, job)
	}
	res.Share()
	return res
}

// sideBySide runs jobs until the first few of them have made so many exchanges while all were warm, and adds what they did then.
func (r *Runner) sideBySide(ctx context.Context, jobs []*job, few, iters int) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var all sync.WaitGroup
	var mu sync.Mutex // guards what follows, and the jobs' ends
	var from, to time.Time
	var failed error
	for i, run := range jobs {
		all.Go(func() {
			_, err := r.workers(ctx, &run.spec, func() {
				mu.Lock()
				defer mu.Unlock()
				run.ends = append(run.ends, time.Now())
				if to.IsZero() {
					from, to = overlap(jobs, few, iters)
				}
				if !to.IsZero() {
					cancel()
				}
			})
			mu.Lock()
			defer mu.Unlock()
			if to.IsZero() && failed == nil {
				failed = fmt.Errorf("job %d of %d: %w", i, len(jobs), err)
				cancel()
			}
		})
	}
	all.Wait()
	for _, run := range jobs {
		run.add(run.ends, from, to)
		run.ends = nil
	}
	return failed
}

// overlap is the time from when all jobs were warm until the first few of them had made so many exchanges since; zero: not yet,
// or a job is still in an exchange that began in this time and counts in part.
func overlap(runs []*job, few, iters int) (from, to time.Time) {
	for _, run := range runs {
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
	for _, run := range runs {
		if run.ends[len(run.ends)-1].Before(to) {
			return from, time.Time{}
		}
	}
	return from, to
}

// add adds what a run of the job did in a time: an exchange that lies in it partly counts in part.
func (j *job) add(ends []time.Time, from, to time.Time) {
	j.within += to.Sub(from)
	for i := 1; i < len(ends); i++ {
		begin, end := ends[i-1], ends[i]
		took, inside := end.Sub(begin), min(end.Sub(from), to.Sub(begin), end.Sub(begin), to.Sub(from))
		if took <= 0 || inside <= 0 {
			continue
		}
		j.exchanges += float64(inside) / float64(took)
		j.times = append(j.times, took)
	}
}

func (j *job) report() report.Job {
	bytes := j.spec.Bytes()
	moved := j.exchanges * 2 * float64(bytes) * float64(j.spec.Workers)
	return report.Job{Bytes: bytes, Weight: 1, TimeUS: report.Distribution(j.times), GBs: moved / j.within.Seconds() / 1e9}
}
