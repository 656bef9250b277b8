package learn

import (
	"context"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"sync"

	"github.com/rackweave/rackweave/bench/report"
	"github.com/rackweave/rackweave/hierarchy/outer"
	"github.com/rackweave/rackweave/policy"
)

// The problem of all studies: without momentum, at the rate that lets BSP reach the target in about a hundred of its steps.
const (
	learningRate = 0.8
	batchSize    = 128
	targetLoss   = 0.18
	mostEpochs   = 200
	switchEpochs = 60
	decayEpoch   = 30
)

// Config selects what runs.
type Config struct {
	Only  []string // names of studies. If empty, all
	Seeds int
	Log   io.Writer // shows the progress. It may be nil
}

// Studies are the results of all studies.
type Studies struct {
	Seeds   int
	Studies []Study
}

// Study is one question.
type Study struct {
	Name, Title, Setting string

	Rows     []Row
	Findings []string // in words
	columns  []column
}

// plan is a study to run.
type plan struct {
	Study
	clusters []Cluster
	policies []policy.Spec // beside bsp, which always comes first
	outers   []outer.Optimizer
	base     Setting
	folds    int
	tell     func(*Study)
	real     bool // through an aggregator, by the clock
}

var plans = []struct {
	name string
	make func() plan
}{
	{"policies", policies}, {"lagtuner", lagTuner}, {"momentum", momentum},
	{"switch", strategySwitch}, {"racks", overCore}, {"real", real},
}

// Names lists the studies.
func Names() []string {
	var names []string
	for _, p := range plans {
		names = append(names, p.name)
	}
	return names
}

const maxSeeds = 1000

// Check reports what in the configuration cannot be done.
func (c *Config) Check() error {
	if c.Seeds < 1 || c.Seeds > maxSeeds {
		return fmt.Errorf("%d seeds: use 1 to %d", c.Seeds, maxSeeds)
	}
	for _, name := range c.Only {
		if !slices.Contains(Names(), name) {
			return fmt.Errorf("unknown study %q: use %s", name, strings.Join(Names(), ", "))
		}
	}
	return nil
}

func (c *Config) bar(label string, total int) *report.Progress {
	if c.Log == nil {
		return nil
	}
	return report.NewProgress(c.Log, label, total)
}

// Learn runs the studies.
func Learn(ctx context.Context, cfg Config) (Studies, error) {
	if err := cfg.Check(); err != nil {
		return Studies{}, err
	}
	all := Studies{Seeds: cfg.Seeds}
	for _, p := range plans {
		if len(cfg.Only) > 0 && !slices.Contains(cfg.Only, p.name) {
			continue
		}
		plan := p.make()
		plan.Name = p.name
		run := plan.run
		if plan.real {
			run = plan.runReal
		}
		if err := run(ctx, &cfg); err != nil {
			return all, fmt.Errorf("study %s: %w", p.name, err)
		}
		all.Studies = append(all.Studies, plan.Study)
	}
	return all, nil
}

// run runs every policy on every cluster, with every fold and seed: pairs that differ in the policy only.
func (p *plan) run(ctx context.Context, cfg *Config) error {
	var settings []Setting
	variants := []Setting{p.base}
	for _, spec := range p.policies {
		s := p.base
		s.Policy = spec
		variants = append(variants, s)
	}
	for _, o := range p.outers {
		s := p.base
		s.Outer = o
		variants = append(variants, s)
	}
	for _, c := range p.clusters {
		for _, s := range variants {
			for fold := range p.folds {
				for seed := range cfg.Seeds {
					s.Cluster, s.Fold, s.Seed = c, fold, uint64(seed+1)
					settings = append(settings, s)
				}
			}
		}
	}
	outcomes, err := runAll(ctx, settings, cfg.bar(p.Name, len(settings)))
	if err != nil {
		return err
	}
	each := p.folds * cfg.Seeds
	for i := range p.clusters {
		bsp := outcomes[i*len(variants)*each:][:each]
		for k := range variants {
			first := (i*len(variants) + k) * each
			p.Rows = append(p.Rows, summarise(settings[first], outcomes[first:first+each], bsp))
		}
	}
	if p.tell != nil {
		p.tell(&p.Study)
	}
	return nil
}

// runAll runs trainings on all processors. Each depends on its setting only.
func runAll(ctx context.Context, settings []Setting, bar *report.Progress) ([]Outcome, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	outcomes := make([]Outcome, len(settings))
	next := make(chan int)
	var wait sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		wait.Go(func() {
			for i := range next {
				o, err := Run(ctx, settings[i])
				if err != nil {
					cancel(fmt.Errorf("%v on %v: %w", settings[i].Policy, settings[i].Cluster, err))
				}
				outcomes[i] = o
				bar.Add(1)
			}
		})
	}
	for i := range settings {
		if ctx.Err() != nil {
			break
		}
		next <- i
	}
	close(next)
	wait.Wait()
	return outcomes, context.Cause(ctx)
}

// find appends a finding.
func (s *Study) find(format string, args ...any) {
	s.Findings = append(s.Findings, fmt.Sprintf(format, args...))
}

// row finds a row by its cluster and policy.
func (s *Study) row(cluster, policy string) *Row {
	i := slices.IndexFunc(s.Rows, func(r Row) bool { return r.Cluster == cluster && r.Policy == policy })
	if i < 0 {
		panic(fmt.Sprintf("learn: study %s has no row for %s on %s", s.Name, policy, cluster))
	}
	return &s.Rows[i]
}
