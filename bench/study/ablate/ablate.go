// Package ablate measures the design's kernels, each against its alternative on the same machine. What a flag of rackweave bench
// chooses, such as the chunk size, is compared with that.
package ablate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/rackweave/rackweave/aggregate/optim"
	"github.com/rackweave/rackweave/bench/report"
	"github.com/rackweave/rackweave/bench/study"
)

// workerCounts are the numbers of gradients in a chunk's sum.
var workerCounts = []int{2, 4, 8}

// ablation is a study: alternatives that aggregate the gradients of so many workers.
type ablation struct {
	name, title, setting string
	series               []string
	works                []func(l *workload, workers int)
	// find works out the findings from the rates in GB/s, by number of workers and series.
	find func(t *study.Table, l *workload, rates [][]float64)
}

var ablations = []ablation{
	{
		name: "fused", title: "Sum and optimizer in one pass, or in two",
		series: []string{"one pass", "sum, then update", "memory probe"},
		works:  []func(*workload, int){(*workload).onePass, (*workload).twoPasses, (*workload).probe},
		find: func(t *study.Table, _ *workload, rates [][]float64) {
			for i, r := range rates {
				t.Find("%d workers: one pass has %.2f times the rate of two, and %.0f%% of the memory probe's", workerCounts[i], r[0]/r[1],
					100*r[0]/r[2])
			}
		},
	},
	{
		name: "order", title: "Gradients summed at once, or on arrival",
		setting: fmt.Sprintf("; arrivals shuffled in windows of %d chunks", arrivalWindow),
		series:  []string{"at once, in rank order", "added on arrival"},
		works:   []func(*workload, int){(*workload).inRankOrder, (*workload).onArrival},
		find: func(t *study.Table, l *workload, rates [][]float64) {
			for i, r := range rates {
				t.Find("%d workers: at once has %.2f times the rate of adding on arrival", workerCounts[i], r[0]/r[1])
			}
			t.Find("another order of arrival changes the bits of %d of %d parameters when gradients are added on arrival, of %d in "+
				"rank order", l.changed((*workload).onArrival), l.bytes/4, l.changed((*workload).inRankOrder))
		},
	},
}

// Names lists the ablations.
func Names() []string {
	var names []string
	for _, a := range ablations {
		names = append(names, a.name)
	}
	return names
}

// Run measures the alternatives of one study after another, and prints a table for each.
func Run(ctx context.Context, cfg study.Config, out io.Writer) error {
	if err := cfg.Check("rounds", Names()); err != nil {
		return err
	}
	tables, err := run(ctx, &cfg, arrayBytes())
	if err != nil {
		return err
	}
	return study.Write(out, fmt.Sprintf("%s\nmedians of %d rounds in turn, in GB/s of gradients that are aggregated",
		report.ThisMachine(), cfg.Runs), tables)
}

func run(ctx context.Context, cfg *study.Config, bytes uint64) (tables []study.Table, err error) {
	l, err := newWorkload(slices.Max(workerCounts), bytes)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, l.arena.Close()) }()
	for _, a := range ablations {
		if !cfg.Has(a.name) {
			continue
		}
		rates, err := a.measure(ctx, l, cfg)
		if err != nil {
			return nil, fmt.Errorf("ablation %s: %w", a.name, err)
		}
		t := study.Table{Name: a.name, Title: a.title, Head: append([]string{"workers"}, a.series...)}
		t.Setting = fmt.Sprintf("%s a gradient, %s with momentum, %v kernels on %d threads%s", report.Size(l.bytes), optim.SGDMXNet,
			l.isa, l.threads, a.setting)
		for i, workers := range workerCounts {
			cells := []string{fmt.Sprint(workers)}
			for _, rate := range rates[i] {
				cells = append(cells, fmt.Sprintf("%.2f", rate))
			}
			t.Cells = append(t.Cells, cells)
		}
		a.find(&t, l, rates)
		tables = append(tables, t)
	}
	return tables, nil
}

// measure returns the medians of the works' rates, by number of workers and work. It alternates between them, in every second round
// in reverse, so that the machine's other work affects all of them.
func (a *ablation) measure(ctx context.Context, l *workload, cfg *study.Config) ([][]float64, error) {
	each := len(a.works)
	all := make([][]float64, len(workerCounts)*each)
	bar := cfg.Bar(a.name, cfg.Runs*len(all))
	for round := range cfg.Runs {
		for i := range all {
			if ctx.Err() != nil {
				return nil, context.Cause(ctx)
			}
			if round%2 == 1 {
				i = len(all) - 1 - i
			}
			workers := workerCounts[i/each]
			start := time.Now()
			a.works[i%each](l, workers)
			all[i] = append(all[i], float64(uint64(workers)*l.bytes)/float64(max(time.Since(start), 1)))
			bar.Add(1)
		}
	}
	medians := make([][]float64, len(workerCounts))
	for i, rates := range all {
		medians[i/each] = append(medians[i/each], report.Median(rates))
	}
	return medians, nil
}
