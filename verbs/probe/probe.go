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
	"time"

	"github.com/rackweave/rackweave/numa"
	"github.com/rackweave/rackweave/verbs"
)

const (
	// message is the length of a write whose rate is measured, and window the number of writes under way.
	message = 32 << 10
	window  = 16
	// Latency is the shortest of pings writes. Other traffic only adds to it.
	pings = 16
	// mostBytes ends a measurement of a fast link before its time.
	mostBytes = 2 << 30
	// A rate counts enough writes or more, unless the measurement then takes slow times as long as asked. Links hold back hundreds of
	// kilobytes and release them at once.
	enough     = 128
	slow       = 5
	patience   = 2 * time.Second
	connecting = 5 * time.Second
	idle       = time.Millisecond // between looks at a context
)

// ErrLink is wrapped by errors about a link that cannot be measured.
var ErrLink = errors.New("link cannot be measured")

// End is the information that another host needs to write here.
type End struct {
	Endpoint []byte
	Addr     uint64
	RKey     uint32
}

// Prober is one host's end of a link. One goroutine calls its methods.
type Prober struct {
	End    // this one
	theirs End

	qp    *verbs.QP
	cq    *verbs.CQ
	arena *numa.Arena
	mr    verbs.MR
	undo  []func() error // closes what was opened, last first
	wc    [2 * window]verbs.WC
	wr    [1]verbs.SendWR
	sent  int // writes that have arrived since the last poll
}

// Open makes an end.
func Open(d *verbs.Device) (*Prober, error) {
	p := &Prober{}
	if err := p.open(d); err != nil {
		return nil, errors.Join(fmt.Errorf("probe over %s: %w", d.Attr().Name, err), p.Close())
	}
	return p, nil
}

func (p *Prober) open(d *verbs.Device) (err error) {
	if p.arena, err = numa.NewArena(numa.ArenaConfig{Name: "probe", Bytes: 2 * message, Node: numa.AnyNode}); err != nil {
		return err
	}
	p.undo = append(p.undo, p.arena.Close)
	pd, err := d.AllocPD()
	if err != nil {
		return err
	}
	p.undo = append(p.undo, pd.Close)
	access := verbs.AccessLocalWrite | verbs.AccessRemoteWrite
	if p.mr, err = pd.RegisterMR(p.arena.Addr(), uint64(p.arena.Len()), access, p.arena.FD(), 0); err != nil {
		return err
	}
	p.undo = append(p.undo, func() error { return pd.DeregisterMR(p.mr) })
	if p.cq, err = d.CreateCQ(2*(window+1) + 1); err != nil {
		return err
	}
	p.undo = append(p.undo, p.cq.Close)
	if p.qp, err = pd.CreateQP(verbs.QPConfig{CQ: p.cq, MaxSendWR: window, MaxRecvWR: 1}); err != nil {
		return err
	}
	p.undo = append(p.undo, p.qp.Close)
	p.Addr, p.RKey = p.mr.Addr+message, p.mr.RKey // this end sends from the first half
	p.Endpoint, err = p.qp.Endpoint()
	return err
}

// Close closes the end.
func (p *Prober) Close() error {
	var errs []error
	for _, undo := range slices.Backward(p.undo) {
		errs = append(errs, undo())
	}
	return errors.Join(errs...)
}

// progress takes completions, or waits a while for some.
func (p *Prober) progress() error {
	n, err := p.cq.Poll(p.wc[:])
	if n == 0 && err == nil {
		if err = p.cq.Arm(1); err != nil {
			return err
		}
		if n, err = p.cq.Poll(p.wc[:]); n == 0 && err == nil {
			_, err = p.cq.Wait(idle)
			return err
		}
	}
	for _, c := range p.wc[:n] {
		if c.Status != verbs.WCSuccess {
			return fmt.Errorf("%w: it broke: %v", ErrLink, c.Status)
		}
		p.sent++
	}
	return err
}

// Connect connects to another host's end. The active one of the two calls it after the other.
func (p *Prober) Connect(ctx context.Context, theirs End, active bool) error {
	p.theirs = theirs
	how := verbs.ConnectConfig{Active: active, Timeout: connecting, Cancel: ctx.Done()}
	if err := p.qp.Connect(theirs.Endpoint, how); err != nil {
		return fmt.Errorf("%w: %w", ErrLink, err)
	}
	for active && p.qp.State() != verbs.StateRTS {
		err := cmp.Or(context.Cause(ctx), p.progress())
		if err == nil && p.qp.State() == verbs.StateErr {
			err = errors.New("it broke")
		}
		if err != nil {
			return fmt.Errorf("%w: it does not connect: %w", ErrLink, err)
		}
	}
	return nil
}

// Serve takes the other end's writes until ctx ends or the link breaks.
func (p *Prober) Serve(ctx context.Context) {
	for ctx.Err() == nil && p.progress() == nil {
	}
}

// write posts a write of so many bytes.
func (p *Prober) write(bytes uint32) error {
	p.wr[0] = verbs.SendWR{LAddr: p.mr.Addr, LKey: p.mr.LKey, RAddr: p.theirs.Addr, RKey: p.theirs.RKey, Length: bytes,
		Opcode: verbs.OpWrite, Flags: verbs.SendSignaled}
	_, err := p.qp.PostSend(p.wr[:])
	return err
}

// arrive waits until some of the writes under way have arrived, and returns their number.
func (p *Prober) arrive(ctx context.Context, until time.Time) (int, error) {
	p.sent = 0
	for p.sent == 0 {
		if err := p.progress(); err != nil {
			return 0, err
		}
		switch {
		case ctx.Err() != nil:
			return 0, fmt.Errorf("%w: %w", ErrLink, context.Cause(ctx))
		case time.Now().After(until):
			return 0, fmt.Errorf("%w: nothing arrived in time", ErrLink)
		}
	}
	return p.sent, nil
}

// Latency measures the time of a small write one way, as half of the time until it is acknowledged.
func (p *Prober) Latency(ctx context.Context) (least time.Duration, err error) {
	until := time.Now().Add(patience)
	for i := range pings {
		binary.LittleEndian.PutUint64(p.arena.Bytes(), uint64(i))
		began := time.Now()
		if err := p.write(8); err != nil {
			return 0, err
		}
		if _, err := p.arrive(ctx, until); err != nil {
			return 0, err
		}
		if took := time.Since(began) / 2; i == 0 || took < least {
			least = took
		}
	}
	return least, nil
}

// Rate measures the rate of writes in bytes per second, during lasts, or up to slow times as long on a slow link. It fails if
// nothing arrives by patience after that. The first third does
// not count, because a link may first spend the burst that it has saved up while it was idle.
func (p *Prober) Rate(ctx context.Context, lasts time.Duration) (float64, error) {
	began := time.Now()
	last := began.Add(slow*lasts + patience)
	var from, now time.Time // beginning of the counted part, and arrival of the last write
	under, arrived, counted := 0, 0, 0
	for {
		for ; under < window; under++ {
			if err := p.write(message); err != nil {
				return 0, err
			}
		}
		n, err := p.arrive(ctx, last)
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
			return float64(counted*message) / now.Sub(from).Seconds(), nil
		}
	}
}
