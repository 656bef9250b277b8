package bench

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/rackweave/rackweave/aggregate/optim"
	"github.com/rackweave/rackweave/bench/models"
	"github.com/rackweave/rackweave/bench/report"
	"github.com/rackweave/rackweave/bench/rows"
	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/codec"
	"github.com/rackweave/rackweave/hierarchy/outer"
	"github.com/rackweave/rackweave/numa"
	"github.com/rackweave/rackweave/policy"
	"github.com/rackweave/rackweave/verbs"
)

// Spec is one benchmark.
type Spec struct {
	Workers  int
	Provider string
	// ProviderOptions apply to every device that is opened, as key=value,…; the provider must be named.
	ProviderOptions string
	Model           models.Model
	Rows            rows.Spec   // if it has any, the model is an embedding, and workers exchange the rows that they touch
	DType           chunk.DType // on the wire; buffers are f32
	Optimizer       string      // "sum": aggregate only
	Hyper           map[string]float64
	Policy          string // who waits for whom, in mode stream. If empty, all wait for all
	Outer           string // how racks that train on their own meet. If empty, as their cluster says
	Compress        string // codecs of gradients and answers, as of [client.Config]
	Iters           int
	Warmup          int
	Arena           bool // gradients and results in registered memory, else in ordinary memory
	Verify          bool
	// Apart says that workers run on other hosts, and only what they print reaches this process.
	Apart bool
	// Replay has workers spend the model's times in forward and backward passes: see [Model.Tensors].
	Replay bool
	Jitter time.Duration // workers sleep up to this long before each exchange, and submit in orders of their own
	Seed   uint64

	Target

	// RDMA devices, of workers and of the embedded aggregator. If empty, all.
	NICs       []string
	ChunkBytes int

	told
}

// told holds what the aggregators tell the workers of their job.
type told struct {
	racks  []int // workers by rack
	pods   int
	outer  outer.Optimizer
	core   chunk.DType // of sums between racks
	codecs codec.Pair

	recodes    [][]recode // by rank, if a controller changes the codecs
	coreCodecs codec.Pair // of sums and results between racks
	crossing   *crossing  // nil without these
}

// Target is the aggregator that a benchmark exchanges with. If Server is empty, the benchmark has one of its own.
type Target struct {
	Server string // its URL, or the URLs of the aggregators of several racks, with commas
	Spread bool   // the aggregators are not of racks: the job is spread over them
	Job    string // its name. If empty, one of its own
	Token  string
	// Insecure lets the token be sent in clear, over http:// to another host.
	Insecure bool
	CA       string
}

const maxIters = 1_000_000

// providers are the names of transports, auto for the fastest.
var providers = append([]string{"auto"}, verbs.Providers()...)

// Check completes the spec and reports what in it cannot be done.
func (s *Spec) Check() error {
	if s.Workers < 1 || s.Workers > 1024 {
		return fmt.Errorf("workers is %d: use 1 to 1024", s.Workers)
	}
	if s.Iters < 1 || s.Iters > maxIters || s.Warmup < 0 || s.Warmup > maxIters {
		return fmt.Errorf("%d iterations after %d to warm up: use 1 to %d, after 0 to %d", s.Iters, s.Warmup, maxIters, maxIters)
	}
	if err := s.checkRows(); err != nil {
		return err
	}
	if len(s.Model.Tensors) == 0 {
		return fmt.Errorf("model %q has no tensors", s.Model.Name)
	}
	if !slices.Contains(providers, s.Provider) {
		return fmt.Errorf("unknown provider %q: use %s", s.Provider, strings.Join(providers, ", "))
	}
	if s.ProviderOptions != "" && s.Provider == "auto" {
		return fmt.Errorf("provider options %q: name the provider they are for", s.ProviderOptions)
	}
	s.ChunkBytes = cmp.Or(s.ChunkBytes, chunk.DefaultChunkBytes)
	if _, err := chunk.NewPlan(chunk.Config{ChunkBytes: s.ChunkBytes, Lanes: make([]chunk.Lane, 1)}); err != nil {
		return err
	}
	if row := s.Rows.Width * s.DType.Size(); s.Sparse() && row+chunk.RowBytes > s.ChunkBytes {
		return fmt.Errorf("rows of %d bytes and %d more do not fit a chunk of %d: use a larger --chunk-bytes, up to %d, or a smaller width",
			row, chunk.RowBytes, s.ChunkBytes, chunk.MaxChunkBytes)
	}
	if s.Jitter < 0 {
		return fmt.Errorf("jitter %v: use 0 or more", s.Jitter)
	}
	if err := s.checkReplay(); err != nil {
		return err
	}
	servers := strings.Split(s.Server, ",")
	switch n := len(servers); {
	case n > 1 && slices.Contains(servers, ""):
		return fmt.Errorf("server %q: URL %d of %d is empty: give one, or remove its comma", s.Server, slices.Index(servers, "")+1, n)
	case s.Spread && n < 2:
		return errors.New("a job to be spread and not several aggregators: name them all, with commas between their URLs")
	case !s.Spread && n > s.Workers:
		return fmt.Errorf("%d workers and the aggregators of %d racks: use a worker in each at least", s.Workers, n)
	}
	if err := s.checkOptimizer(); err != nil {
		return err
	}
	if err := s.checkPolicy(); err != nil {
		return err
	}
	if err := s.checkCodecs(); err != nil {
		return err
	}
	if _, err := outer.Parse(s.Outer); err != nil {
		return err
	}
	return s.checkMemory()
}

