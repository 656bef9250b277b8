package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sync/errgroup"

	"github.com/rackweave/rackweave/hierarchy/planner"
	"github.com/rackweave/rackweave/service/api"
	"github.com/rackweave/rackweave/service/rpc"
	"github.com/rackweave/rackweave/verbs"
	"github.com/rackweave/rackweave/verbs/probe"
)

const (
	// roundLasts limits the time of one round of a measurement, and allRounds that of all rounds, unless links are slow.
	roundLasts = 400 * time.Millisecond
	allRounds  = 3 * time.Second
	// measureWithin bounds a measurement for a job that begins.
	measureWithin = 20 * time.Second
	// probeLasts bounds the measurement of one link.
	probeLasts = 15 * time.Second
	// mostLasts bounds how long one rate is measured.
	mostLasts = time.Second
)

// ServeLinks measures the links between the racks of the cluster.
func (k *Cluster) ServeLinks(ctx context.Context, r *api.LinksRequest) (*api.LinksResponse, error) {
	if k == nil {
		return nil, errAlone()
	}
	k, err := k.now()
	if err != nil {
		return nil, rpc.Refuse(connect.CodeFailedPrecondition, "measure links: %w", err)
	}
	provider := r.Provider
	if provider == "" || provider == "auto" {
		provider = k.jobs.Engines.Farthest()
	}
	ctx, cancel := rpc.Bounded(ctx, r.TimeoutMs)
	defer cancel()
	l, err := k.measure(ctx, provider)
	if err != nil {
		return nil, rpc.Refuse(connect.CodeFailedPrecondition, "measure links: %w", err)
	}
	out := &api.LinksResponse{Racks: l.Names, Pods: uint32(l.Pods), Provider: provider, Seconds: l.Seconds, Core: k.CoreName()}
	for i := range l.Names {
		for j := range l.Names {
			if i != j {
				out.Links = append(out.Links, &api.MeasuredLink{From: uint32(i), To: uint32(j), BytesPerSecond: l.Rate[i][j],
					LatencySeconds: l.Latency[i][j]})
			}
		}
	}
	return out, nil
}

// measured returns the links as measured last, or measures them.
func (k *Cluster) measured(ctx context.Context, provider string) (*planner.Links, error) {
	k.mu.Lock()
	l := k.links[provider+k.names()]
	k.mu.Unlock()
	if l != nil {
		return l, nil
	}
	ctx, cancel := context.WithTimeout(ctx, measureWithin)
	defer cancel()
	return k.measure(ctx, provider)
}

// measure measures the links among the racks.
func (k *Cluster) measure(ctx context.Context, provider string) (l *planner.Links, err error) {
	if len(k.Racks) < 2 {
		return nil, errors.New("there is one rack, and no link to another")
	}
	peers, err := k.reach(ctx)
	if err != nil {
		return nil, err
	}
	began, u := time.Now(), k.newRun("", peers)
	l = planner.NewLinks(k.Names(), k.topology.Pods, provider)
	q := &api.ProbeQuestion{Kind: api.ProbeQuestion_LATENCY, Provider: provider}
	if err = u.rounds(ctx, q, l.Latency); err != nil {
		return nil, err
	}
	q.Kind = api.ProbeQuestion_RATE
	q.LastsMs = uint32(min(roundLasts, allRounds/time.Duration(len(planner.Rounds(len(k.Racks))))).Milliseconds())
	if err = u.rounds(ctx, q, l.Rate); err != nil {
		return nil, err
	}
	l.Seconds = time.Since(began).Seconds()
	if err := l.Check(); err != nil {
		return nil, err
	}
	k.jobs.Log.Info("links between racks measured", "provider", provider, "racks", l.Names, "rates", fmt.Sprintf("%.4g", l.Rate),
		"latencies", fmt.Sprintf("%.3g", l.Latency), "took", time.Since(began))
	k.SetLinks(l)
	return l, nil
}

// SetLinks replaces what was measured last of the links between these racks.
func (k *Cluster) SetLinks(l *planner.Links) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.links[l.By+k.names()] = l
}

// rounds asks each rack about its link to each other, those of a round at once, until all are measured or one cannot be.
func (u *run) rounds(ctx context.Context, q *api.ProbeQuestion, into [][]float64) error {
	names := u.k.Names()
	for _, round := range planner.Rounds(len(names)) {
		g, ctx := errgroup.WithContext(ctx)
		for _, transfer := range round {
			from, to := transfer[0], transfer[1]
			q := &api.ProbeQuestion{Kind: q.Kind, Provider: q.Provider, LastsMs: q.LastsMs, To: names[to]}
			g.Go(func() (err error) {
				var answer []byte
				if from == u.k.own {
					answer, err = u.k.declared.answerProbe(ctx, q)
				} else {
					answer, err = u.ask(ctx, from, &api.AskRequest{Stage: "links", Probe: q})
				}
				if err == nil {
					err = json.Unmarshal(answer, &into[from][to])
				}
				if err != nil {
					return fmt.Errorf("the link from rack %q to rack %q: %w", names[from], names[to], rpc.Reason(err))
				}
				return nil
			})
		}
		if err := g.Wait(); err != nil {
			return err
		}
	}
	return nil
}

