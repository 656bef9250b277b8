package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
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
	// probeIdle is the time after which a measurement without questions ends.
	probeIdle = 15 * time.Second
	// mostLasts bounds how long one rate is measured.
	mostLasts = time.Second
)

// measurement measures the links between racks from the rack that asks the others.
type measurement struct{ run }

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
	began := time.Now()
	m := &measurement{k.newRun("", peers)}
	defer m.close()
	if err := m.connect(ctx, provider); err != nil {
		return nil, err
	}
	l = planner.NewLinks(k.Names(), k.topology.Pods, provider)
	if err = m.rounds(ctx, api.ProbeQuestion_LATENCY, 0, l.Latency); err != nil {
		return nil, err
	}
	lasts := min(roundLasts, allRounds/time.Duration(len(planner.Rounds(len(k.Racks)))))
	if err = m.rounds(ctx, api.ProbeQuestion_RATE, lasts, l.Rate); err != nil {
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

// ask puts a question to a rack, which may be this one.
func (m *measurement) ask(ctx context.Context, rack int, q *api.ProbeQuestion) ([]byte, error) {
	q.Probe = m.id
	if rack != m.k.own {
		return m.run.ask(ctx, rack, &api.AskRequest{Stage: "links", Probe: q})
	}
	for {
		out, err := m.k.answerProbe(ctx, q)
		if connect.CodeOf(err) != connect.CodeUnavailable || err == nil {
			return out, rpc.Reason(err)
		}
		select {
		case <-time.After(askAgain):
		case <-ctx.Done():
			return nil, rpc.Reason(err)
		}
	}
}

// connect makes all ends and connects them. Racks are asked for their ends in order, so that of two measurements one waits.
func (m *measurement) connect(ctx context.Context, provider string) error {
	n := len(m.k.Racks)
	ends := make([]map[int]probe.End, n)
	for rack := range n {
		q := &api.ProbeQuestion{Kind: api.ProbeQuestion_OPEN, Provider: provider}
		for other := range n {
			if other != rack {
				q.Others = append(q.Others, uint32(other))
			}
		}
		answer, err := m.ask(ctx, rack, q)
		if err == nil {
			err = json.Unmarshal(answer, &ends[rack])
		}
		if err != nil {
			return fmt.Errorf("rack %q takes no part: %w", m.k.Racks[rack].Name, err)
		}
	}
	for _, active := range []bool{false, true} {
		for rack := range n {
			theirs := map[int]probe.End{}
			for other := range n {
				if other != rack && (other < rack) == active {
					end := ends[other][rack]
					end.URL = m.peers[other].url
					theirs[other] = end
				}
			}
			text, err := json.Marshal(theirs)
			if err == nil {
				_, err = m.ask(ctx, rack, &api.ProbeQuestion{Kind: api.ProbeQuestion_JOIN, Ends: text, Active: active})
			}
			if err != nil {
				return fmt.Errorf("rack %q connects to racks %v: %w", m.k.Racks[rack].Name, slices.Delete(m.k.Names(), rack, rack+1), err)
			}
		}
	}
	return nil
}

// rounds measures the link of each rack to each other, those of a round at once, until all are measured or one cannot be.
func (m *measurement) rounds(ctx context.Context, what api.ProbeQuestion_Kind, lasts time.Duration, into [][]float64) error {
	for _, round := range planner.Rounds(len(m.k.Racks)) {
		g, ctx := errgroup.WithContext(ctx)
		for _, transfer := range round {
			from, to := transfer[0], transfer[1]
			g.Go(func() error {
				answer, err := m.ask(ctx, from, &api.ProbeQuestion{Kind: what, LastsMs: uint32(lasts.Milliseconds()), To: uint32(to)})
				if err == nil {
					err = json.Unmarshal(answer, &into[from][to])
				}
				if err != nil {
					return fmt.Errorf("the link from rack %q to rack %q: %w", m.k.Racks[from].Name, m.k.Racks[to].Name, err)
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

// close ends the measurement in all racks. A rack that cannot be reached ends it by itself.
func (m *measurement) close() {
	ctx, cancel := context.WithTimeout(context.Background(), askTimeout)
	defer cancel()
	var wg sync.WaitGroup
	for rack := range m.k.Racks {
		wg.Go(func() { _, _ = m.ask(ctx, rack, &api.ProbeQuestion{Kind: api.ProbeQuestion_CLOSE}) })
	}
	wg.Wait()
}

// measuring is this aggregator's part in a measurement, one at a time.
type measuring struct {
	id string
	*probe.Prober
	ends  map[int]probe.End // the answer to OPEN
	timer *time.Timer       // ends it without questions
}

// answerProbe answers a question of a measurement.
func (h *hub) answerProbe(ctx context.Context, q *api.ProbeQuestion) ([]byte, error) {
	var out any
	m, err := h.part(q)
	if err == nil {
		switch q.Kind {
		case api.ProbeQuestion_OPEN:
			out = m.ends
		case api.ProbeQuestion_JOIN:
			err = m.join(ctx, q)
		case api.ProbeQuestion_LATENCY:
			var hop time.Duration
			hop, err = m.Latency(ctx, int(q.To))
			out = hop.Seconds()
		case api.ProbeQuestion_RATE:
			out, err = m.Rate(ctx, int(q.To), min(time.Duration(q.LastsMs)*time.Millisecond, mostLasts))
		}
	}
	switch {
	case err == nil:
		return json.Marshal(out)
	case connect.CodeOf(err) == connect.CodeUnavailable:
		return nil, err
	}
	return nil, rpc.Refuse(connect.CodeFailedPrecondition, "measure links: %w", rpc.Reason(err))
}

// join connects ends.
func (m *measuring) join(ctx context.Context, q *api.ProbeQuestion) error {
	var ends map[int]probe.End
	if err := json.Unmarshal(q.Ends, &ends); err != nil {
		return fmt.Errorf("ends that cannot be read: %w", err)
	}
	for other, end := range ends {
		end.Endpoint = verbs.Located(end.Endpoint, addrOf(ctx, end.URL))
		if err := m.Join(ctx, other, end, q.Active); err != nil {
			return err
		}
	}
	return nil
}

// part returns this aggregator's part in the measurement that a question is about, or nil if the question has ended it.
func (h *hub) part(q *api.ProbeQuestion) (*measuring, error) {
	if q.Kind == api.ProbeQuestion_CLOSE {
		return nil, h.stop(q.Probe)
	}
	h.probing.Lock()
	defer h.probing.Unlock()
	switch m := h.measuring; {
	case q.Probe == "":
		return nil, errors.New("the question names a measurement by no name")
	case m != nil && m.id == q.Probe:
		m.timer.Reset(probeIdle)
	case q.Kind != api.ProbeQuestion_OPEN:
		return nil, fmt.Errorf("the measurement has ended here, after %v without a question: measure again", probeIdle)
	case m != nil:
		return nil, rpc.Refuse(connect.CodeUnavailable, "measure links: another measurement is under way")
	default:
		m, err := h.open(q)
		h.measuring = m
		return m, err
	}
	return h.measuring, nil
}

// open makes the ends.
func (h *hub) open(q *api.ProbeQuestion) (*measuring, error) {
	e, most := h.jobs.Engines.By[q.Provider], len(h.declared.Racks)-1
	if e == nil {
		return nil, fmt.Errorf("provider %q is not served here: use one of %s", q.Provider, rpc.List(h.jobs.Engines.Served))
	}
	others := make([]int, len(q.Others))
	for i, other := range q.Others {
		others[i] = int(other)
	}
	slices.Sort(others)
	if others = slices.Compact(others); len(others) != len(q.Others) || len(others) > most {
		return nil, fmt.Errorf("ends to %d others, of which there are %d: give all aggregators the same cluster", len(q.Others), most)
	}
	prober, ends, err := probe.Open(e.Devices[0], others)
	if err != nil {
		return nil, err
	}
	return &measuring{q.Probe, prober, ends, time.AfterFunc(probeIdle, func() {
		h.jobs.Log.Warn("a measurement of links was not ended by the aggregator that began it", "probe", q.Probe)
		_ = h.stop(q.Probe) // its memory is small, and the error has no reader
	})}, nil
}

// stop ends a measurement if it is under way. If id is empty, it ends any.
func (h *hub) stop(id string) error {
	h.probing.Lock()
	defer h.probing.Unlock()
	m := h.measuring
	if m == nil || id != "" && m.id != id {
		return nil
	}
	m.timer.Stop()
	h.measuring = nil
	return m.Close()
}
