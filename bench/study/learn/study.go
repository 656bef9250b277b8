package learn

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"

	"golang.org/x/sync/errgroup"

	"github.com/rackweave/rackweave/bench/report"
	"github.com/rackweave/rackweave/hierarchy/outer"
	"github.com/rackweave/rackweave/policy"
)

// Config selects what runs, and how often.
type Config struct {
	Compress bool      // ways to shorten gradients, instead of policies
	Only     []string  // names of studies. If empty, all
	Seeds    int       // runs of each kind
	Log      io.Writer // shows the progress. It may be nil
}

// Study is the answer to a question.
type Study struct {
	Name, Title, Setting string
	Rows                 []Row
	Findings             []string
}

// maxSeeds bounds a configuration: more is a mistake.
const maxSeeds = 1000

// plan is one question, and its answer after it has run.
type plan struct {
	name, title string
	way         string // the heading of ways. If empty, policy, after their cluster
	than        string // the way that the others are compared with, beside none
	columns     []column
	clusters    []Cluster
	ways        []string // policies, codecs, or how racks meet, beside bsp or none, which always comes first
	base        Setting
	note        string // more about the setting
	folds       int    // if 0, one
	tell        func(*plan)
	real        bool // through an aggregator, by the clock

	rows     []Row
	findings []string // in words, what the rows show
}

// list returns the plans of policies, or of ways to shorten gradients.
func list(compress bool) []plan {
	if compress {
		return compressions
	}
	return plans
}

// Names lists the studies of policies, or of ways to shorten gradients.
func Names(compress bool) []string {
	var names []string
	for _, p := range list(compress) {
		names = append(names, p.name)
	}
	return names
}

// Learn runs the studies, prints a table for each, and returns them.
func Learn(ctx context.Context, cfg Config, out io.Writer) ([]Study, error) {
	if cfg.Seeds < 1 || cfg.Seeds > maxSeeds {
		return nil, fmt.Errorf("%d seeds: use 1 to %d", cfg.Seeds, maxSeeds)
	}
	for _, name := range cfg.Only {
		if names := Names(cfg.Compress); !slices.Contains(names, name) {
			return nil, fmt.Errorf("unknown study %q: use %s", name, strings.Join(names, ", "))
		}
	}
	time := "virtual time (but in study real), in steps of the fastest worker; "
	if cfg.Compress {
		time = ""
	}
	fmt.Fprintf(out, "# %smedians and quartiles, means ± 95%%, of %d seeds\n", time, cfg.Seeds)
	var studies []Study
	for _, p := range list(cfg.Compress) {
		if len(cfg.Only) > 0 && !slices.Contains(cfg.Only, p.name) {
			continue
		}
		err := p.run(ctx, &cfg)
		if err == nil {
			err = p.write(out)
		}
		if err != nil {
			return nil, fmt.Errorf("study %s: %w", p.name, err)
		}
		studies = append(studies, Study{p.name, p.title, p.describe(), p.rows, p.findings})
	}
	return studies, nil
}

// describe returns the setting of all rows.
func (p *plan) describe() string { return p.base.describe() + "; " + p.note }

// run answers the question.
func (p *plan) run(ctx context.Context, cfg *Config) error {
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
	return nil
}

// find adds a finding.
func (p *plan) find(format string, args ...any) {
	p.findings = append(p.findings, fmt.Sprintf(format, args...))
}

// write prints the answer.
func (p *plan) write(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "\n# %s: %s\n# %s\n%s", p.name, p.title, p.describe(), cmp.Or(p.way, "cluster\tpolicy"))
	for _, c := range p.columns {
		fmt.Fprint(w, "\t", c.head)
	}
	for i := range p.rows {
		r := &p.rows[i]
		fmt.Fprintln(w)
		if p.way == "" {
			fmt.Fprint(w, r.Cluster, "\t")
		}
		fmt.Fprint(w, r.Way)
		for _, c := range p.columns {
			fmt.Fprint(w, "\t", c.text(r))
		}
	}
	fmt.Fprintln(w)
	for _, f := range p.findings {
		fmt.Fprintf(w, "# %s\n", f)
	}
	return w.Flush()
}

// variants returns the base setting under bsp, and in each other way.
func (p *plan) variants() ([]Setting, error) {
	all := []Setting{p.base}
	for _, way := range p.ways {
		s := p.base
		var err error
		switch {
		case s.coded != nil:
			s.scheme, err = parseScheme(way)
		case s.Core > 0:
			s.Outer, err = outer.Parse(way)
		default:
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
func (p *plan) simulate(ctx context.Context, cfg *Config) error {
	variants, err := p.variants()
	if err == nil && p.base.coded != nil {
		err = p.tune(ctx, cfg, variants)
	}
	if err != nil {
		return err
	}
	folds := max(p.folds, 1)
	var settings []Setting
	for _, c := range p.clusters {
		for _, s := range variants {
			for fold := range folds {
				for seed := range cfg.Seeds {
					s.Cluster, s.Fold, s.Seed = c, fold, uint64(seed+1)
					settings = append(settings, s)
				}
			}
		}
	}
	outcomes, err := runAll(ctx, settings, report.NewProgress(cfg.Log, p.name, len(settings)))
	if err != nil {
		return err
	}
	each, than := folds*cfg.Seeds, 1+slices.Index(p.ways, p.than)
	for i := range p.clusters {
		bsp := outcomes[i*len(variants)*each:]
		for k := range variants {
			first := (i*len(variants) + k) * each
			row := summarise(settings[first], outcomes[first:first+each], bsp)
			row.Over = over(outcomes[first:first+each], bsp[than*each:])
			p.rows = append(p.rows, row)
		}
	}
	return nil
}

// runAll runs trainings on all processors. Each depends on its setting only.
func runAll(ctx context.Context, settings []Setting, bar *report.Progress) ([]Outcome, error) {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(runtime.GOMAXPROCS(0))
	outcomes := make([]Outcome, len(settings))
	for i, s := range settings {
		g.Go(func() (err error) {
			if outcomes[i], err = Run(ctx, s); err != nil {
				return fmt.Errorf("%s %v: %w", s.way(), s.Cluster, err)
			}
			bar.Add(1)
			return nil
		})
	}
	return outcomes, g.Wait()
}

// row finds a row.
func (p *plan) row(c Cluster, way string) *Row {
	i := slices.IndexFunc(p.rows, func(r Row) bool { return r.Cluster == c.String() && r.Way == way })
	if i < 0 {
		panic(fmt.Sprintf("learn: study %s has no row for %s on %s", p.name, way, c))
	}
	return &p.rows[i]
}
