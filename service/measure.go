package service

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"connectrpc.com/connect"

	"github.com/rackweave/rackweave/hierarchy"
	"github.com/rackweave/rackweave/service/api"
	"github.com/rackweave/rackweave/verbs"
	"github.com/rackweave/rackweave/verbs/probe"
)

const (
	// roundLasts is how long racks send in a round of a measurement at most, and allRounds in all of them, unless links are slow.
	roundLasts = 400 * time.Millisecond
	allRounds  = 3 * time.Second
	// measureWithin bounds a measurement for a job that begins.
	measureWithin = 20 * time.Second
)

// measurement is of the links between racks, as the one that has it made sees it.
type measurement struct {
	k  *cluster
	s  *Service
	u  *run // whom to ask
	id string
}

// Links implements the schema's Links.
func (s *Service) Links(ctx context.Context, r *api.LinksRequest) (*api.LinksResponse, error) {
	if !callerOf(ctx).admin {
		s.refusals.count("admin")
		return nil, refuse(connect.CodePermissionDenied, "measure links: %w", errNotAdmin)
	}
	if s.cluster == nil || len(s.cluster.Racks) < 2 {
		return &api.LinksResponse{}, nil
	}
	k, err := s.cluster.now("")
	if err != nil {
		return nil, refuse(connect.CodeFailedPrecondition, "measure links: %w", err)
	}
	provider := r.Provider
	if provider == "" || provider == "auto" {
		provider = s.farthest(s.served)
	}
	ctx, cancel := bounded(ctx, r.TimeoutMs)
	defer cancel()
	l, err := k.measure(ctx, s, provider, allRounds)
	if err != nil {
		return nil, refuse(connect.CodeFailedPrecondition, "measure links: %w", err)
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

// farthest is the fastest of some providers that is served here and leads to other hosts. Where none does, it may lead to this one
// alone; empty: none is served.
func (s *Service) farthest(of []string) (best string) {
	for _, p := range s.served {
		if slices.Contains(of, p) && (best == "" || best == verbs.ProviderSHM) {
			best = p
		}
	}
	return best
}

// measured returns the links as they were measured last, or measures them.
func (k *cluster) measured(ctx context.Context, s *Service, provider string) (*hierarchy.Links, error) {
	k.mu.Lock()
	l := k.links[provider+k.names()]
	k.mu.Unlock()
	if l != nil {
		return l, nil
	}
	ctx, cancel := context.WithTimeout(ctx, measureWithin)
	defer cancel()
	return k.watching.measure(k, ctx, s, provider, allRounds)
}

// measure has the racks measure the links among them, and send for so long in all rounds, unless links are slow.
func (k *cluster) measure(ctx context.Context, s *Service, provider string, rounds time.Duration) (l *hierarchy.Links, err error) {
	if len(k.Racks) < 2 {
		return nil, errors.New("there is one rack, and no link to another")
	}
	peers, err := k.reach(ctx)
	if err != nil {
		return nil, err
	}
	began := time.Now()
	m := &measurement{k: k, s: s, id: newSession(), u: &run{began: began, peers: peers, ids: make([]string, len(k.Racks))}}
	defer m.close()
	if err := m.connect(ctx, provider); err != nil {
		return nil, err
	}
	l = &hierarchy.Links{Names: k.Names(), Pods: k.topology.Pods, By: provider}
	if l.Latency, err = m.rounds(ctx, api.ProbeQuestion_LATENCY, 0); err != nil {
		return nil, err
	}
	lasts := min(roundLasts, rounds/time.Duration(len(hierarchy.Rounds(len(k.Racks)))))
	if l.Rate, err = m.rounds(ctx, api.ProbeQuestion_RATE, lasts); err != nil {
		return nil, err
	}
	l.Seconds = time.Since(began).Seconds()
	if err := l.Check(); err != nil {
		return nil, err
	}
	s.log.Info("links between racks measured", "provider", provider, "racks", l.Names, "rates", fmt.Sprintf("%.4g", l.Rate),
		"latencies", fmt.Sprintf("%.3g", l.Latency), "took", time.Since(began))
	k.mu.Lock()
	k.links[provider+k.names()] = l
	k.mu.Unlock()
	return l, nil
}

// ask puts a question to a rack, which may be this one.
func (m *measurement) ask(ctx context.Context, rack int, q *api.ProbeQuestion) ([]byte, error) {
	q.Probe = m.id
	if rack != m.k.own {
		return m.k.ask(ctx, m.u, rack, &api.AskRequest{Stage: "links", Probe: q})
	}
	for {
		out, err := m.s.answerProbe(ctx, q, len(m.k.Racks)-1, false)
		if connect.CodeOf(err) != connect.CodeUnavailable || err == nil {
			return out, reason(err)
		}
		select {
		case <-time.After(askAgain):
		case <-ctx.Done():
			return nil, reason(err)
		}
	}
}

// at measures the links of a round at once, until all are measured or one cannot be.
func (m *measurement) at(ctx context.Context, round [][2]int, what api.ProbeQuestion_Kind, lasts time.Duration) ([][]byte, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	out, errs := make([][]byte, len(round)), make([]error, len(round))
	var wg sync.WaitGroup
	for i, transfer := range round {
		from, to := transfer[0], transfer[1]
		wg.Go(func() {
			var err error
			out[i], err = m.ask(ctx, from, &api.ProbeQuestion{Kind: what, LastsMs: uint32(lasts.Milliseconds()), To: uint32(to)})
			if err != nil {
				errs[i] = fmt.Errorf("the link from rack %q to rack %q: %w", m.k.Racks[from].Name, m.k.Racks[to].Name, err)
				cancel(errs[i])
			}
		})
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil && !errors.As(err, new(*askedNoMore)) && !errors.Is(err, context.Canceled) {
			return nil, err
		}
	}
	return out, cmp.Or(errs...)
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
					theirs[other] = ends[other][rack]
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

// rounds has each rack measure its link to each other.
func (m *measurement) rounds(ctx context.Context, what api.ProbeQuestion_Kind, lasts time.Duration) ([][]float64, error) {
	n := len(m.k.Racks)
	out := make([][]float64, n)
	for i := range out {
		out[i] = make([]float64, n)
	}
	for _, round := range hierarchy.Rounds(n) {
		answers, err := m.at(ctx, round, what, lasts)
		if err != nil {
			return nil, err
		}
		for i, transfer := range round {
			if err := json.Unmarshal(answers[i], &out[transfer[0]][transfer[1]]); err != nil {
				return nil, fmt.Errorf("rack %q says what cannot be read: %w", m.k.Racks[transfer[0]].Name, err)
			}
		}
	}
	return out, nil
}

// close ends the measurement in all racks; one that does not hear of it ends it by itself.
func (m *measurement) close() {
	ctx, cancel := context.WithTimeout(context.Background(), askTurn)
	defer cancel()
	var wg sync.WaitGroup
	for rack := range m.k.Racks {
		wg.Go(func() { _, _ = m.ask(ctx, rack, &api.ProbeQuestion{Kind: api.ProbeQuestion_CLOSE}) })
	}
	wg.Wait()
}
