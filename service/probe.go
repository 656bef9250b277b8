package service

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"time"

	"connectrpc.com/connect"

	"github.com/rackweave/rackweave/service/api"
	"github.com/rackweave/rackweave/verbs/probe"
)

const (
	// probeTurn is the longest that a question of a measurement takes.
	probeTurn = 10 * time.Second
	// probeIdle is how long a measurement keeps its ends while nobody asks.
	probeIdle = 15 * time.Second
	// mostLasts bounds how long one rate is measured.
	mostLasts = time.Second
)

// probing is this aggregator's part in a measurement of links, between racks or to another host: one at a time. Racks, which may
// hold jobs meanwhile, do not wait for a host, which may have died.
type probing struct {
	mu     sync.Mutex
	id     string // of the measurement; empty: there is none
	host   bool   // it is another host's, not between racks
	prober *probe.Prober
	ends   []byte      // the answer to OPEN
	timer  *time.Timer // ends it when nobody asks
}

// Probe implements the schema's Probe.
func (s *Service) Probe(ctx context.Context, r *api.ProbeRequest) (*api.ProbeResponse, error) {
	if !callerOf(ctx).admin {
		s.refusals.count("admin")
		return nil, refuse(connect.CodePermissionDenied, "measure a link: %w", errNotAdmin)
	}
	q := r.Question
	if q == nil {
		return nil, refuse(connect.CodeInvalidArgument, "measure a link: nothing is asked")
	}
	if q.Kind == api.ProbeQuestion_OPEN {
		if q.Provider = s.farthest(r.Providers); q.Provider == "" {
			return nil, refuse(connect.CodeFailedPrecondition, "measure a link over %s: served here: %s", list(r.Providers), list(s.served))
		}
	}
	ctx, cancel := context.WithTimeout(ctx, probeTurn)
	defer cancel()
	answer, err := s.answerProbe(ctx, q, 1, true)
	return &api.ProbeResponse{Answer: answer, Provider: q.Provider}, err
}

// answerProbe takes part in a measurement, of another host or between racks, with so many others at most.
func (s *Service) answerProbe(ctx context.Context, q *api.ProbeQuestion, most int, host bool) ([]byte, error) {
	var out any
	p, err := s.probing.take(s, q, most, host)
	if err == nil {
		out, err = takePart(ctx, p, q)
	}
	switch {
	case err != nil && connect.CodeOf(err) == connect.CodeUnavailable:
		return nil, err
	case err != nil:
		return nil, refuse(connect.CodeFailedPrecondition, "measure links: %w", reason(err))
	case q.Kind == api.ProbeQuestion_OPEN:
		return s.probing.answer(q.Probe), nil
	}
	return json.Marshal(out)
}

// takePart does what a question asks for.
func takePart(ctx context.Context, p *probe.Prober, q *api.ProbeQuestion) (any, error) {
	switch q.Kind {
	case api.ProbeQuestion_JOIN:
		var ends map[int]probe.End
		if err := json.Unmarshal(q.Ends, &ends); err != nil {
			return nil, fmt.Errorf("ends that cannot be read: %w", err)
		}
		for other, end := range ends {
			if err := p.Join(ctx, other, end, q.Active); err != nil {
				return nil, err
			}
		}
	case api.ProbeQuestion_LATENCY:
		hop, err := p.Latency(ctx, int(q.To))
		return hop.Seconds(), err
	case api.ProbeQuestion_RATE:
		return p.Rate(ctx, int(q.To), min(time.Duration(q.LastsMs)*time.Millisecond, mostLasts))
	}
	return nil, nil
}

// take returns this aggregator's end of the measurement that a question is about; nil: it has ended, as was asked.
func (p *probing) take(s *Service, q *api.ProbeQuestion, most int, host bool) (*probe.Prober, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case q.Kind == api.ProbeQuestion_CLOSE:
		if p.id == q.Probe {
			return nil, p.close()
		}
		return nil, nil
	case q.Probe == "":
		return nil, refuse(connect.CodeInvalidArgument, "no measurement is named")
	case q.Kind == api.ProbeQuestion_OPEN && p.id != q.Probe:
		if p.id != "" {
			if host || !p.host {
				return nil, refuse(connect.CodeUnavailable, "measure links: another measurement is under way")
			}
			_ = p.close() // the host's
		}
		p.host = host
		return p.prober, p.open(s, q, most)
	case p.id != q.Probe:
		return nil, refuse(connect.CodeFailedPrecondition, "the measurement has ended here, after %v without a question or for one between racks: measure again",
			probeIdle)
	}
	p.timer.Reset(probeIdle)
	return p.prober, nil
}

// open makes the ends. The caller holds p.mu.
func (p *probing) open(s *Service, q *api.ProbeQuestion, most int) error {
	e := s.engines[q.Provider]
	if e == nil {
		return fmt.Errorf("provider %q is not served here: use one of %s", q.Provider, list(s.served))
	}
	others := make([]int, len(q.Others))
	for i, other := range q.Others {
		others[i] = int(other)
	}
	slices.Sort(others)
	if others = slices.Compact(others); len(others) != len(q.Others) || len(others) > most {
		return fmt.Errorf("ends to %d others, of which there are %d: give all aggregators the same cluster", len(q.Others), most)
	}
	prober, ends, err := probe.Open(e.devices[0], others)
	if err != nil {
		return err
	}
	if p.ends, err = json.Marshal(ends); err != nil {
		panic(fmt.Sprintf("service: ends of a measurement have no JSON: %v", err))
	}
	p.id, p.prober = q.Probe, prober
	p.timer = time.AfterFunc(probeIdle, func() {
		s.log.Warn("a measurement of links was not ended by who began it", "probe", q.Probe)
		p.end(q.Probe)
	})
	return nil
}

// answer is what was answered to OPEN.
func (p *probing) answer(id string) []byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.id != id {
		return nil
	}
	return p.ends
}

// end ends a measurement, if that is still the one; empty: whichever is under way.
func (p *probing) end(id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.id != "" && (id == "" || p.id == id) {
		_ = p.close() // its memory is small, and nobody is there to hear
	}
}

// close ends the measurement. The caller holds p.mu.
func (p *probing) close() error {
	p.timer.Stop()
	err := p.prober.Close()
	p.id, p.prober, p.ends = "", nil, nil
	return err
}
