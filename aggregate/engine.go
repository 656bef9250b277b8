package aggregate

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/rackweave/rackweave/aggregate/lane"
	"github.com/rackweave/rackweave/aggregate/shard"
	"github.com/rackweave/rackweave/verbs"
)

// Engine is the aggregator: devices, lanes, and the jobs that they serve.
type Engine struct {
	cfg     Config
	devices []*verbs.Device
	lanes   []*Lane
	scratch []*shard.Scratch // by lane
	running bool             // lanes have goroutines
}

// Start makes an engine and starts its lanes. The caller keeps the devices. Lanes are threads that live in C: a caller that knows
// the process should raise GOMAXPROCS by their number, because Go's runtime otherwise takes a processor away from one every 20 us
// in vain.
func Start(cfg Config) (*Engine, error) {
	if len(cfg.Lanes) == 0 {
		return nil, errors.New("start aggregator: no lanes: give it at least one core")
	}
	cfg = cfg.complete()
	e := &Engine{cfg: cfg}
	for _, lc := range cfg.Lanes {
		if !slices.Contains(e.devices, lc.Device) {
			e.devices = append(e.devices, lc.Device)
		}
	}
	for i, lc := range cfg.Lanes {
		l, err := lane.New(i, lc, lane.Options{NICs: e.devices, Window: cfg.Window, MaxConns: cfg.MaxConns,
			Now: cfg.Now, Manual: cfg.Manual, Watch: cfg.Watch})
		var scratch *shard.Scratch
		if err == nil {
			e.lanes = append(e.lanes, l)
			scratch, err = shard.NewScratch()
		}
		if err != nil {
			return nil, errors.Join(fmt.Errorf("start aggregator: %w", err), e.Close())
		}
		e.scratch = append(e.scratch, scratch)
	}
	if !cfg.Manual {
		e.running = true
		pinned := make(chan error, len(e.lanes))
		for _, l := range e.lanes {
			go l.Run(pinned)
		}
		var errs []error
		for range e.lanes {
			errs = append(errs, <-pinned)
		}
		if err := errors.Join(errs...); err != nil {
			return nil, errors.Join(fmt.Errorf("start aggregator: %w", err), e.Close())
		}
	}
	return e, nil
}

// connectTimeout bounds the time in which an attached worker, or another rack's aggregator, must connect.
const connectTimeout = 10 * time.Second

func (cfg Config) complete() Config {
	byReference := true
	for _, l := range cfg.Lanes {
		byReference = byReference && l.Device.Attr().Has(verbs.DevByReference)
	}
	if cfg.Window == 0 && byReference {
		cfg.Window = ByReferenceWindow
	}
	cfg.Window = cmp.Or(cfg.Window, DefaultWindow)
	cfg.MaxConns = cmp.Or(cfg.MaxConns, DefaultMaxConns)
	cfg.LinkTimeout = cmp.Or(cfg.LinkTimeout, DefaultLinkTimeout)
	if cfg.Now == nil {
		start := time.Now()
		cfg.Now = func() int64 { return int64(time.Since(start)) }
	}
	return cfg
}

// NewJob makes a job without tensors or workers.
func (e *Engine) NewJob(c JobConfig) (*Job, error) {
	return newJob(c, site{
		lanes: e.lanes, scratch: e.scratch, devices: e.devices, window: e.cfg.Window,
		timeouts: shard.Timeouts{Peer: connectTimeout, Link: e.cfg.LinkTimeout},
	})
}

// Lanes returns the engine's lanes, in the plan's order.
func (e *Engine) Lanes() []*Lane { return e.lanes }

// Placed returns the bytes of all jobs' chunks in each lane. A new job's chunks go to the lanes with fewer.
func (e *Engine) Placed() []uint64 {
	out := make([]uint64, len(e.lanes))
	for i, l := range e.lanes {
		out[i] = uint64(l.Placed.Load())
	}
	return out
}

// Window returns the slots per worker and lane.
func (e *Engine) Window() int { return e.cfg.Window }

// NICs returns the engine's devices. A connection can be on any of them ([Job.Resume]).
func (e *Engine) NICs() []*verbs.Device { return e.devices }

// Connections returns the number of connections on a device, and the number of them that belong to lanes of other devices, as the
// lanes published them last.
func (e *Engine) Connections(d *verbs.Device) (all, foreign int) {
	nic := slices.Index(e.devices, d)
	for _, l := range e.lanes {
		if nic < 0 {
			break
		}
		n := l.Connections(nic)
		if all += n; nic != l.NIC() {
			foreign += n
		}
	}
	return all, foreign
}

// Close stops the lanes. The caller closes the jobs first.
func (e *Engine) Close() error {
	var errs []error
	for _, l := range e.lanes {
		if e.running {
			errs = append(errs, l.Stop())
		}
		errs = append(errs, l.Close())
	}
	return errors.Join(errs...)
}
