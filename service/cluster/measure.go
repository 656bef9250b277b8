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
	"github.com/rackweave/rackweave/verbs/probe"
)

const (
	// roundLasts limits the time of one round of a measurement, and allRounds that of all rounds, unless links are slow.
	roundLasts = 400 * time.Millisecond
	allRounds  = 3 * time.Second
	// measureWithin bounds a measurement for a job that begins.
	measureWithin = 20 * time.Second
)

// measurement measures the links between racks from the rack that asks the others.
type measurement struct {
	k  *Cluster
	u  *run // the racks that are asked
	id string
}

// ServeLinks measures the links between the racks of the cluster.
func (k *Cluster) ServeLinks(ctx context.Context, r *api.LinksRequest) (*api.LinksResponse, error) {
	k, err := k.now()
	if err != nil {
		return nil, rpc.Refuse(connect.CodeFailedPrecondition, "measure links: %w", err)
	}
	provider := r.Provider
	if provider == "" || provider == "auto" {
		provider = k.Engines.Farthest()
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
	m := &measurement{k: k, id: rpc.NewID(), u: &run{began: began, peers: peers, ids: make([]string, len(k.Racks))}}
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
	k.Log.Info("links between racks measured", "provider", provider, "racks", l.Names, "rates", fmt.Sprintf("%.4g", l.Rate),
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
		return m.k.ask(ctx, m.u, rack, &api.AskRequest{Stage: "links", Probe: q})
	}
	for {
		out, err := m.k.Probing.answer(ctx, q, len(m.k.Racks)-1)
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
					end.URL = m.u.peers[other].url
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