// checkReplay reports what cannot be replayed.
func (s *Spec) checkReplay() error {
	switch {
	case !s.Replay:
		return nil
	case s.Model.Compute.Time == 0:
		return fmt.Errorf("a replay of %s, which has no times: give --compute", s.Model.Name)
	case s.Warmup == 0:
		return errors.New("a replay after 0 iterations to warm up: use at least 1, because the first has nothing to wait for")
	case s.Jitter > 0:
		return fmt.Errorf("a replay with a jitter of %v: use one of the two", s.Jitter)
	}
	return nil
}

// checkPolicy writes the policy out in full, and reports what cannot run under it.
func (s *Spec) checkPolicy() error {
	if s.Policy == "" {
		return nil
	}
	p, err := policy.Parse(s.Policy)
	if err == nil {
		err = p.Check(s.Workers)
	}
	switch {
	case err != nil:
		return err
	case s.Optimizer == "sum":
		return fmt.Errorf("policy %v without an optimizer: workers that are out of step have no common sum: name an optimizer", p)
	case s.Verify:
		return fmt.Errorf("policy %v and verification: results depend on which worker comes first: use one of the two", p)
	case s.Replay:
		return fmt.Errorf("policy %v and a replay, which is of synchronous training: use one of the two", p)
	}
	s.Policy = p.String()
	return nil
}

func (s *Spec) checkOptimizer() error {
	rule, h, err := s.optimizer()
	switch {
	case rule.NeedsNorms():
		return fmt.Errorf("optimizer %v needs a committed step: the benchmark exchanges eagerly; use another", rule)
	case err != nil:
		return err
	}
	return rule.Check(h)
}

// checkMemory compares the memory that the exchange takes with what is available now.
func (s *Spec) checkMemory() error {
	top, err := numa.Discover("")
	if err != nil {
		return err
	}
	if need := s.memory(); need > float64(top.AvailableBytes) {
		return fmt.Errorf("%s of parameters with %d workers need %s of memory in this machine, which has %s available: use a smaller model or fewer workers",
			report.Size(s.Model.Params()*4), s.Workers, report.Size(uint64(need)), report.Size(uint64(top.AvailableBytes)))
	}
	return nil
}

// memory returns the bytes of gradients and results, and of parameters and optimizer state where the aggregator is embedded. A
// float64 holds more than any machine.
func (s *Spec) memory() float64 {
	arrays := 2 * s.Workers
	if s.Apart {
		arrays = 0
	}
	if p, err := codec.ParsePair(s.Compress, true); err == nil { // residuals and references
		for _, c := range []codec.Spec{p.Up, p.Down} {
			if c.ID != codec.Raw && !s.Apart {
				arrays += s.Workers
			}
		}
	}
	if rule, h, err := s.optimizer(); err == nil && rule != optim.Sum && s.Server == "" {
		arrays += 1 + rule.States(h)
	}
	return 4 * float64(arrays) * float64(s.Model.Params())
}

// optimizer returns the optimizer's rule, and its defaults with the spec's values over them.
func (s *Spec) optimizer() (rule optim.Rule, h optim.Hyper, err error) {
	if rule, err = optim.Parse(s.Optimizer); err == nil {
		h, err = rule.Hyper(s.Hyper)
	}
	return rule, h, err
}

// Bytes returns the size on the wire of the model, or of a worker's rows with their numbers.
func (s *Spec) Bytes() uint64 {
	if s.Sparse() {
		return uint64(s.Rows.Touch) * uint64(s.Rows.Width*s.DType.Size()+rowNumber)
	}
	return s.Model.Params() * uint64(s.DType.Size())
}

// Steps returns the number of exchanges of each worker.
func (s *Spec) Steps() int { return s.Warmup + s.Iters }