// answerProbe answers a question of a measurement.
func (k *Cluster) answerProbe(ctx context.Context, q *api.ProbeQuestion) ([]byte, error) {
	var out any
	var err error
	switch q.Kind {
	case api.ProbeQuestion_OPEN:
		out, err = k.openFar(ctx, q)
	case api.ProbeQuestion_CLOSE:
		err = k.closeFar(q.Probe)
	default:
		out, err = k.probe(ctx, q)
	}
	switch {
	case err == nil:
		return json.Marshal(out)
	case connect.CodeOf(err) == connect.CodeUnavailable:
		return nil, err
	}
	return nil, rpc.Refuse(connect.CodeFailedPrecondition, "measure links: %w", rpc.Reason(err))
}

// openProbe makes an end of a link over a provider.
func (h *hub) openProbe(provider string) (*probe.Prober, error) {
	e := h.jobs.Engines.By[provider]
	if e == nil {
		return nil, fmt.Errorf("provider %q is not served here: use one of %s", provider, rpc.List(h.jobs.Engines.Served))
	}
	return probe.Open(e.Devices[0])
}

// probe measures the link from this rack to another: its latency in seconds, or its rate in bytes per second.
func (k *Cluster) probe(ctx context.Context, q *api.ProbeQuestion) (value float64, err error) {
	if k, err = k.now(); err != nil {
		return 0, err
	}
	to := slices.Index(k.Names(), q.To)
	if to < 0 || to == k.own {
		return 0, fmt.Errorf("rack %q is not one of the others of %v: %s", rpc.Printable(q.To, rpc.MaxNameBytes), k.Names(), sameFile)
	}
	peers, err := k.reach(ctx)
	if err != nil {
		return 0, err
	}
	select {
	case k.probing <- struct{}{}:
		defer func() { <-k.probing }()
	case <-ctx.Done():
		return 0, fmt.Errorf("another measurement is under way: %w", context.Cause(ctx))
	}
	ctx, cancel := context.WithTimeout(ctx, probeLasts)
	defer cancel()
	p, err := k.openProbe(q.Provider)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, p.Close()) }()
	end, err := json.Marshal(p.End)
	if err != nil {
		return 0, err
	}
	u := k.newRun("", peers)
	ask := func(ctx context.Context, kind api.ProbeQuestion_Kind) ([]byte, error) {
		return u.ask(ctx, to, &api.AskRequest{Stage: "links",
			Probe: &api.ProbeQuestion{Kind: kind, Probe: u.id, Provider: q.Provider, End: end}})
	}
	defer func() { // a rack that cannot be reached closes its end by itself
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), askTimeout)
		defer cancel()
		_, _ = ask(ctx, api.ProbeQuestion_CLOSE)
	}()
	answer, err := ask(ctx, api.ProbeQuestion_OPEN)
	if err != nil {
		return 0, err
	}
	var theirs probe.End
	if err := json.Unmarshal(answer, &theirs); err != nil {
		return 0, fmt.Errorf("rack %q gives an end that cannot be read: %w", q.To, errors.Join(err, rpc.ErrVersions))
	}
	theirs.Endpoint = verbs.Located(theirs.Endpoint, addrOf(ctx, peers[to].url))
	if err := p.Connect(ctx, theirs, true); err != nil {
		return 0, err
	}
	if q.Kind == api.ProbeQuestion_RATE {
		return p.Rate(ctx, min(time.Duration(q.LastsMs)*time.Millisecond, mostLasts))
	}
	hop, err := p.Latency(ctx)
	return hop.Seconds(), err
}

// farEnd is this aggregator's end of a link that another measures.
type farEnd struct {
	id     string
	prober *probe.Prober
	end    context.CancelFunc
	ended  chan struct{} // closed when nothing uses prober
}

// openFar makes the end of the link that another rack measures, unless it has asked for it before, and lets it write there.
func (h *hub) openFar(ctx context.Context, q *api.ProbeQuestion) (*probe.End, error) {
	h.farMu.Lock()
	defer h.farMu.Unlock()
	if h.far != nil && h.far.id == q.Probe {
		return &h.far.prober.End, nil
	}
	if h.far != nil {
		return nil, rpc.Refuse(connect.CodeUnavailable, "measure links: another measurement is under way")
	}
	var theirs probe.End
	if err := json.Unmarshal(q.End, &theirs); err != nil || q.Probe == "" {
		return nil, fmt.Errorf("an end of measurement %q that cannot be read: %w", rpc.Printable(q.Probe, rpc.MaxNameBytes),
			errors.Join(err, rpc.ErrVersions))
	}
	p, err := h.openProbe(q.Provider)
	if err != nil {
		return nil, err
	}
	if err := p.Connect(ctx, theirs, false); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	f := &farEnd{id: q.Probe, prober: p, ended: make(chan struct{})}
	ctx, f.end = context.WithTimeout(context.WithoutCancel(ctx), probeLasts)
	go func() {
		p.Serve(ctx)
		<-ctx.Done()
		close(f.ended)
		_ = h.closeFar(f.id) // its memory is small, and the error has no reader
	}()
	h.far = f
	return &p.End, nil
}

// closeFar closes the end of a measurement if it is open. If id is empty, it closes any.
func (h *hub) closeFar(id string) error {
	h.farMu.Lock()
	defer h.farMu.Unlock()
	f := h.far
	if f == nil || id != "" && f.id != id {
		return nil
	}
	f.end()
	<-f.ended
	h.far = nil
	return f.prober.Close()
}
