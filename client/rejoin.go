package client

import (
	"cmp"
	"context"
	"fmt"
	"time"
)

const (
	rejoinAgain   = 200 * time.Millisecond // between two tries
	whereaboutsIn = 2 * time.Second        // for an aggregator's answer about the server of a rack
)

// Rejoin takes a worker that has failed to the next run of its job, and returns the worker that it is there: of the same rank, with
// the same tensors, at whichever aggregator serves its rack by then. The job goes on as by [Worker.GoOn], from the step that is
// returned; then every worker pulls the parameters. All workers of the job call it. It closes this worker, as [Worker.Close] does,
// and tries until ctx ends (without a deadline: for Config.Timeout). It returns at once if no aggregator keeps the job's
// state, or if a rack is lost in a job that must then fail. Where jobs go on without a lost rack, workers and ranks are
// fewer, and racks have as many workers as their declared sizes say, or a multiple.
func (w *Worker) Rejoin(ctx context.Context) (next *Worker, step int, err error) {
	_ = w.Close() // it has failed
	if w.member.Several() {
		return nil, 0, fmt.Errorf("rejoin job %q: it is spread over several aggregators: join it again, and restore a checkpoint", w.cfg.Job)
	}
	if _, bounded := ctx.Deadline(); !bounded {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, w.cfg.Timeout)
		defer cancel()
	}
	for {
		next, step, passes, err := w.rejoin(ctx)
		if err == nil {
			return next, step, nil
		}
		if passes {
			select {
			case <-time.After(rejoinAgain):
				continue
			case <-ctx.Done():
			}
		}
		return nil, 0, fmt.Errorf("rejoin job %q: %w", w.cfg.Job, err)
	}
}

// rejoin tries once. It reports whether a later try may succeed.
func (w *Worker) rejoin(ctx context.Context) (next *Worker, step int, passes bool, err error) {
	cfg, err := w.whereNow(ctx)
	if err != nil {
		return nil, 0, !lasts(err), err
	}
	if next, err = Join(ctx, cfg); err != nil {
		return nil, 0, !lasts(err), err
	}
	next.place.keep(&w.place)
	if err = next.Register(ctx, w.registered()); err == nil {
		step, err = next.GoOn(ctx)
	}
	if err != nil {
		passes = next.Err() != nil // all workers find that, or none does
		_ = next.Close()
		return nil, 0, passes, err
	}
	return next, step, false, nil
}

// whereNow returns the configuration to join with now. It asks the aggregators of the job's racks, from the one after this
// worker's own: the own one is likely to be gone.
func (w *Worker) whereNow(ctx context.Context) (Config, error) {
	cfg, own := w.cfg, w.place.own()
	cfg.Rank, cfg.Workers = w.place.rank, w.place.all
	for i := range w.place.racks {
		r := w.place.racks[(own+1+i)%len(w.place.racks)]
		if r.Url == "" {
			continue
		}
		at := cfg
		at.Server, at.CA, at.Timeout = r.Url, cmp.Or(r.Ca, cfg.CA), whereaboutsIn
		if r.Rack == w.place.rack {
			at.Server, at.CA = cfg.Server, cfg.CA
		}
		if s, err := Status(ctx, at); err == nil && s.Membership != nil {
			err = w.place.follow(&cfg, s.Membership)
			return cfg, err
		}
	}
	return cfg, nil
}
