package service

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/rackweave/rackweave/aggregate"
	"github.com/rackweave/rackweave/hierarchy"
)

const (
	// A window has at least so many steps, and lasts at least so long.
	windowLasts = time.Second
	windowSteps = 4
	// How long racks send in all rounds of a measurement that holds a job, unless links are slow, and what bounds it.
	heldRounds  = time.Second
	measureHeld = 7 * time.Second
)

// watching is what the jobs of an aggregator use to notice that links change.
type watching struct {
	window  time.Duration // the least
	measure func(k *cluster, ctx context.Context, s *Service, provider string, rounds time.Duration) (*hierarchy.Links, error)
	busy    sync.Mutex // held while links are measured for a job
}

// window is a stretch of a job's steps.
type window struct {
	began  time.Time
	chunks uint64 // gradients that its first worker here had pushed by then
	model  int    // chunks of a step
}

// step returns what a step took in the window, and begins the next one, if this one is full.
func (w *window) step(now time.Time, chunks uint64, least time.Duration) (seconds float64, full bool) {
	took, steps := now.Sub(w.began), float64(chunks-w.chunks)/float64(w.model)
	if took < least || steps < windowSteps {
		return 0, false
	}
	w.began, w.chunks = now, chunks
	return took.Seconds() / steps, true
}

// ways are the shapes that the job can go over to while it runs, with its own.
func (j *job) ways() []hierarchy.Shape {
	if j.spec.mode != aggregate.Eager && j.spec.mode != aggregate.Aggregate || j.spec.outer.Every > 0 {
		return nil
	}
	return slices.DeleteFunc(j.spec.racks.topology.Ways(j.shape()), func(s hierarchy.Shape) bool { return j.mayTake(s) != nil })
}

// watchLinks has the racks of a job, whose shape the links chose, go over to another when a link changes for good. Until steps
// take another time than they did, that costs nothing.
func (j *job) watchLinks() {
	ctx, cancel := j.unlessOver(context.Background(), j.ended)
	defer cancel()
	watch := &j.spec.racks.watching
	tick := time.NewTicker(watch.window / 4)
	defer tick.Stop()
	var w window
	var d hierarchy.Drift
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if j.shapeWasAsked() {
			return // a shape that somebody asked for stays
		}
		chunks, model, ok := j.pushed()
		if !ok {
			continue
		}
		if model != w.model || chunks < w.chunks {
			w, d = window{time.Now(), chunks, model}, hierarchy.Drift{}
			continue
		}
		step, full := w.step(time.Now(), chunks, watch.window)
		if !full || !d.Window(j.age(), step, j.shape() != hierarchy.Sharded) {
			continue
		}
		j.s.log.Info("steps take another time than they did: measuring the links between racks", "job", j.name, "step_seconds", step)
		if changed, err := j.replan(ctx); err == nil {
			d.Measured(j.age(), changed)
		} else if ctx.Err() == nil {
			j.s.log.Warn("the shape was not chosen anew", "job", j.name, "err", err)
			d.Failed(j.age())
		}
		if chunks, model, ok = j.pushed(); ok {
			w = window{time.Now(), chunks, model}
		}
	}
}

func (j *job) age() float64 { return time.Since(j.born).Seconds() }

// shapeWasAsked reports whether somebody has asked for the job's shape.
func (j *job) shapeWasAsked() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.shapeAsked
}

// pushed returns how many gradients of chunks this rack's first worker has pushed, and how many a step has.
func (j *job) pushed() (chunks uint64, model int, ok bool) {
	if !j.model.TryRLock() {
		return 0, 0, false
	}
	model = j.plan.NumChunks()
	j.model.RUnlock()
	return j.agg.WorkerCounters()[0].Chunks, model, model > 0
}

// replan measures the links while all racks hold, so that the job's own bytes are not in the way, and has the racks go over to the
// shape that is the fastest now.
func (j *job) replan(ctx context.Context) (changed bool, err error) {
	k, was := j.spec.racks, j.shape()
	if !k.watching.busy.TryLock() {
		return false, errors.New("they are being measured for another job")
	}
	defer k.watching.busy.Unlock()
	err = j.reshape(ctx, func(ctx context.Context) (hierarchy.Shape, string, error) {
		ctx, cancel := context.WithTimeout(ctx, measureHeld)
		defer cancel()
		j.calm(ctx)
		links, err := k.watching.measure(k, ctx, j.s, j.engine.provider, heldRounds)
		if err != nil {
			return was, "", err
		}
		j.linkMeasurements.Add(1)
		j.mu.Lock()
		elems := float64(j.modelBytes) / 4
		j.mu.Unlock()
		all, err := j.predict(links, elems)
		if err != nil {
			return was, "", err
		}
		ways := j.ways()
		all = slices.DeleteFunc(all, func(p hierarchy.Prediction) bool { return p.Unfit != nil || !slices.Contains(ways, p.Shape) })
		if len(all) == 0 {
			return was, "", errors.New("no shape fits any more")
		}
		to, why := hierarchy.Prefer(all, was), explainShapes(all, links)
		if to == was {
			j.s.log.Info("shape stays", "job", j.name, "shape", was.String(), "because", why)
		}
		return to, "a link changed: " + why, nil
	})
	return j.shape() != was, err
}

// calm waits until what is under way between racks has arrived, but not for long.
func (j *job) calm(ctx context.Context) {
	crossed := func() (bytes uint64) {
		for _, c := range j.agg.RackCounters() {
			bytes += c.RecvBytes + c.SentBytes
		}
		return bytes
	}
	for range 20 {
		before := crossed()
		select {
		case <-ctx.Done():
			return
		case <-time.After(100 * time.Millisecond): // an idle lane publishes its counters as often
		}
		if crossed() == before {
			return
		}
	}
}
