package bench

import (
	"context"
	"fmt"

	"github.com/rackweave/rackweave/bench/report"
)

// The chunk sizes that are compared: all that a plan can have.
const (
	leastChunk = 4 << 10
	mostChunk  = 4 << 20
	// The most that may be in flight between a worker and a core at any chunk size, in bytes and in chunks.
	inFlight    = 8 << 20
	leastWindow = 4
	mostWindow  = 256
)

func powersOfTwo(from, to int) []int {
	var sizes []int
	for ; from <= to; from *= 2 {
		sizes = append(sizes, from)
	}
	return sizes
}

// exchanges returns the spec of a study's exchanges.
func (cfg *AblateConfig) exchanges(iters int) Spec {
	s := cfg.Spec
	s.Iters, s.Warmup, s.Verify = iters, 1, false
	if cfg.Quick {
		s.Iters = 2
	}
	return s
}

// describe adds to a study what its exchanges were, and over which transport.
func (s *study) describe(spec *Spec, provider string) {
	s.Provider, s.Note = provider, report.NoteFor(provider)
	s.Setting = fmt.Sprintf("%s of %v over %s, %d workers, %s; %s", report.Size(spec.Bytes()), spec.DType, provider, spec.Workers,
		spec.Optimizer, s.Setting)
}

func chunkSizes(r *Runner, cfg *AblateConfig) (*study, error) {
	spec := cfg.exchanges(6)
	s := &study{Ablation: Ablation{
		Title: "Chunk size", Quantity: "chunk size", Measure: "algbw (GB/s)", Series: series("algbw"), kind: report.Lines,
		Setting: fmt.Sprintf("at most %s or %d chunks in flight per worker and core", report.Size(inFlight), mostWindow),
	}}
	provider := ""
	for _, size := range powersOfTwo(leastChunk, mostChunk) {
		one := spec
		one.ChunkBytes, one.Window = size, min(max(inFlight/size, leastWindow), mostWindow)
		s.Categories = append(s.Categories, report.Size(uint64(size)))
		s.rows = append(s.rows, []measure{func(ctx context.Context) ([]float64, error) {
			res, err := r.Run(ctx, one)
			provider = res.Provider
			return []float64{report.AlgBW(res.Bytes, res.TimeUS.P50)}, err
		}})
	}
	s.tell = func(a *Ablation) {
		s.describe(&spec, provider)
		values := a.Series[0].Values
		best, usual := 0, 0
		for i, c := range a.Categories {
			if values[i] > values[best] {
				best = i
			}
			if c == report.Size(uint64(cfg.Spec.ChunkBytes)) {
				usual = i
			}
		}
		a.find("fastest with chunks of %s; %s has %.0f%% of that, %s %.0f%%, %s %.0f%%", a.Categories[best],
			a.Categories[usual], 100*values[usual]/values[best], a.Categories[0], 100*values[0]/values[best],
			a.Categories[len(values)-1], 100*values[len(values)-1]/values[best])
	}
	return s, nil
}

func pinnedAndFloating(r *Runner, cfg *AblateConfig) (*study, error) {
	spec := cfg.exchanges(30)
	s := &study{Ablation: Ablation{
		Title: "Loops pinned to cores, or floating", Quantity: "loops", Measure: "time of an exchange (ms)",
		Series: series("median", "slowest of a run"), Categories: []string{"pinned", "floating"}, kind: report.Bars,
		Setting: fmt.Sprintf("%d exchanges a run", spec.Iters),
	}}
	provider := ""
	for _, unpinned := range []bool{false, true} {
		one := spec
		one.Unpinned = unpinned
		s.rows = append(s.rows, []measure{func(ctx context.Context) ([]float64, error) {
			res, err := r.Run(ctx, one)
			provider = res.Provider
			return []float64{res.TimeUS.P50 / 1e3, res.TimeUS.Max / 1e3}, err
		}})
	}
	s.tell = func(a *Ablation) {
		s.describe(&spec, provider)
		for _, series := range a.Series {
			a.find("%s: floating takes %.2f times as long as pinned", series.Label, series.Values[1]/series.Values[0])
		}
	}
	return s, nil
}
