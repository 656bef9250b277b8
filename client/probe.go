package client

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"connectrpc.com/connect"

	"github.com/rackweave/rackweave/service/api"
	"github.com/rackweave/rackweave/verbs"
	"github.com/rackweave/rackweave/verbs/probe"
)

const (
	// probeLasts is how long each direction of a link is measured, unless it is slow.
	probeLasts = 200 * time.Millisecond
	// probeAgain is how long to wait where the aggregator takes part in another measurement.
	probeAgain = 200 * time.Millisecond
	// probeEnds bounds the call that ends a measurement; the aggregator ends one by itself, too.
	probeEnds = 2 * time.Second
)

// Link is the link between this host and an aggregator, as it was measured.
type Link struct {
	Provider string
	Up, Down Way // to the aggregator and from it, each alone
	Took     time.Duration
}

// Way is one direction of a link.
type Way struct {
	Rate    float64 // bytes per second
	Latency time.Duration
}

// MeasureLink measures the link between this host and an aggregator, over a queue pair of its own: some tenths of a second, or up
// to about 2 s where the link is slow, in which jobs on it are slower. It uses Server, CA, Provider, Devices, ProviderOptions and
// Timeout of the configuration, and Token, which is the aggregator's admin token. Of the providers that both have it takes the
// fastest that leads to other hosts, unless one is named.
func MeasureLink(ctx context.Context, c Config) (*Link, error) {
	if err := c.complete(); err != nil {
		return nil, err
	}
	if len(c.servers()) > 1 {
		return nil, fmt.Errorf("measure links to %s: measure one after the other", c.Server)
	}
	c.useSocket()
	a, err := dial(c)
	if err != nil {
		return nil, err
	}
	defer a.transport.CloseIdleConnections()
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	p := &prober{a: a, id: rand.Text()}
	l, err := p.measure(ctx)
	if err != nil {
		return nil, fmt.Errorf("measure the link to %s: %w", c.Server, err)
	}
	return l, nil
}

// prober measures the link to an aggregator. For the ends of a link each host is number 0 to the other.
type prober struct {
	a  *aggregator
	id string
}

func (p *prober) measure(ctx context.Context) (l *Link, err error) {
	began := time.Now()
	providers, err := p.a.cfg.providersHere()
	if err != nil {
		return nil, err
	}
	l = &Link{}
	var theirs map[int]probe.End
	open := &api.ProbeRequest{Providers: providers, Question: &api.ProbeQuestion{Kind: api.ProbeQuestion_OPEN, Others: []uint32{0}}}
	if l.Provider, err = p.ask(ctx, open, &theirs); err != nil {
		return nil, err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), probeEnds)
		defer cancel()
		_, _ = p.ask(ctx, &api.ProbeRequest{Question: &api.ProbeQuestion{Kind: api.ProbeQuestion_CLOSE}}, nil)
	}()
	d, err := p.open(l.Provider)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	own, ends, err := probe.Open(d, []int{0})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, own.Close()) }()
	text, err := json.Marshal(ends)
	if err != nil {
		return nil, err
	}
	join := &api.ProbeQuestion{Kind: api.ProbeQuestion_JOIN, Ends: text}
	if _, err := p.ask(ctx, &api.ProbeRequest{Question: join}, nil); err != nil {
		return nil, err
	}
	if err := own.Join(ctx, 0, theirs[0], true); err != nil {
		return nil, err
	}
	if err := p.ways(ctx, own, l); err != nil {
		return nil, err
	}
	l.Took = time.Since(began)
	return l, nil
}

// open opens the device that a worker would, or its first.
func (p *prober) open(provider string) (*verbs.Device, error) {
	name := ""
	if len(p.a.cfg.Devices) > 0 {
		name = p.a.cfg.Devices[0]
	}
	return verbs.Open(provider, name, p.a.optionsOf(provider))
}

// ways measures both directions, one after the other.
func (p *prober) ways(ctx context.Context, own *probe.Prober, l *Link) (err error) {
	down := func(what api.ProbeQuestion_Kind, into *float64) error {
		q := &api.ProbeQuestion{Kind: what, LastsMs: uint32(probeLasts.Milliseconds())}
		_, err := p.ask(ctx, &api.ProbeRequest{Question: q}, into)
		return err
	}
	var seconds float64
	if l.Up.Latency, err = own.Latency(ctx, 0); err != nil {
		return err
	}
	if err := down(api.ProbeQuestion_LATENCY, &seconds); err != nil {
		return err
	}
	l.Down.Latency = time.Duration(seconds * 1e9)
	if l.Up.Rate, err = own.Rate(ctx, 0, probeLasts); err != nil {
		return err
	}
	return down(api.ProbeQuestion_RATE, &l.Down.Rate)
}

// ask puts a question to the aggregator, again while it takes part in another measurement, and reads the answer.
func (p *prober) ask(ctx context.Context, r *api.ProbeRequest, into any) (provider string, err error) {
	r.Question.Probe = p.id
	for {
		answer, err := p.a.rpc.Probe(ctx, r)
		switch {
		case err == nil && into != nil:
			err = json.Unmarshal(answer.Answer, into)
			return answer.Provider, err
		case err == nil:
			return answer.Provider, nil
		case connect.CodeOf(err) != connect.CodeUnavailable || !connect.IsWireError(err):
			return "", p.a.cfg.classifyFirst(err)
		}
		select {
		case <-time.After(probeAgain):
		case <-ctx.Done():
			return "", fmt.Errorf("%w: %w", ErrTimeout, err)
		}
	}
}
