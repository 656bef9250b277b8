package control

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"

	"github.com/rackweave/rackweave/service/api"
	"github.com/rackweave/rackweave/service/api/apiconnect"
)

// aggregator is one that a worker has joined. Mostly it is the only one. Where a job is spread over several, each has all workers
// and some of the lanes.
type aggregator struct {
	url     string
	rpc     apiconnect.JobServiceClient
	info    *api.JoinResponse
	unwatch context.CancelFunc
	watched chan struct{} // closed when its stream has ended
}

// membership is a worker's in a job, at all aggregators that this is spread over.
type membership struct {
	transport         func(ca string) (*http.Transport, error)
	server, ca, token string
	ctx               context.Context // ends with the proxy

	aggregators []*aggregator
	failure     atomic.Pointer[api.Failure] // of the job, once Watch has brought it
	ended       chan struct{}               // closed with the failure
	gone        chan struct{}               // closed when the worker is
	telling     sync.WaitGroup
}

func (m *membership) dial(server, ca string) (*aggregator, error) {
	a := &aggregator{url: strings.TrimRight(server, "/"), watched: make(chan struct{})}
	t, err := m.transport(ca)
	if err != nil {
		return nil, err
	}
	a.rpc = apiconnect.NewJobServiceClient(&http.Client{Transport: t}, a.url,
		api.Identify(func() string { return a.info.GetSession() }, m.token))
	return a, nil
}

// lose ends the membership: the aggregators see the Watch streams end.
func (m *membership) lose() {
	close(m.gone)
	m.telling.Wait()
	for _, a := range m.aggregators {
		a.unwatch()
	}
	for _, a := range m.aggregators {
		<-a.watched
	}
}

// plain takes the code off a refusal, which is for programs.
func plain(err error) error {
	if refusal := new(connect.Error); errors.As(err, &refusal) {
		return refusal.Unwrap()
	}
	return err
}

// enrol joins the aggregator, or all that the job is spread over.
func (m *membership) enrol(ctx context.Context, r *api.JoinRequest, timeout time.Duration) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() { // the job may end at one while another is being joined
		select {
		case <-m.ended:
			cancel()
		case <-ctx.Done():
		}
	}()
	named := api.Aggregators(strings.Split(m.server, ","), m.ca)
	err := api.Enrol(named, r, func(at *api.Aggregator) (*api.JoinResponse, func() error, error) {
		a, err := m.dial(at.Url, at.Ca)
		if err == nil {
			err = api.Contact(ctx, timeout, func(within time.Duration) (err error) {
				r.TimeoutMs = uint32(max(within.Milliseconds(), 1))
				a.info, err = a.rpc.Join(ctx, r)
				return err
			})
		}
		if err != nil {
			return nil, nil, plain(err)
		}
		return a.info, func() error { return plain(m.joined(a, r.Parts > 0)) }, nil
	})
	switch {
	case r.Parts == 0:
		return err
	case err != nil:
		m.tell(m.ctx, m.because(err.Error()))
		return err
	}
	m.telling.Go(func() {
		select {
		case <-m.ended:
			m.tell(m.ctx, m.because(""))
		case <-m.gone:
		}
	})
	return nil
}

const (
	tellWithin = 2 * time.Second        // bounds the calls that fail a job
	blameWait  = 500 * time.Millisecond // for an aggregator to say who is to blame
)

// because asks to fail the job for the reason that an aggregator has told, or else for this worker's own.
func (m *membership) because(own string) *api.LeaveRequest {
	if f := m.failure.Load(); f != nil {
		return &api.LeaveRequest{Failure: f.Text, Blame: &f.Rank}
	}
	return &api.LeaveRequest{Failure: own}
}

// tell fails the job at all aggregators, of which one may be the cause. One that does not hear it sees the stream end.
func (m *membership) tell(ctx context.Context, r *api.LeaveRequest) {
	ctx, cancel := context.WithTimeout(ctx, tellWithin)
	defer cancel()
	_ = m.leaveAll(ctx, r)
}

