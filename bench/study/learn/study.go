package learn

import (
	"context"
	"fmt"
	"io"
	"runtime"
	"slices"
	"sync"

	"github.com/rackweave/rackweave/bench/report"
	"github.com/rackweave/rackweave/bench/study"
	"github.com/rackweave/rackweave/hierarchy/outer"
	"github.com/rackweave/rackweave/policy"
)

// plan is one question, and its answer after it has run.
type plan struct {
	study.Table
	columns  []column
	clusters []Cluster
	ways     []string // policies, or how racks meet, beside bsp, which always comes first
	base     Setting
	note     string // more about the setting
	folds    int    // if 0, one
	tell     func(*plan)
	real     bool // through an aggregator, by the clock

	rows []Row
}

// Names lists the studies.
func Names() []string {
	var names []string
	for _, p := range plans {
		names = append(names, p.Name)
	}
	return names
}

// Learn runs the studies, and prints a table for each.
func Learn(ctx context.Context, cfg study.Config, out io.Writer) error {
	if err := cfg.Check("seeds", Names()); err != nil {
		return err
	}
	var tables []study.Table
	for _, p := range plans {
		if !cfg.Has(p.Name) {
			continue
		}
		if err := p.run(ctx, &cfg); err != nil {
			return fmt.Errorf("study %s: %w", p.Name, err)
		}
		tables = append(tables, p.Table)
	}
	return study.Write(out, fmt.Sprintf("virtual time (but in study real), in steps of the fastest worker; medians and quartiles, means ± 95%%, "+
		"of %d seeds", cfg.Runs), tables)
}

// run answers the question.
func (p *plan) run(ctx context.Context, cfg *study.Config) error {
	run := p.simulate
	if p.real {
		run = p.runReal
	}
	if err := run(ctx, cfg); err != nil {
		return err
	}
	if p.tell != nil {
		p.tell(p)
	}
	p.Setting = p.base.describe() + "; " + p.note
	p.Head = []string{"cluster", "policy"}
	for _, c := range p.columns {
		p.Head = append(p.Head, c.head)
	}
	for i := range p.rows {
		r := &p.rows[i]
		cells := []string{r.Cluster, r.Way}
		for _, c := range p.columns {
			cells = append(cells, c.text(r))
		}
		p.Cells = append(p.Cells, cells)
	}
	return nil
}

// variants returns the base setting under bsp, and in each other way.
func (p *plan) variants() ([]Setting, error) {
	all := []Setting{p.base}
	for _, way := range p.ways {
		s := p.base
		var err error
		if s.Core > 0 {
			s.Outer, err = outer.Parse(way)
		} else {
			s.Policy, err = policy.Parse(way)
		}
		if err != nil {
			return nil, err
		}
		all = append(all, s)
	}
	return all, nil
}

// simulate runs every variant on every cluster, with every fold and seed: pairs that differ in the variant only.
func (p *plan) simulate(ctx context.Context, cfg *study.Config) error {
	variants, err := p.variants()
	if err != nil {
		return err
	}
	folds := max(p.folds, 1)
	var settings []Setting
	for _, c := range p.clusters {
		for _, s := range variants {
			for fold := range folds {
				for seed := range cfg.Runs {
					s.Cluster, s.Fold, s.Seed = c, fold, uint64(seed+1)
					settings = append(settings, s)
				}
			}
		}
	}
	outcomes, err := runAll(ctx, settings, cfg.Bar(p.Name, len(settings)))
	if err != nil {
		return err
	}
	each := folds * cfg.Runs
	for i := range p.clusters {
		bsp := outcomes[i*len(variants)*each:][:each]
		for k := range variants {
			first := (i*len(variants) + k) * each
			p.rows = append(p.rows, summarise(settings[first], outcomes[first:first+each], bsp))
		}
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

// row finds a row.
func (p *plan) row(c Cluster, way string) *Row {
	i := slices.IndexFunc(p.rows, func(r Row) bool { return r.Cluster == c.String() && r.Way == way })
	if i < 0 {
		panic(fmt.Sprintf("learn: study %s has no row for %s on %s", p.Name, way, c))
	}
	return &p.rows[i]
}
