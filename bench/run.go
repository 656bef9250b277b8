package bench

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unsafe"

	"github.com/rackweave/rackweave/bench/report"
	"github.com/rackweave/rackweave/client"
	"github.com/rackweave/rackweave/launch"
	"github.com/rackweave/rackweave/numa"
	"github.com/rackweave/rackweave/service"
	"github.com/rackweave/rackweave/verbs"
)

// Runner starts the processes of a benchmark.
type Runner struct {
	// Worker is the command of a worker process, which runs WorkerMain. Serve is the command of an aggregator; see
	// [launch.StartAggregator]. Both are needed where Spec.Procs is set.
	Worker, Serve []string
	// Enter, if not nil, returns a command that runs a worker's command elsewhere, such as in a network namespace.
	Enter func(rank int) []string
	Log   io.Writer // the aggregator's log; nil: discarded
	// Progress, if not nil, makes the progress of a phase of so many steps.
	Progress func(label string, steps int) *report.Progress
	// Started, if not nil, is told the aggregator's URL.
	Started func(url string)
}

// How workers end that do not end by themselves: the aggregator has failGrace to notify them of another's failure, and they have
// endWithin to leave when they are told to end.
const (
	failGrace = 2 * time.Second
	endWithin = time.Second
)

// reachWithin is how long an aggregator may take to say what it is.
const reachWithin = 10 * time.Second

// command prepares a child that is killed soon after the end of ctx.
func command(ctx context.Context, argv []string, stderr io.Writer) *exec.Cmd {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Stderr = stderr
	cmd.WaitDelay = endWithin
	return cmd
}

// serve starts the embedded aggregator and returns its URL and how to stop it.
func (r *Runner) serve(ctx context.Context, s *Spec) (url string, stop func() error, err error) {
	if !s.Procs {
		return serveHere(ctx, s)
	}
	a, err := launch.StartAggregator(ctx, append(slices.Clone(r.Serve), serveFlags(s)...), r.Log)
	if err != nil {
		return "", nil, err
	}
	return a.URL, a.Stop, nil
}

func serveFlags(s *Spec) []string {
	f := []string{"--listen", "127.0.0.1:0", "--providers", s.Provider, "--until-eof"}
	if s.Provider == "auto" {
		f = []string{"--listen", "127.0.0.1:0", "--until-eof"}
	}
	if s.ProviderOptions != "" {
		f = append(f, "--provider-options", s.Provider+":"+s.ProviderOptions)
	}
	if s.Cores > 0 {
		f = append(f, "--cores", fmt.Sprint(s.Cores))
	}
	if s.Unpinned {
		f = append(f, "--unpinned")
	}
	if s.Window > 0 {
		f = append(f, "--window", fmt.Sprint(s.Window))
	}
	if len(s.NICs) > 0 {
		f = append(f, "--nics", strings.Join(s.NICs, ","))
	}
	if s.LinkTimeout > 0 {
		f = append(f, "--link-timeout", s.LinkTimeout.String())
	}
	return f
}

func serveHere(ctx context.Context, s *Spec) (string, func() error, error) {
	o := service.Options{Listen: "127.0.0.1:0", Cores: s.Cores, Unpinned: s.Unpinned, Window: s.Window, NICs: s.NICs,
		LinkTimeout: s.LinkTimeout}
	if s.Provider != "auto" {
		o.Providers = []string{s.Provider}
		o.ProviderOptions = map[string]string{s.Provider: s.ProviderOptions}
	}
	svc, err := service.New(o)
	if err != nil {
		return "", nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- svc.Serve(ctx) }()
	return svc.URL(), func() error {
		cancel()
		return errors.Join(<-done, svc.Close())
	}, nil
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
	server := s.Server
	if server == "" {
		var stop func() error
		if server, stop, err = r.serve(ctx, &s); err != nil {
			return res, err
		}
		defer func() { err = errors.Join(err, stop()) }()
	}
	if r.Started != nil {
		r.Started(server)
	}
	results := make([]*os.File, s.Workers)
	if s.Verify {
		for rank := range results {
			if results[rank], err = unnamed(); err != nil {
				return res, err
			}
			defer results[rank].Close()
		}
	}
	before := r.foldTimes(ctx, &s, server)
	reports, err := r.workers(ctx, &s, server, results, nil)
	if err != nil {
		return res, err
	}
	res = summarise(&s, reports)
	if s.Replay {
		res.Replay.AggregationUS = before.until(r.foldTimes(ctx, &s, server)) / float64(s.Steps()) * 1e6
	}
	if s.Verify {
		if err := s.take(&reports[0]); err != nil {
			return res, err
		}
		if err := r.verify(ctx, &s, results, &res); err != nil {
			return res, err
		}
	}
	return res, nil
}

