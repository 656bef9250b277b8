// Package probe measures the links between aggregators, and between one and a worker's host: how fast writes go from one to the
// other, and how soon one is acknowledged. It uses queue pairs and memory of its own on a device that jobs use, too.
package probe

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/rackweave/rackweave/numa"
	"github.com/rackweave/rackweave/verbs"
)

const (
	// message is the length of a write whose rate is measured, and window how many are under way.
	message = 32 << 10
	window  = 16
	// pings is how many writes latency is the least of: what others do meanwhile only adds to it.
	pings = 16
	// mostBytes ends a measurement of a fast link before its time.
	mostBytes = 2 << 30
	// enough is how many writes a rate is made of, unless that takes longer than slow times as long: links hold back hundreds of
	// kilobytes and let them go at once.
	enough     = 128
	slow       = 5
	patience   = 2 * time.Second
	connecting = 5 * time.Second
	idle       = 20 * time.Millisecond // between two looks of who waits for a peer's messages
)

// ErrLink is wrapped by errors about a link that cannot be measured.
var ErrLink = errors.New("link cannot be measured")

var errEnded = errors.New("the measurement has ended")

// End is what another host needs to write here.
type End struct {
	Endpoint []byte
	Addr     uint64
	RKey     uint32
}

// link is the connection to one other host.
type link struct {
	qp     *verbs.QP
	theirs End
	broken error // nil: it is not
}

// Prober is one host's end of a measurement. Any goroutine may call its methods.
type Prober struct {
	pd    *verbs.PD
	cq    *verbs.CQ
	arena *numa.Arena
	mr    *verbs.MR
	links map[int]*link
	wc    [2 * window]verbs.WC
	wr    [1]verbs.SendWR
	sent  int // writes that have arrived since the last look

	calls chan func()
	stop  chan struct{}
	ended chan struct{} // nil: the goroutine has not started
	using sync.RWMutex  // read-locked by who may wake the queue, locked to close it
}

// Open makes an end for each of other hosts, which are named by numbers.
func Open(d *verbs.Device, others []int) (p *Prober, ends map[int]End, err error) {
	p = &Prober{links: map[int]*link{}, calls: make(chan func()), stop: make(chan struct{})}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("probe over %s: %w", d.Attr().Name, err), p.Close())
			p = nil
		}
	}()
	if p.arena, err = numa.NewArena(numa.ArenaConfig{Name: "probe", Bytes: 2 * message, Node: numa.AnyNode}); err != nil {
		return p, nil, err
	}
	if p.pd, err = d.AllocPD(); err != nil {
		return p, nil, err
	}
	access := verbs.AccessLocalWrite | verbs.AccessRemoteWrite
	mr, err := p.pd.RegisterMR(p.arena.Addr(), uint64(p.arena.Len()), access, p.arena.FD(), 0)
	if err != nil {
		return p, nil, err
	}
	p.mr = &mr
	if p.cq, err = d.CreateCQ(len(others)*2*(window+1) + 1); err != nil {
		return p, nil, err
	}
	ends = map[int]End{}
	for _, other := range others {
		l := &link{}
		l.qp, err = p.pd.CreateQP(verbs.QPConfig{SendCQ: p.cq, RecvCQ: p.cq, MaxSendWR: window, MaxRecvWR: 1})
		if err != nil {
			return p, nil, err
		}
		p.links[other] = l
		e := End{Addr: mr.Addr + message, RKey: mr.RKey} // the first half is what this end sends
		if e.Endpoint, err = l.qp.Endpoint(); err != nil {
			return p, nil, err
		}
		ends[other] = e
	}
	p.ended = make(chan struct{})
	go p.run()
	return p, ends, nil
}

// Close ends a measurement.
func (p *Prober) Close() error {
	if p.ended != nil {
		close(p.stop)
		p.cq.Wake()
		<-p.ended
		p.using.Lock()
		defer p.using.Unlock()
	}
	var errs []error
	for _, l := range p.links {
		if l.qp != nil {
			errs = append(errs, l.qp.Close())
		}
	}
	if p.cq != nil {
		errs = append(errs, p.cq.Close())
	}
	if p.mr != nil {
		errs = append(errs, p.pd.DeregisterMR(*p.mr))
	}
	if p.pd != nil {
		errs = append(errs, p.pd.Close())
	}
	if p.arena != nil {
		errs = append(errs, p.arena.Close())
	}
	return errors.Join(errs...)
}

