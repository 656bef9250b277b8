package cluster

import (
	"fmt"
	"time"

	"github.com/rackweave/rackweave/hierarchy"
	"github.com/rackweave/rackweave/hierarchy/planner"
)

// A window of a job's steps lasts at least windowLasts and has at least windowSteps.
const (
	windowLasts = time.Second
	windowSteps = 4
)

// window is a stretch of a job's steps.
type window struct {
	began  time.Time
	chunks uint64 // gradients that its first worker here had pushed by then
	model  int    // chunks of a step
}

// step returns the mean time of a step in the window and begins the next one, if this one is full.
func (w *window) step(now time.Time, chunks uint64, least time.Duration) (seconds float64, full bool) {
	took, steps := now.Sub(w.began), float64(chunks-w.chunks)/float64(w.model)
	if took < least || steps < windowSteps {
		return 0, false
	}
	w.began, w.chunks = now, chunks
	return took.Seconds() / steps, true
}

// watchSteps measures the job's steps until it ends, so that its status can warn when they have drifted.
func (r *Rendezvous) watchSteps() {
	k, j := r.k, r.j
	least := k.Window
	tick := time.NewTicker(least / 4)
	defer tick.Stop()
	var w window
	for {
		select {
		case <-j.Failed:
			return
		case <-j.Ended:
			return
		case <-k.Closing:
			return
		case <-tick.C:
		}
		chunks, model, ok := r.pushed()
		if !ok {
			continue
		}
		again := model != w.model || chunks < w.chunks
		if again {
			w = window{time.Now(), chunks, model}
		}
		step, full := w.step(time.Now(), chunks, least)
		k.mu.Lock()
		if again {
			r.drift = planner.Drift{}
		} else if full {
			r.drift.Window(step)
		}
		k.mu.Unlock()
	}
}

// pushed returns the number of chunks' gradients that this rack's first worker has pushed, and the number of chunks of a step.
func (r *Rendezvous) pushed() (chunks uint64, model int, ok bool) {
	j := r.j
	if !j.Model.TryRLock() {
		return 0, 0, false
	}
	model = j.Model.Plan.NumChunks()
	j.Model.RUnlock()
	return j.Agg.WorkerCounters()[0].Chunks, model, model > 0
}

// shapeWarning returns the reason for which the job's racks may reduce faster in another shape than the one that was chosen: the
// links were measured anew since, or steps have drifted. It returns an empty text without a reason.
func (r *Rendezvous) shapeWarning() string {
	k, j := r.k, r.j
	_, _, bytes := j.Size()
	k.mu.Lock()
	c := r.choice
	now, usual, longer := r.drift.Longer()
	links := k.links[j.Engine.Provider+k.names()]
	k.mu.Unlock()
	if c == nil {
		return ""
	}
	if shape, err := hierarchy.ParseShape(c.Shape); err == nil && links != nil {
		if all, err := r.predict(links, float64(bytes)/4); err == nil && planner.Prefer(all, shape) != shape {
			return fmt.Sprintf("shape %v is faster by now, %s: a new run chooses again", all[0].Shape, explainShapes(all, links))
		}
	}
	if !longer {
		return ""
	}
	duration := func(seconds float64) time.Duration { return time.Duration(seconds * 1e9).Round(10 * time.Microsecond) }
	return fmt.Sprintf("a step takes %v and took %v at first: if a link has changed, measure all (rackweave probe --cluster), and a new run chooses again",
		duration(now), duration(usual))
}
