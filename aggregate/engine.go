package aggregate

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/rackweave/rackweave/verbs"
)

// Engine is the aggregator: devices, lanes, and the jobs they serve.
type Engine struct {
	cfg     Config
	devices []*verbs.Device
	lanes   []*Lane
	running bool       // the lanes have goroutines
	balance *balancing // nil: chunks stay, unless [Job.Move] says otherwise
}

// Start makes an engine and starts its lanes. The devices stay the caller's.
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
		l, err := newLane(i, lc, e.devices, cfg)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("start aggregator: %w", err), e.Close())
		}
		e.lanes = append(e.lanes, l)
	}
	if !cfg.Manual {
		e.running = true
		spare(len(e.lanes))
		pinned := make(chan error, len(e.lanes))
		for _, l := range e.lanes {
			go l.run(pinned)
		}
		var errs []error
		for range e.lanes {
			errs = append(errs, <-pinned)
		}
		if err := errors.Join(errs...); err != nil {
			return nil, errors.Join(fmt.Errorf("start aggregator: %w", err), e.Close())
		}
		if cfg.Balance > 0 && len(e.lanes) > 1 {
			e.balance = newBalancing(cfg.Lanes)
			go e.balance.run(cfg.Balance)
		}
	}
	return e, nil
}

// complete fills in what was left to be chosen.
func (cfg Config) complete() Config {
	byReference := true
	for _, l := range cfg.Lanes {
		byReference = byReference && l.Device.Attr().Has(verbs.DevByReference)
	}
	if cfg.Window == 0 {
		cfg.Window = DefaultWindow
		if byReference {
			cfg.Window = ByReferenceWindow
		}
	}
	if cfg.MaxConns == 0 {
		cfg.MaxConns = DefaultMaxConns
	}
	switch cfg.Spin {
	case -1:
		cfg.Spin = 0
	case 0:
		cfg.Spin = DefaultSpin
	}
	if cfg.PeerDeadline == 0 {
		cfg.PeerDeadline = DefaultPeerDeadline
	}
	if cfg.LinkTimeout == 0 {
		cfg.LinkTimeout = DefaultLinkTimeout
	}
	if cfg.Balance == 0 {
		cfg.Balance = DefaultBalance
	}
	if cfg.Now == nil {
		start := time.Now()
		cfg.Now = func() int64 { return int64(time.Since(start)) }
	}
	return cfg
}

var sparing sync.Mutex

// spare gives the process n processors of Go's more, or takes them back. Lanes live in C: were all processors in calls, the
// runtime's monitor would look every 20 us, take one away and start a thread for it, which finds nothing to do.
func spare(n int) {
	sparing.Lock()
	defer sparing.Unlock()
	runtime.GOMAXPROCS(runtime.GOMAXPROCS(0) + n)
}

// NewJob makes a job without tensors or workers.
func (e *Engine) NewJob(c JobConfig) (*Job, error) {
	j, err := newJob(c, e.lanes, e.devices, e.cfg.Window, timeouts{peer: e.cfg.PeerDeadline, link: e.cfg.LinkTimeout})
	if err == nil && e.balance != nil {
		e.balance.add(j)
		j.closing = func() { e.balance.remove(j) }
	}
	return j, err
}

// Lanes returns the engine's lanes, in the plan's order.
func (e *Engine) Lanes() []*Lane { return e.lanes }

// Placed returns the bytes of all jobs' chunks in each lane: a new job's go where there are fewer.
func (e *Engine) Placed() []uint64 {
	out := make([]uint64, len(e.lanes))
	for i, l := range e.lanes {
		out[i] = uint64(l.placed.Load())
	}
	return out
}

// Window returns the slots per worker and lane.
func (e *Engine) Window() int { return e.cfg.Window }

// NICs returns the engine's devices. A connection can be on any of them ([Job.Resume]).
func (e *Engine) NICs() []*verbs.Device { return e.devices }

// Connections is how many connections are on a device, and how many of those belong to lanes of other devices, as the lanes
// last published it.
func (e *Engine) Connections(d *verbs.Device) (all, guests int) {
	nic := slices.Index(e.devices, d)
	for _, l := range e.lanes {
		if nic < 0 {
			break
		}
		l.mu.Lock()
		n := l.publishedOn[nic]
		l.mu.Unlock()
		if all += n; nic != l.primary {
			guests += n
		}
	}
	return all, guests
}

// Close stops the lanes. Jobs must be closed first.
func (e *Engine) Close() error {
	var errs []error
	if e.balance != nil {
		e.balance.close()
	}
	for _, l := range e.lanes {
		if e.running {
			l.stop()
		}
		errs = append(errs, l.err, l.close())
	}
	if e.running {
		spare(-len(e.lanes))
	}
	return errors.Join(errs...)
}
