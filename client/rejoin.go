package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"connectrpc.com/connect"

	"github.com/rackweave/rackweave/service/api"
)

const (
	rejoinAgain   = 200 * time.Millisecond // between two tries
	whereaboutsIn = 2 * time.Second        // for an aggregator to say who serves a rack
)

// lasting are the codes of refusals that a later try would meet, too.
var lasting = []connect.Code{connect.CodeInvalidArgument, connect.CodePermissionDenied, connect.CodeUnauthenticated,
	connect.CodeUnimplemented}

// final is an error that a later try would meet, too.
type final struct{ error }

func (f final) Unwrap() error { return f.error }

func lasts(err error) bool {
	return errors.As(err, new(final)) || slices.Contains(lasting, connect.CodeOf(err))
}

// seat is a worker's place in its job, as long as no rack is left out.
type seat struct {
	rank    int
	all     int // workers
	rack    string
	racks   []*api.Aggregator
	workers []uint32 // by rack
}

// Rejoin takes a worker that has failed to the next run of its job, and returns the worker that it is there: of the same rank, with
// the same tensors, at whichever aggregator serves its rack by then. The job goes on as by [Worker.GoOn], from the step that is
// returned; then every worker pulls the parameters. All workers of the job call it. It closes this worker, as [Worker.Close] does,
// and tries until ctx ends (without a deadline: for Config.Timeout). What cannot pass ends it at once: a state that nobody keeps
// any more, or a rack that is lost where the job is to fail. Where jobs go on without a lost rack, workers and ranks are fewer, and
// racks have as many workers as their declared sizes say, or a multiple.
func (w *Worker) Rejoin(ctx context.Context) (next *Worker, step int, err error) {
	_ = w.Close() // it has failed
	if w.several() {
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
	next.seat.keep(&w.seat)
	if err = next.Register(ctx, w.declared); err == nil {
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
	cfg, own := w.cfg, w.seat.own()
	cfg.Rank, cfg.Workers = w.seat.rank, w.seat.all
	for i := range w.seat.racks {
		r := w.seat.racks[(own+1+i)%len(w.seat.racks)]
		if r.Url == "" {
			continue
		}
		at := cfg
		at.Server, at.CA, at.Timeout = r.Url, cmp.Or(r.Ca, cfg.CA), whereaboutsIn
		if r.Rack == w.seat.rack {
			at.Server, at.CA = cfg.Server, cfg.CA
		}
		if s, err := Status(ctx, at); err == nil && s.Membership != nil {
			err = w.seat.place(&cfg, s.Membership)
			return cfg, err
		}
	}
	return cfg, nil
}

// place changes a configuration to what the plan says.
func (s *seat) place(cfg *Config, m *api.Membership) error {
	own, sizes := s.own(), make([]uint32, len(s.racks)) // 0: the rack is out
	for _, h := range m.Racks {
		i := slices.IndexFunc(s.racks, func(r *api.Aggregator) bool { return r.Rack == h.Name })
		if i >= 0 && !h.Out {
			sizes[i] = max(h.Size, 1)
		}
		switch {
		case i < 0:
		case i == own && h.Url == "" && h.Token > 0 && cmp.Or(cfg.OnLoss, m.OnLoss) == "fail":
			return final{fmt.Errorf("%w: none serves rack %q by the plan of epoch %d, and the job is to fail (on-loss: fail): "+
				"start it with --rack %s, and join again", ErrServerLost, h.Name, m.Epoch, h.Name)}
		case i == own && h.Url == "":
			return fmt.Errorf("%w: none serves rack %q by the plan of epoch %d: start it with --rack %s", ErrServerLost, h.Name, m.Epoch, h.Name)
		case i == own && h.Url != s.racks[own].Url:
			cfg.Server, cfg.CA = h.Url, cmp.Or(s.racks[own].Ca, cfg.CA)
		case h.Out:
			cfg.Workers -= int(s.workers[i])
			if i < own {
				cfg.Rank -= int(s.workers[i])
			}
		}
	}
	if cfg.Workers < s.all {
		return s.evenly(sizes)
	}
	return nil
}

// evenly refuses racks of which one has more workers for its size than another: with fewer racks they would be divided otherwise
// than they are.
func (s *seat) evenly(sizes []uint32) error {
	first := slices.IndexFunc(sizes, func(n uint32) bool { return n > 0 })
	for i, n := range sizes {
		if n > 0 && s.workers[i]*sizes[first] != s.workers[first]*n {
			return final{fmt.Errorf("racks %q and %q have %d and %d workers, by sizes %d and %d: to go on without another, "+
				"declare as a rack's size how many workers it has, and join again", s.racks[first].Rack, s.racks[i].Rack,
				s.workers[first], s.workers[i], sizes[first], n)}
		}
	}
	return nil
}

// own is the number of the worker's rack.
func (s *seat) own() int {
	return slices.IndexFunc(s.racks, func(r *api.Aggregator) bool { return r.Rack == s.rack })
}

// keep makes the seat the one of a run before, with what is known of aggregators now.
func (s *seat) keep(before *seat) {
	now := s.racks
	*s = *before
	s.racks = slices.Clone(s.racks)
	for i, r := range s.racks {
		for _, n := range now {
			if n.Rack == r.Rack && n.Url != "" {
				s.racks[i] = n
			}
		}
	}
}
