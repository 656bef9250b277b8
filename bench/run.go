package bench

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rackweave/rackweave/bench/report"
	"github.com/rackweave/rackweave/client"
	"github.com/rackweave/rackweave/launch"
	"github.com/rackweave/rackweave/numa"
	"github.com/rackweave/rackweave/verbs"
)

// Runner starts the processes of a benchmark.
type Runner struct {
	// Worker is the command of a worker process, which runs WorkerMain. Serve is the command of an aggregator; see
	// [launch.StartAggregator].
	Worker, Serve []string
	// Enter, if not nil, returns a command that runs a worker's command elsewhere, such as in a network namespace.
	Enter func(rank int) []string
	Log   io.Writer // the aggregator's log. If nil, it is discarded
	// Progress shows the progress. It may be nil.
	Progress io.Writer
	// Started, if not nil, is told the URL of an aggregator that the runner started.
	Started func(url string)
	// Silence is the time after a worker's end in which others must report a step. If 0, it is two minutes.
	Silence time.Duration
}

// How workers end that do not end by themselves: the aggregator has failGrace to notify them of another's failure, and they have
// endWithin to leave when they are told to end.
const (
	failGrace = 2 * time.Second
	endWithin = time.Second
)

// reachWithin bounds an aggregator's answer to the question which it is.
const reachWithin = 10 * time.Second

// serve starts an aggregator.
func (r *Runner) serve(ctx context.Context, s *Spec) (*launch.Server, error) {
	argv := append(slices.Clone(r.Serve), "--listen", "127.0.0.1:0", "--until-eof")
	if s.Provider != "auto" {
		argv = append(argv, "--providers", s.Provider)
	}
	if s.ProviderOptions != "" {
		argv = append(argv, "--provider-options", s.Provider+":"+s.ProviderOptions)
	}
	if len(s.NICs) > 0 {
		argv = append(argv, "--nics", strings.Join(s.NICs, ","))
	}
	return launch.StartAggregator(ctx, argv, r.Log)
}

// together reports why the workers of several aggregators cannot be of one job. Those of no cluster would wait for each other until
// their time is up.
func (r *Runner) together(ctx context.Context, s *Spec) error {
	servers := strings.Split(s.Server, ",")
	if s.Spread || len(servers) < 2 || r.Enter != nil { // elsewhere the aggregators may have other addresses
		return nil
	}
	for _, url := range servers {
		is, err := client.OfCluster(ctx, client.Config{Server: url, CA: s.CA, Timeout: reachWithin})
		if err == nil && !is { // one that does not answer the workers will name
			return fmt.Errorf("the aggregator at %s is of no cluster, and %d are named: give --spread to spread the model over all, or start them with --cluster",
				url, len(servers))
		}
	}
	return nil
}

// Run runs the benchmark.
func (r *Runner) Run(ctx context.Context, s Spec) (res report.Result, err error) {
	if err := s.Check(); err != nil {
		return res, err
	}
	if err := r.together(ctx, &s); err != nil {
		return res, err
	}
	given := s.Server
	if given == "" {
		aggregator, failed := r.serve(ctx, &s)
		if failed != nil {
			return res, failed
		}
		defer func() { err = errors.Join(err, aggregator.Stop()) }()
		s.Server = aggregator.URL
		if r.Started != nil {
			r.Started(s.Server)
		}
	}
	reports, err := r.workers(ctx, &s, nil)
	if err != nil {
		return res, err
	}
	res = summarise(&s, reports)
	res.Server = given
	if s.Verify {
		if err := s.take(&reports[0]); err != nil {
			return res, err
		}
		for _, r := range reports {
			s.recodes = append(s.recodes, r.Recodes)
		}
		if err := r.verify(ctx, &s, reports, &res); err != nil {
			return res, err
		}
	}
	return res, nil
}

