// Package probe measures the links between aggregators: the rate of writes from one to the other, and the time until a write is
// acknowledged. It uses queue pairs and memory of its own on a device that jobs also use.
package probe

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/rackweave/rackweave/numa"
	"github.com/rackweave/rackweave/verbs"
)

const (
	// message is the length of a write whose rate is measured, and window the number of writes under way.
	message = 32 << 10
	window  = 16
	// pings is the number of writes of which latency is the least. Other traffic only adds to it.
	pings = 16
	// mostBytes ends a measurement of a fast link before its time.
	mostBytes = 2 << 30
	// enough is the number of writes for a rate, unless they take slow times as long as the measurement. Links hold back hundreds of
	// kilobytes and release them at once.
	enough     = 128
	slow       = 5
	patience   = 2 * time.Second
	connecting = 5 * time.Second
	idle       = time.Millisecond // for which an end that waits for a peer's messages keeps calls waiting
)

// ErrLink is wrapped by errors about a link that cannot be measured.
var ErrLink = errors.New("link cannot be measured")

var errEnded = errors.New("the measurement has ended")

// End is the information that another host needs to write here.
type End struct {
	Endpoint []byte
	URL      string // of its aggregator, between racks
	Addr     uint64
	RKey     uint32
}

// link is the connection to one other host.
type link struct {
	qp     *verbs.QP
	theirs End
	broken error // nil while the link works
}

// Prober is one host's end of a measurement. Any goroutine may call its methods.
type Prober struct {
	mu     sync.Mutex // held to use the queue pairs
	closed bool
	polled chan struct{} // closed when the goroutine that polls between calls has ended; nil until it starts

	cq    *verbs.CQ
	arena *numa.Arena
	mr    verbs.MR
	links map[int]*link
	undo  []func() error // closes what was opened, last first
	wc    [2 * window]verbs.WC
	wr    [1]verbs.SendWR
	sent  int // writes that have arrived since the last poll
}

// Open makes an end for each of the other hosts, which are identified by numbers.
func Open(d *verbs.Device, others []int) (p *Prober, ends map[int]End, err error) {
	p = &Prober{links: map[int]*link{}}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("probe over %s: %w", d.Attr().Name, err), p.Close())
			p = nil
		}
	}()
	if p.arena, err = numa.NewArena(numa.ArenaConfig{Name: "probe", Bytes: 2 * message, Node: numa.AnyNode}); err != nil {
		return p, nil, err
	}
	p.undo = append(p.undo, p.arena.Close)
	pd, err := d.AllocPD()
	if err != nil {
		return p, nil, err
	}
	p.undo = append(p.undo, pd.Close)
	access := verbs.AccessLocalWrite | verbs.AccessRemoteWrite
	if p.mr, err = pd.RegisterMR(p.arena.Addr(), uint64(p.arena.Len()), access, p.arena.FD(), 0); err != nil {
		return p, nil, err
	}
	p.undo = append(p.undo, func() error { return pd.DeregisterMR(p.mr) })
	if p.cq, err = d.CreateCQ(len(others)*2*(window+1) + 1); err != nil {
		return p, nil, err
	}
	p.undo = append(p.undo, p.cq.Close)
	ends = map[int]End{}
	for _, other := range others {
		l := &link{}
		if l.qp, err = pd.CreateQP(verbs.QPConfig{CQ: p.cq, MaxSendWR: window, MaxRecvWR: 1}); err != nil {
			return p, nil, err
		}
		p.undo = append(p.undo, l.qp.Close)
		p.links[other] = l
		e := End{Addr: p.mr.Addr + message, RKey: p.mr.RKey} // this end sends from the first half
		if e.Endpoint, err = l.qp.Endpoint(); err != nil {
			return p, nil, err
		}
		ends[other] = e
	}
	p.polled = make(chan struct{})
	go func() {
		defer close(p.polled)
		for p.poll() {
		}
	}()
	return p, ends, nil
}

// Close ends a measurement.
func (p *Prober) Close() error {
	if p.polled != nil {
		p.mu.Lock()
		p.closed = true
		p.mu.Unlock()
		<-p.polled
	}
	var errs []error
	for _, undo := range slices.Backward(p.undo) {
		errs = append(errs, undo())
	}
	return errors.Join(errs...)
}

// poll takes messages of peers between calls, and reports whether there may be more.
func (p *Prober) poll() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	err := p.progress(idle)
	for _, l := range p.links {
		l.broken = cmp.Or(l.broken, err)
	}
	return err == nil
}

// progress takes completions, or waits a while for some.
func (p *Prober) progress(wait time.Duration) error {
	n, err := p.cq.Poll(p.wc[:])
	if n == 0 && err == nil && wait > 0 {
		if err = p.cq.Arm(1); err != nil {
			return err
		}
		if n, err = p.cq.Poll(p.wc[:]); n == 0 && err == nil {
			_, err = p.cq.Wait(wait)
			return err
		}
	}
	for _, c := range p.wc[:n] {
		if c.Status == verbs.WCSuccess {
			p.sent++
			continue
		}
		for _, l := range p.links {
			if l.qp.Num() == c.QPNum {
				l.broken = fmt.Errorf("%w: it broke: %v", ErrLink, c.Status)
			}
		}
	}
	return err
}