// rackOf is the rack of a worker, where racks have as many workers each.
func rackOf(rank, workers, racks int) (rack int) {
	for rank >= workers*(rack+1)/racks {
		rack++
	}
	return rack
}

// unnamed makes a temporary file for a worker's results. The file goes when the processes that hold it have ended, however they
// end.
func unnamed() (*os.File, error) {
	f, err := os.CreateTemp("", "rackweave-results-")
	if err != nil {
		return nil, fmt.Errorf("make a file for results to verify: %w: set TMPDIR to a directory that can be written", err)
	}
	return f, os.Remove(f.Name())
}

// workers runs all workers to their end. The first that fails ends the others. Each writes its final results where there is a file.
// stepped, if not nil, is told of each exchange that rank 0 has ended.
func (r *Runner) workers(ctx context.Context, s *Spec, server string, results []*os.File, stepped func()) ([]workerReport, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	job := s.Job
	if job == "" {
		name := make([]byte, 6)
		rand.Read(name)
		job = "bench-" + hex.EncodeToString(name)
	}
	bar := r.progress("exchange", s.Steps())
	defer bar.Close()
	reports := make([]workerReport, s.Workers)
	errs := make([]error, s.Workers)
	var wg sync.WaitGroup
	for rank := range s.Workers {
		o := &order{Spec: *s, Rank: rank, Server: server, Job: job}
		if !s.Spread {
			servers := strings.Split(server, ",") // of the racks, in their order
			o.Server = servers[rackOf(rank, s.Workers, len(servers))]
		}
		say := func(rep workerReport) error {
			if rep.Done {
				reports[rank] = rep
			} else if rank == 0 {
				bar.Add(1)
				if stepped != nil {
					stepped()
				}
			}
			return nil
		}
		wg.Go(func() {
			if s.Procs {
				errs[rank] = r.workerProcess(ctx, o, results[rank], say)
			} else {
				errs[rank] = runWorker(ctx, o, results[rank], say)
			}
			if errs[rank] == nil && !reports[rank].Done {
				errs[rank] = errors.New("ended without a report")
			}
			switch err := errs[rank]; {
			case err == nil:
			case errors.Is(context.Cause(ctx), errOther):
				errs[rank] = errOther
			default:
				time.AfterFunc(failGrace, func() { cancel(fmt.Errorf("%w: worker %d: %w", errOther, rank, err)) })
			}
		})
	}
	wg.Wait()
	return reports, workerErrors(errs)
}

// errOther is why workers are ended.
var errOther = errors.New("ended because another worker failed")

// workerErrors joins the workers' errors, each text once with its ranks, those of workers that another's failure ended last.
func workerErrors(errs []error) error {
	var all []error
	var ended error
	told := map[string]bool{}
	for _, err := range errs {
		if err == nil || told[err.Error()] {
			continue
		}
		told[err.Error()] = true
		var ranks []string
		for rank, other := range errs {
			if other != nil && other.Error() == err.Error() {
				ranks = append(ranks, strconv.Itoa(rank))
			}
		}
		name := "worker"
		if len(ranks) > 1 {
			name = "workers"
		}
		text := fmt.Errorf("%s %s: %w", name, strings.Join(ranks, ", "), err)
		if err == errOther {
			ended = text
			continue
		}
		all = append(all, text)
	}
	return errors.Join(append(all, ended)...)
}