// rackOf returns the rack of a worker if all racks have as many workers. In other racks the aggregator sends the worker on.
func rackOf(rank, workers, racks int) (rack int) {
	for rank >= workers*(rack+1)/racks {
		rack++
	}
	return rack
}

// workers runs all workers to their end. The first that fails ends the others. stepped, if not nil, is told of each exchange that
// rank 0 has ended.
func (r *Runner) workers(ctx context.Context, s *Spec, stepped func()) ([]workerReport, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	job := cmp.Or(s.Job, "bench-"+strings.ToLower(rand.Text()[:12]))
	bar := report.NewProgress(r.Progress, "exchange", s.Steps())
	reports := make([]workerReport, s.Workers)
	errs := make([]error, s.Workers)
	// A policy lets workers end without one that is stopped.
	within := cmp.Or(r.Silence, 2*time.Minute)
	silence := time.AfterFunc(math.MaxInt64, func() { cancel(fmt.Errorf("%w for %v", errSilent, within)) })
	defer silence.Stop()
	var ended atomic.Bool
	var wg sync.WaitGroup
	for rank := range s.Workers {
		o := &order{Spec: *s, Rank: rank}
		o.Spec.Job = job
		if !s.Spread {
			servers := strings.Split(s.Server, ",") // of the racks, in their order
			o.Spec.Server = servers[rackOf(rank, s.Workers, len(servers))]
		}
		say := func(rep workerReport) error {
			if rep.Done {
				reports[rank] = rep
				ended.Store(true)
			} else if rank == 0 {
				bar.Add(1)
				if stepped != nil {
					stepped()
				}
			}
			if ended.Load() {
				silence.Reset(within)
			}
			return nil
		}
		wg.Go(func() {
			errs[rank] = r.workerProcess(ctx, o, say)
			if errs[rank] == nil && !reports[rank].Done {
				errs[rank] = errors.New("ended without a report")
			}
			switch err := errs[rank]; {
			case err == nil:
			case errors.Is(context.Cause(ctx), errOther):
				errs[rank] = errOther
			case errors.Is(context.Cause(ctx), errSilent):
				errs[rank] = context.Cause(ctx)
			default:
				time.AfterFunc(failGrace, func() { cancel(fmt.Errorf("%w: worker %d: %w", errOther, rank, err)) })
			}
		})
	}
	wg.Wait()
	return reports, workerErrors(errs)
}

// These are the reasons for which workers are ended.
var (
	errOther  = errors.New("ended because another worker failed")
	errSilent = errors.New("reported no step after another worker's end")
)

// workerErrors joins the workers' errors, each text once with its ranks, those of workers that another's failure ended last.
func workerErrors(errs []error) error {
	ranks := map[string][]string{} // by text
	var all []error                // of each text the first
	for rank, err := range errs {
		if err == nil {
			continue
		}
		text := err.Error()
		if ranks[text] == nil {
			all = append(all, err)
		}
		ranks[text] = append(ranks[text], strconv.Itoa(rank))
	}
	if i := slices.Index(all, errOther); i >= 0 {
		all = append(slices.Delete(all, i, i+1), errOther)
	}
	for i, err := range all {
		name, of := "worker", ranks[err.Error()]
		if len(of) > 1 {
			name = "workers"
		}
		all[i] = fmt.Errorf("%s %s: %w", name, strings.Join(of, ", "), err)
	}
	return errors.Join(all...)
}