// to returns the link to another host. The caller holds p.mu.
func (p *Prober) to(other int) (*link, error) {
	switch l := p.links[other]; {
	case p.closed:
		return nil, errEnded
	case l == nil:
		return nil, fmt.Errorf("%w: no end was made for it", ErrLink)
	default:
		return l, nil
	}
}

// Join connects to another host's end. The active one of the two calls it after the other has joined.
func (p *Prober) Join(ctx context.Context, other int, theirs End, active bool) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	l, err := p.to(other)
	if err != nil {
		return err
	}
	l.theirs = theirs
	how := verbs.ConnectConfig{Active: active, Timeout: connecting, Cancel: ctx.Done()}
	if err := l.qp.Connect(theirs.Endpoint, how); err != nil {
		return fmt.Errorf("%w: %w", ErrLink, err)
	}
	return nil
}

// ready returns a link after it is connected.
func (p *Prober) ready(ctx context.Context, other int) (*link, error) {
	l, err := p.to(other)
	if err != nil {
		return nil, err
	}
	for l.qp.State() != verbs.StateRTS {
		err := cmp.Or(l.broken, context.Cause(ctx))
		if err == nil && l.qp.State() == verbs.StateErr {
			err = errors.New("it broke")
		}
		if err != nil {
			return nil, fmt.Errorf("%w: it does not connect: %w", ErrLink, err)
		}
		if err := p.progress(idle); err != nil {
			return nil, err
		}
	}
	return l, nil
}

// write posts a write of so many bytes.
func (p *Prober) write(l *link, bytes uint32) error {
	p.wr[0] = verbs.SendWR{LAddr: p.mr.Addr, LKey: p.mr.LKey, RAddr: l.theirs.Addr, RKey: l.theirs.RKey, Length: bytes,
		Opcode: verbs.OpWrite, Flags: verbs.SendSignaled}
	_, err := l.qp.PostSend(p.wr[:])
	return err
}

// arrive waits until some of the writes under way have arrived, and returns their number.
func (p *Prober) arrive(ctx context.Context, l *link, until time.Time) (int, error) {
	p.sent = 0
	for p.sent == 0 {
		if err := p.progress(idle); err != nil {
			return 0, err
		}
		switch {
		case l.broken != nil:
			return 0, l.broken
		case ctx.Err() != nil:
			return 0, fmt.Errorf("%w: %w", ErrLink, context.Cause(ctx))
		case time.Now().After(until):
			return 0, fmt.Errorf("%w: nothing arrived in time", ErrLink)
		}
	}
	return p.sent, nil
}

// Latency measures the time of a small write one way, as half of the time until it is acknowledged.
func (p *Prober) Latency(ctx context.Context, other int) (least time.Duration, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	l, err := p.ready(ctx, other)
	if err != nil {
		return 0, err
	}
	until := time.Now().Add(patience)
	for i := range pings {
		binary.LittleEndian.PutUint64(p.arena.Bytes(), uint64(i))
		began := time.Now()
		if err := p.write(l, 8); err != nil {
			return 0, err
		}
		if _, err := p.arrive(ctx, l, until); err != nil {
			return 0, err
		}
		if took := time.Since(began) / 2; i == 0 || took < least {
			least = took
		}
	}
	return least, nil
}

// Rate measures the rate of writes in bytes per second, for a while, or up to 5 times as long on a slow link. The first third does
// not count, because a link may first spend the burst that it has saved up while it was idle.
func (p *Prober) Rate(ctx context.Context, other int, lasts time.Duration) (float64, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	l, err := p.ready(ctx, other)
	if err != nil {
		return 0, err
	}
	began := time.Now()
	last := began.Add(slow*lasts + patience)
	var from, now time.Time // beginning of the counted part, and arrival of the last write
	under, arrived, counted := 0, 0, 0
	for {
		for ; under < window; under++ {
			if err := p.write(l, message); err != nil {
				return 0, err
			}
		}
		n, err := p.arrive(ctx, l, last)
		if err != nil {
			return 0, err
		}
		now = time.Now()
		under, arrived = under-n, arrived+n
		switch {
		case !from.IsZero():
			counted += n
		case now.Sub(began) >= lasts/3 || arrived*message >= mostBytes/3:
			from = now
		}
		over := now.Sub(began) >= lasts && counted >= enough || arrived*message >= mostBytes
		if counted > 0 && (over || now.Sub(began) >= slow*lasts) {
			break
		}
	}
	for until := time.Now().Add(patience); under > 0; {
		n, err := p.arrive(ctx, l, until)
		if err != nil {
			return 0, err
		}
		under -= n
	}
	return float64(counted*message) / now.Sub(from).Seconds(), nil
}
