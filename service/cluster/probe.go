package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"connectrpc.com/connect"

	"github.com/rackweave/rackweave/service/api"
	"github.com/rackweave/rackweave/service/engine"
	"github.com/rackweave/rackweave/service/rpc"
	"github.com/rackweave/rackweave/verbs"
	"github.com/rackweave/rackweave/verbs/probe"
)

const (
	// probeTimeout bounds the time of a question of a measurement.
	probeTimeout = 10 * time.Second
	// probeIdle is the time after which a measurement without questions ends.
	probeIdle = 15 * time.Second
	// mostLasts bounds how long one rate is measured.
	mostLasts = time.Second
)

// Prober is this aggregator's part in a measurement of the links between racks, one at a time.
type Prober struct {
	log     *slog.Logger
	Engines *engine.Set

	mu     sync.Mutex
	id     string // of the measurement. If empty, none is under way.
	prober *probe.Prober
	ends   []byte      // the answer to OPEN
	timer  *time.Timer // ends it without questions
}

// NewProber returns a prober, whose Engines must be set before it is asked.
func NewProber(log *slog.Logger) *Prober { return &Prober{log: log} }

// answer answers a question of a measurement with at most so many other racks.
func (p *Prober) answer(ctx context.Context, q *api.ProbeQuestion, most int) ([]byte, error) {
	var out any
	prober, err := p.take(q, most)
	if err == nil {
		out, err = measureLink(ctx, prober, q)
	}
	switch {
	case err != nil && connect.CodeOf(err) == connect.CodeUnavailable:
		return nil, err
	case err != nil:
		return nil, rpc.Refuse(connect.CodeFailedPrecondition, "measure links: %w", rpc.Reason(err))
	case q.Kind == api.ProbeQuestion_OPEN:
		return p.opened(q.Probe), nil
	}
	return json.Marshal(out)
}

// measureLink connects ends or measures a link, as a question asks.
func measureLink(ctx context.Context, p *probe.Prober, q *api.ProbeQuestion) (any, error) {
	switch q.Kind {
	case api.ProbeQuestion_JOIN:
		var ends map[int]probe.End
		if err := json.Unmarshal(q.Ends, &ends); err != nil {
			return nil, fmt.Errorf("ends that cannot be read: %w", err)
		}
		for other, end := range ends {
			end.Endpoint = verbs.Located(end.Endpoint, addrOf(ctx, end.URL))
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

// take returns this aggregator's end of the measurement that a question is about, or nil if the question has ended it.
func (p *Prober) take(q *api.ProbeQuestion, most int) (*probe.Prober, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case q.Kind == api.ProbeQuestion_CLOSE:
		if p.id == q.Probe {
			return nil, p.close()
		}
		return nil, nil
	case q.Probe == "":
		return nil, rpc.Refuse(connect.CodeInvalidArgument, "the question names a measurement by no name")
	case q.Kind == api.ProbeQuestion_OPEN && p.id != q.Probe:
		if p.id != "" {
			return nil, rpc.Refuse(connect.CodeUnavailable, "measure links: another measurement is under way")
		}
		return p.prober, p.open(q, most)
	case p.id != q.Probe:
		return nil, rpc.Refuse(connect.CodeFailedPrecondition, "the measurement has ended here, after %v without a question: measure again",
			probeIdle)
	}
	p.timer.Reset(probeIdle)
	return p.prober, nil
}

// open makes the ends. The caller holds p.mu.
func (p *Prober) open(q *api.ProbeQuestion, most int) error {
	e := p.Engines.By[q.Provider]
	if e == nil {
		return fmt.Errorf("provider %q is not served here: use one of %s", q.Provider, rpc.List(p.Engines.Served))
	}
	others := make([]int, len(q.Others))
	for i, other := range q.Others {
		others[i] = int(other)
	}
	slices.Sort(others)
	if others = slices.Compact(others); len(others) != len(q.Others) || len(others) > most {
		return fmt.Errorf("ends to %d others, of which there are %d: give all aggregators the same cluster", len(q.Others), most)
	}
	prober, ends, err := probe.Open(e.Devices[0], others)
	if err != nil {
		return err
	}
	if p.ends, err = json.Marshal(ends); err != nil {
		panic(fmt.Sprintf("service: ends of a measurement have no JSON: %v", err))
	}
	p.id, p.prober = q.Probe, prober
	p.timer = time.AfterFunc(probeIdle, func() {
		p.log.Warn("a measurement of links was not ended by the aggregator that began it", "probe", q.Probe)
		p.End(q.Probe)
	})
	return nil
}

// opened returns the answer to OPEN.
func (p *Prober) opened(id string) []byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.id != id {
		return nil
	}
	return p.ends
}

// End ends a measurement if it is under way. If id is empty, it ends any.
func (p *Prober) End(id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.id != "" && (id == "" || p.id == id) {
		_ = p.close() // its memory is small, and the error has no reader
	}
}

// close ends the measurement. The caller holds p.mu.
func (p *Prober) close() error {
	p.timer.Stop()
	err := p.prober.Close()
	p.id, p.prober, p.ends = "", nil, nil
	return err
}