func (r *Runner) workerProcess(ctx context.Context, o *order, results *os.File, say func(workerReport) error) error {
	errs := &launch.Tail{}
	argv := r.Worker
	if r.Enter != nil {
		argv = append(r.Enter(o.Rank), argv...)
	}
	cmd := command(ctx, argv, errs)
	if results != nil {
		cmd.ExtraFiles = []*os.File{results} // resultsFD
	}
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

func (r *Runner) progress(label string, steps int) *report.Progress {
	if r.Progress == nil {
		return nil
	}
	return r.Progress(label, steps)
}

func summarise(s *Spec, reports []workerReport) report.Result {
	res := report.Result{
		Machine: report.ThisMachine(), Provider: reports[0].Provider, Server: s.Server, Workers: s.Workers, Model: s.Model.Name,
		Bytes: s.Bytes(), DType: s.DType.String(), Optimizer: s.Optimizer, ChunkBytes: uint32(s.ChunkBytes), Iterations: s.Iters,
		Warmup: s.Warmup, Checksum: fmt.Sprintf("%016x", reports[0].Checksum), Note: noteFor(reports[0].Provider),
	}
	res.Lanes, res.Memory = reports[0].Lanes, "ordinary memory"
	if s.Arena {
		res.Memory = "arenas"
	}
	h := report.NewHistogram()
	means := make([]float64, s.Workers)
	for i := range s.Iters {
		slowest := 0.0
		for rank := range reports {
			t := reports[rank].TimesUS[i]
			means[rank] += t / float64(s.Iters)
			slowest = max(slowest, t)
		}
		h.Record(time.Duration(slowest * 1e3))
	}
	res.SetTimes(h.Summary(), means)
	if s.Replay {
		traces := make([]*trace, len(reports))
		for rank := range reports {
			traces[rank] = reports[rank].Trace
		}
		res.Replay = breakdown(s, traces)
	}
	for _, rep := range reports {
		if rep.Checksum != reports[0].Checksum {
			if res.Checksum = "differs between workers"; strings.Contains(rep.Outer, "quorum=") {
				res.Checksum += ", as racks may miss meetings"
			}
		}
	}
	return res
}

// verify compares every worker's final results with plain Go.
func (r *Runner) verify(ctx context.Context, s *Spec, results []*os.File, res *report.Result) error {
	bar := r.progress("plain Go reference", len(s.Model.Tensors))
	want, err := Reference(ctx, s, bar)
	bar.Close()
	if err != nil {
		return err
	}
	res.Verified = true
	raw := make([]byte, s.Model.Params()*4)
	for rank, f := range results {
		if n, err := f.ReadAt(raw, 0); err != nil {
			return fmt.Errorf("worker %d wrote %d bytes of results of %d: %w", rank, n, len(raw), err)
		}
		wrong, where := compare(want, unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(raw))), len(raw)/4))
		if res.Wrong += wrong; wrong > 0 && r.Log != nil {
			fmt.Fprintf(r.Log, "worker %d: %d elements wrong: %s\n", rank, wrong, where)
		}
	}
	res.Reference = fmt.Sprintf("%016x", digestAll(want))
	return nil
}

// noteFor returns the caveat for a provider's numbers on this machine: RDMA may be software, too.
func noteFor(provider string) string {
	note := report.NoteFor(provider)
	if top, err := numa.Discover(""); provider == verbs.ProviderIBV && err == nil {
		for _, d := range top.RDMA {
			if d.Soft && d.Active() {
				note = report.SoftwareNote
			}
		}
	}
	return note
}