// run owns the queue pairs: it takes what arrives, and makes the calls.
func (p *Prober) run() {
	defer close(p.ended)
	for {
		select {
		case <-p.stop:
			return
		case f := <-p.calls:
			f()
			continue
		default:
		}
		if err := p.progress(idle); err != nil {
			for _, l := range p.links {
				l.broken = err
			}
			select { // nothing arrives any more
			case <-p.stop:
				return
			case f := <-p.calls:
				f()
			}
		}
	}
}

// do runs f on the goroutine that owns the queue pairs.
func (p *Prober) do(ctx context.Context, f func() error) error {
	p.using.RLock()
	defer p.using.RUnlock()
	select {
	case <-p.stop:
		return errEnded
	default:
	}
	answer, woken := make(chan error, 1), make(chan struct{})
	cancelled := context.AfterFunc(ctx, func() {
		defer close(woken)
		p.cq.Wake()
	})
	defer func() {
		if !cancelled() {
			<-woken
		}
	}()
	p.cq.Wake()
	select {
	case p.calls <- func() { answer <- f() }:
		return <-answer
	case <-ctx.Done():
		return ctx.Err()
	case <-p.stop:
		return errEnded
	}
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

// Join connects to another host's end. Of the two one is active, once the other has joined.
func (p *Prober) Join(ctx context.Context, other int, theirs End, active bool) error {
	return p.do(ctx, func() error {
		l := p.links[other]
		if l == nil {
			return fmt.Errorf("%w: no end was made for it", ErrLink)
		}
		l.theirs = theirs
		how := verbs.ConnectConfig{Active: active, Timeout: connecting, Cancel: ctx.Done()}
		if err := l.qp.Connect(theirs.Endpoint, how); err != nil {
			return fmt.Errorf("%w: %w", ErrLink, err)
		}
		return nil
	})
}

// ready returns a link once it is connected.
func (p *Prober) ready(ctx context.Context, other int) (*link, error) {
	l := p.links[other]
	if l == nil {
		return nil, fmt.Errorf("%w: no end was made for it", ErrLink)
	}
	for l.qp.State() != verbs.StateRTS {
		err := cmp.Or(l.broken, context.Cause(ctx))
		if err == nil && l.qp.State() == verbs.StateErr {
			err = errors.New("it broke")
		}
		if err != nil {
			return nil, fmt.Errorf("%w: it does not connect: %w", ErrLink, err)
		}
		if err := p.progress(time.Millisecond); err != nil {
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

// arrive waits until some of the writes under way have arrived, and returns how many.
func (p *Prober) arrive(ctx context.Context, l *link, until time.Time) (int, error) {
	p.sent = 0
	for p.sent == 0 {
		if err := p.progress(time.Millisecond); err != nil {
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

// Latency measures how long a small write takes one way, as half of what passes until it is acknowledged.
func (p *Prober) Latency(ctx context.Context, other int) (least time.Duration, err error) {
	err = p.do(ctx, func() error {
		l, err := p.ready(ctx, other)
		if err != nil {
			return err
		}
		until := time.Now().Add(patience)
		for i := range pings {
			binary.LittleEndian.PutUint64(p.arena.Bytes(), uint64(i))
			began := time.Now()
			if err := p.write(l, 8); err != nil {
				return err
			}
			if _, err := p.arrive(ctx, l, until); err != nil {
				return err
			}
			if took := time.Since(began) / 2; i == 0 || took < least {
				least = took
			}
		}
		return nil
	})
	return least, err
}

// Rate measures how many bytes per second writes carry, for a while, or up to 5 times as long where the link is slow. The first
// third of it does not count: until then a link may give what it has saved up while it was idle.
func (p *Prober) Rate(ctx context.Context, other int, lasts time.Duration) (rate float64, err error) {
	err = p.do(ctx, func() (err error) {
		l, err := p.ready(ctx, other)
		if err == nil {
			rate, err = p.stream(ctx, l, lasts)
		}
		return err
	})
	return rate, err
}

func (p *Prober) stream(ctx context.Context, l *link, lasts time.Duration) (float64, error) {
	began := time.Now()
	last := began.Add(slow*lasts + patience)
	var from, now time.Time // when what counts began, and when the last of it arrived
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
