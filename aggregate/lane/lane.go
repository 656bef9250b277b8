package lane

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/rackweave/rackweave/verbs"
)

var (
	// ErrClosed is returned for work on a lane that has ended.
	ErrClosed    = errors.New("closed")
	ErrFull      = errors.New("aggregator is full")
	ErrQueueLost = errors.New("completion queue lost")
)

// Config places a lane.
type Config struct {
	Device *verbs.Device
	NIC    int // index of the device's NIC in the plan
	CPU    int // if negative, the lane is not pinned
	Node   int // NUMA node of its memory; if negative, any
}

// Options holds the options that all lanes of an engine share.
type Options struct {
	NICs     []*verbs.Device // a connection can be on any of them
	Window   int             // slots per worker
	MaxConns int             // connections per lane
	Now      func() int64    // the clock, in ns
	// Manual lanes have no goroutine. Their owner calls Step and Tick, and Do runs at once.
	Manual bool
	// Watch wraps every command, for measurements. If nil, commands run bare.
	Watch func(func() error) func() error
}

// Lane is one core's loop.
type Lane struct {
	Config
	Options
	Index  int        // in the plan
	Attr   verbs.Attr // of the lane's own NIC
	Depths Depths
	Placed atomic.Int64 // bytes of all jobs' chunks in the lane

	// Stamp is the time at which the round began, Count what tenants count. Only the lane's goroutine uses them.
	Stamp int64
	Count Counters

	queues   queues
	conns    table
	flows    flows
	dirty    []*Conn // with messages to post or receives to replenish
	broken   bool    // a connection may have broken since the lane last checked
	serving  *Flow   // if nil, the lane works for no flow
	idle     int     // empty rounds
	last     int64   // ns, the last time at which counters were published
	commands commands

	published published
	ending    atomic.Bool
	done      chan struct{}
	err       error // the reason for the end of the loop, valid after done
}

type published struct {
	mu    sync.Mutex
	count Counters
	on    []int // connections by NIC
}

// New makes a lane. Start runs it, unless it is manual.
func New(index int, cfg Config, o Options) (*Lane, error) {
	attr := cfg.Device.Attr()
	maxQPWR, maxCQE := attr.MaxQPWR, attr.MaxCQE
	for _, nic := range o.NICs {
		maxQPWR, maxCQE = min(maxQPWR, nic.Attr().MaxQPWR), min(maxCQE, nic.Attr().MaxCQE)
	}
	d, err := QueueDepths(o.Window, o.MaxConns, maxQPWR, maxCQE)
	if err != nil {
		return nil, fmt.Errorf("lane %d on %s: %w", index, attr.Name, err)
	}
	l := &Lane{
		Config: cfg, Options: o, Index: index, Attr: attr, Depths: d,
		published: published{on: make([]int, len(o.NICs))}, done: make(chan struct{}),
	}
	l.queues = queues{l: l, primary: slices.Index(o.NICs, cfg.Device), lost: make([]bool, len(o.NICs)), on: make([]int, len(o.NICs))}
	l.flows.l = l
	l.commands.l = l
	for _, nic := range o.NICs {
		cq, err := nic.CreateCQ(d.CQ)
		if err != nil {
			return nil, errors.Join(err, l.Close())
		}
		l.queues.cqs = append(l.queues.cqs, cq)
	}
	return l, nil
}

// Counters returns the counters that the lane published last. A manual lane publishes them in this call.
func (l *Lane) Counters() Counters {
	if l.Manual {
		l.Publish()
	}
	l.published.mu.Lock()
	defer l.published.mu.Unlock()
	return l.published.count
}

// Connections returns the number of the lane's connections on a NIC when it published last.
func (l *Lane) Connections(nic int) int {
	l.published.mu.Lock()
	defer l.published.mu.Unlock()
	return l.published.on[nic]
}

// Publish copies the counters for other goroutines. It is called on the lane's goroutine.
func (l *Lane) Publish() {
	l.last = l.Stamp
	l.Count.SlotsHeld, l.Count.FoldsOpen, l.Count.Doorbells = 0, 0, l.conns.doorbells()
	for _, f := range l.flows.all {
		if !f.borrowed {
			l.serving = f
			f.tenant.Publish(&l.Count)
		}
	}
	l.published.mu.Lock()
	defer l.published.mu.Unlock()
	copy(l.published.on, l.queues.on)
	l.published.count = l.Count
}

// Join gives a tenant a place in the lane. weight is its share of the lane relative to other tenants', from 1.
func (l *Lane) Join(t Tenant, weight int) *Flow {
	return &Flow{lane: l, tenant: t, weight: uint64(weight)}
}

// Enter begins to serve a flow. It is called on the lane's goroutine.
func (f *Flow) Enter() { f.lane.flows.all = append(f.lane.flows.all, f) }

// Leave drops the flow's connections and ends its service. It is called on the lane's goroutine.
func (f *Flow) Leave() error {
	l := f.lane
	var errs []error
	for _, c := range l.conns.of(f) {
		errs = append(errs, l.Drop(c))
	}
	l.flows.forget(f)
	return errors.Join(errs...)
}

// Broke makes the lane call its tenants' Recover. It is called on the lane's goroutine.
func (l *Lane) Broke() { l.broken = true }

// Close frees the lane's completion queues. The lane must have ended, and must have no connections.
func (l *Lane) Close() error {
	var errs []error
	for _, cq := range l.queues.cqs {
		errs = append(errs, cq.Close())
	}
	return errors.Join(errs...)
}