// joined takes note of an aggregator that has the worker, and opens the stream that ties the worker's life to it. Workers learn of
// failures on the data path, and other aggregators from here.
func (m *membership) joined(a *aggregator, several bool) error {
	ctx, cancel := context.WithCancel(m.ctx)
	stream, err := a.rpc.Watch(ctx, &api.WatchRequest{})
	if err != nil {
		cancel()
		return err
	}
	a.unwatch = cancel
	m.aggregators = append(m.aggregators, a)
	go func() {
		defer close(a.watched)
		defer stream.Close()
		for stream.Receive() {
			if f := stream.Msg().Failure; f != nil {
				m.fail(f)
			}
		}
		if several && ctx.Err() == nil && stream.Err() != nil {
			m.fail(&api.Failure{Rank: -1, Text: fmt.Sprintf("the connection to %s broke: %v", a.url, stream.Err())})
		}
	}()
	return m.agrees(a)
}

// agrees reports that an aggregator has other lanes than the first: programs in C take them all for alike.
func (m *membership) agrees(a *aggregator) error {
	first := m.aggregators[0]
	x, y := first.info, a.info
	for _, f := range []struct {
		what string
		a, b any
	}{
		{"number of lanes", len(x.Lanes), len(y.Lanes)}, {"provider", x.Provider, y.Provider}, {"window", x.Window, y.Window},
		{"size of chunks", x.ChunkBytes, y.ChunkBytes}, {"reading by reference", x.ByReference, y.ByReference},
		{"depth of queues", [2]uint32{x.SendDepth, x.RecvDepth}, [2]uint32{y.SendDepth, y.RecvDepth}},
		{"rank", x.Rank, y.Rank}, {"hyper-parameters", fmt.Sprint(x.Record), fmt.Sprint(y.Record)},
	} {
		if f.a != f.b {
			return fmt.Errorf("its %s is %v and that of %s %v: give all aggregators of a job the same cores, NICs, settings and version", f.what,
				f.b, first.url, f.a)
		}
	}
	return nil
}

// fail takes note of the job's failure.
func (m *membership) fail(f *api.Failure) {
	if m.failure.CompareAndSwap(nil, f) {
		close(m.ended)
	}
}

// leave ends the membership. With a reason the job fails. The data path of a program hears of a failure before the stream says
// because of whom: where others must be told, the stream is waited for.
func (m *membership) leave(ctx context.Context, reason string) error {
	if reason == "" {
		return m.leaveAll(ctx, &api.LeaveRequest{})
	}
	if len(m.aggregators) > 1 {
		select {
		case <-m.ended:
		case <-time.After(blameWait):
		}
	}
	m.tell(ctx, m.because(reason))
	return nil
}

func (m *membership) leaveAll(ctx context.Context, r *api.LeaveRequest) error {
	errs := make([]error, len(m.aggregators))
	var all sync.WaitGroup
	for i, a := range m.aggregators {
		all.Go(func() { _, errs[i] = a.rpc.Leave(ctx, r) })
	}
	all.Wait()
	return cmp.Or(errs...)
}

// peers are the aggregators' IP addresses as options of tcp, a line for each.
func (m *membership) peers(ctx context.Context) (string, error) {
	var lines []string
	for _, a := range m.aggregators {
		u, err := url.Parse(a.url)
		if err != nil {
			return "", err
		}
		all, err := net.DefaultResolver.LookupHost(ctx, u.Hostname())
		if err != nil {
			return "", fmt.Errorf("find the aggregator's address: %w", err)
		}
		lines = append(lines, "peer="+all[0])
	}
	return strings.Join(lines, "\n"), nil
}

// attach tells the aggregators the ends of the worker's lanes, and returns theirs.
func (m *membership) attach(ctx context.Context, r *api.ConnectRequest) (ends []*api.AggregatorLane, err error) {
	own := r.Lanes
	for _, a := range m.aggregators {
		n := min(len(a.info.Lanes), len(own))
		r.Lanes, own = own[:n], own[n:]
		out, err := a.rpc.Connect(ctx, r)
		if err != nil {
			return nil, err
		}
		ends = append(ends, out.Lanes...)
	}
	return ends, nil
}

// declare registers tensors everywhere, and returns the lanes of their chunks.
func (m *membership) declare(ctx context.Context, r *api.RegisterRequest) (lanes []uint32, err error) {
	var plan []byte
	for i, a := range m.aggregators {
		out, err := a.rpc.Register(ctx, r)
		if err != nil {
			return nil, err
		}
		if i > 0 && !bytes.Equal(out.PlanHash, plan) {
			return nil, fmt.Errorf("the aggregators at %s and %s place the tensors differently: they are of different versions",
				m.aggregators[0].url, a.url)
		}
		plan, lanes = out.PlanHash, out.ChunkLanes
	}
	return lanes, nil
}
