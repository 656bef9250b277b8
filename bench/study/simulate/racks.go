package simulate

import (
	"context"

	"github.com/rackweave/rackweave/bench/study"
	"github.com/rackweave/rackweave/hierarchy/outer"
)

// outerChunk is the number of parameters in a chunk, whose racks meet at once.
const outerChunk = 64

// runRacks trains racks, each as one worker of the cluster, that add their gradients in every step or meet as the setting's Outer
// says. What crosses the core holds them up: [Setting.Core] for the whole model.
func (t *training) runRacks(ctx context.Context) (study.Outcome, error) {
	o := t.Outer
	if o.Every == 0 {
		o = outer.Optimizer{Every: 1, Fragments: 1, LR: 1}
	}
	for step := uint32(1); !t.over(); step++ {
		if ctx.Err() != nil {
			return study.Outcome{}, context.Cause(ctx)
		}
		for r := range t.workers {
			own := &t.workers[r]
			var err error
			if own.batch, err = t.Rows.Next(r); err != nil {
				return study.Outcome{}, err
			}
			t.task.Gradient(own.had, t.sum, own.batch)
			for i, v := range t.sum {
				own.had[i] -= float32(t.LR) * v
			}
			own.at += t.stepTime(r)
			t.out.Pushes++
			t.samples += len(own.batch)
		}
		if t.meet(o, step) && t.look() {
			break
		}
	}
	return t.finish(), nil
}

// meet brings the chunks together that are due, and reports whether any is.
func (t *training) meet(o outer.Optimizer, step uint32) bool {
	met := 0
	for first := 0; first < len(t.params); first += outerChunk {
		if !o.Due(first/outerChunk, step) {
			continue
		}
		end := min(first+outerChunk, len(t.params))
		met += end - first
		for i := first; i < end; i++ {
			var come float32
			for r := range t.workers {
				come += t.params[i] - t.workers[r].had[i]
			}
			t.stepOuter(o, i, come/float32(len(t.workers)))
			for r := range t.workers {
				t.workers[r].had[i] = t.params[i]
			}
		}
	}
	if met == 0 {
		return false
	}
	share := float64(met) / float64(len(t.params))
	t.out.Crossed += share
	for r := range t.workers {
		t.now = max(t.now, t.workers[r].at)
	}
	t.now += int64(share * t.Core * Unit)
	for r := range t.workers {
		t.workers[r].at = t.now
	}
	t.out.Updates++
	return true
}

// stepOuter takes the outer optimizer's step with a parameter by which the racks have come so far.
func (t *training) stepOuter(o outer.Optimizer, i int, come float32) {
	ahead := come
	if mu := float32(o.Momentum); mu > 0 {
		t.speed[i] = mu*t.speed[i] + come
		if ahead = t.speed[i]; o.Rule == outer.Nesterov {
			ahead = come + mu*t.speed[i]
		}
	}
	t.params[i] -= float32(o.LR) * ahead
}