func (r *Runner) workerProcess(ctx context.Context, o *order, say func(workerReport) error) error {
	errs := &launch.Tail{}
	argv := r.Worker
	if r.Enter != nil {
		argv = append(r.Enter(o.Rank), argv...)
	}
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Stderr, cmd.WaitDelay = errs, endWithin
	orders, err := cmd.StdinPipe() // stays open: its end tells the worker that this process has ended
	if err != nil {
		return err
	}
	cmd.Cancel = func() error {
		go json.NewEncoder(orders).Encode(ending{context.Cause(ctx).Error()}) // a worker that is stopped reads nothing
		return nil
	}
	cmd.Stdout = &launch.Lines{Line: func(line []byte) error {
		var rep workerReport
		if err := json.Unmarshal(line, &rep); err != nil {
			return fmt.Errorf("read the worker's report %q: %w", line, err)
		}
		return say(rep)
	}}
	p, err := launch.Start(cmd)
	if err != nil {
		return err
	}
	// A worker that does not take its orders reports why itself.
	_ = json.NewEncoder(orders).Encode(o)
	return errs.Error(p.Wait())
}

func summarise(s *Spec, reports []workerReport) report.Result {
	res := report.Result{
		Machine: report.ThisMachine(), Provider: reports[0].Provider, Workers: s.Workers, Model: s.Model.Name,
		Bytes: s.Bytes(), DType: s.DType.String(), Optimizer: s.Optimizer, ChunkBytes: uint32(s.ChunkBytes), Iterations: s.Iters,
		Warmup: s.Warmup, Verdict: report.Verdict{Checksum: checksum(reports[0].Digests)}, Note: noteFor(reports[0].Provider),
	}
	if c := reports[0].Codecs; c != nil && c.Names != "none" {
		res.Codecs = c
	}
	res.Lanes, res.Memory = reports[0].Lanes, "ordinary memory"
	if s.Arena {
		res.Memory = "arenas"
	}
	times := make([]time.Duration, s.Iters)
	means := make([]float64, s.Workers)
	for i := range s.Iters {
		slowest := 0.0
		for rank := range reports {
			t := reports[rank].TimesUS[i]
			means[rank] += t / float64(s.Iters)
			slowest = max(slowest, t)
		}
		times[i] = time.Duration(slowest * 1e3)
	}
	res.SetTimes(report.Distribution(times), means)
	if s.Replay {
		traces := make([]*trace, len(reports))
		for rank := range reports {
			traces[rank] = reports[rank].Trace
		}
		res.Replay = breakdown(s, traces)
	}
	if s.Sparse() {
		summariseRows(s, reports, &res)
		return res // an optimizer gives each worker other rows
	}
	for _, rep := range reports {
		if !slices.Equal(rep.Digests, reports[0].Digests) {
			res.Checksum = "differs between workers"
			if s.Policy != "" {
				res.Checksum += ", as it may under policy " + s.Policy
			}
		}
	}
	return res
}

// verify compares every worker's final results with plain Go's, tensor by tensor.
func (r *Runner) verify(ctx context.Context, s *Spec, reports []workerReport, res *report.Result) error {
	bar := report.NewProgress(r.Progress, "plain Go reference", len(s.Model.Tensors))
	want, err := reference(ctx, s, bar)
	if err != nil {
		return err
	}
	res.Verified, res.Reference = true, checksum(want[0])
	for rank, rep := range reports {
		if len(rep.Digests) != len(want[rank]) {
			return fmt.Errorf("worker %d reported results of %d tensors, not of %d", rank, len(rep.Digests), len(want[rank]))
		}
		for t, d := range rep.Digests {
			if d == want[rank][t] {
				continue
			}
			res.Wrong += s.Model.Tensors[t].Elems()
			if r.Log != nil {
				fmt.Fprintf(r.Log, "worker %d: tensor %s is not plain Go's\n", rank, s.Model.Tensors[t].Name)
			}
		}
	}
	return nil
}

// noteFor returns the caveat for a provider's numbers on this machine: RDMA may be software, too.
func noteFor(provider string) string {
	note := report.NoteFor(provider)
	if top, err := numa.Discover(""); provider == verbs.ProviderIBV && err == nil {
		if slices.ContainsFunc(top.RDMA, func(d numa.RDMADevice) bool { return d.Soft && d.Active() }) {
			note = report.SoftwareNote
		}
	}
	return note
}
