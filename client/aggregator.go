package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/service/api"
	"github.com/rackweave/rackweave/service/api/apiconnect"
)

// aggregator is one that a worker has joined. Mostly it is the only one. Where a job is spread over several, each has all workers
// and some of the lanes.
type aggregator struct {
	cfg       Config // the worker's, with this one's server
	transport *http.Transport
	at        atomic.Pointer[net.TCPAddr] // where calls reach it
	rpc       apiconnect.JobServiceClient
	info      *api.JoinResponse
	lane, nic int                // the numbers of its first lane and NIC, in the whole job
	watching  chan struct{}      // closed when the watch goroutine has ended
	unwatch   context.CancelFunc // nil: it was never watched
	device    int                // the first of those that lead to it
	down      []uint32           // its NICs that have no link; the follower's
}

// servers splits the URLs of several aggregators.
func (c *Config) servers() []string { return strings.Split(c.Server, ",") }

// dial prepares calls to an aggregator.
func dial(cfg Config) (*aggregator, error) {
	a := &aggregator{cfg: cfg, watching: make(chan struct{})}
	client, transport, err := cfg.httpClient()
	if err != nil {
		return nil, err
	}
	a.transport = transport
	a.noteAddress()
	a.rpc = apiconnect.NewJobServiceClient(client, cfg.Server, api.Identify(func() string { return a.info.GetSession() }, cfg.Token))
	return a, nil
}

// noteAddress makes every connection for calls note the address it leads to.
func (a *aggregator) noteAddress() {
	dial := a.transport.DialContext
	a.transport.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		at, ok := c.RemoteAddr().(*net.TCPAddr)
		if !ok { // a Unix socket: it is on this host
			at = &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)}
		}
		a.at.Store(at)
		return c, nil
	}
}

// join makes the Join call, which waits until all workers have joined.
func (a *aggregator) join(ctx context.Context, r *api.JoinRequest) error {
	err := api.Contact(ctx, a.cfg.Timeout, func(within time.Duration) (err error) {
		call, cancel, ms := callTimeout(ctx, within)
		defer cancel()
		r.TimeoutMs = ms
		a.info, err = a.rpc.Join(call, r)
		return err
	})
	if err != nil {
		a.transport.CloseIdleConnections()
		return becauseOf(ctx, a.cfg.classifyFirst(err))
	}
	if len(a.info.Aggregators) == 0 &&
		(len(a.info.Record) != hyperParameters || len(a.info.Lanes) == 0 || a.info.Window == 0) {
		return errors.New("the aggregator's answer is incomplete: client and aggregator are of different versions")
	}
	return nil
}

// request is what the worker asks of every aggregator.
func (w *Worker) request() (*api.JoinRequest, error) {
	providers, err := w.cfg.providersHere()
	if err != nil {
		return nil, err
	}
	host, _ := os.Hostname()
	return &api.JoinRequest{
		Job: w.cfg.Job, Rank: int32(w.cfg.Rank), Workers: uint32(w.cfg.Workers), Mode: w.cfg.Mode,
		Policy: w.cfg.Policy, Outer: w.cfg.Outer, OnLoss: w.cfg.OnLoss, Optimizer: w.cfg.Optimizer, Hyper: w.cfg.Hyper,
		ChunkBytes: uint32(w.cfg.ChunkBytes),
		Provider:   w.cfg.Provider, Providers: providers, HostId: api.HostID(), Host: host, Pid: int64(os.Getpid()),
		Uid: uint32(os.Geteuid()), Spreads: true, Run: w.cfg.Run,
	}, nil
}

// enrol joins the aggregator, or all that the job is spread over.
func (w *Worker) enrol(ctx context.Context) error {
	r, err := w.request()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() { // the job may end at one while another is being joined
		select {
		case <-w.failed:
			cancel()
		case <-ctx.Done():
		}
	}()
	err = api.Enrol(api.Aggregators(w.cfg.servers(), w.cfg.CA), r, func(at *api.Aggregator) (*api.JoinResponse, func() error, error) {
		cfg := w.cfg
		cfg.Server, cfg.CA = strings.TrimRight(at.Url, "/"), at.Ca
		a, err := dial(cfg)
		if err == nil {
			err = a.join(ctx, r)
		}
		if err != nil {
			return nil, nil, err
		}
		if len(a.info.Aggregators) > 0 {
			a.transport.CloseIdleConnections()
		}
		return a.info, func() error { return w.joined(a) }, nil
	})
	if failed := w.Err(); failed != nil {
		return failed
	}
	w.spread.Store(err == nil && w.several())
	return err
}

// joined takes note of an aggregator that has this worker, and follows it.
func (w *Worker) joined(a *aggregator) error {
	if n := len(w.aggregators); n > 0 {
		before := w.aggregators[n-1]
		lanes := before.lanes()
		a.lane, a.nic = before.lane+len(lanes), before.nic+chunk.NICs(lanes)
	} else {
		w.info, w.hyper = a.info, hyperOf(a.info.Record)
		w.seat = seat{int(a.info.Rank), int(a.info.Workers), a.info.Rack, a.info.Racks, a.info.RackWorkers}
	}
	w.aggregators = append(w.aggregators, a)
	if err := w.watch(a); err != nil || !w.several() {
		return err
	}
	return w.aggregators[0].agrees(a)
}

// agrees reports in what another aggregator of the job differs.
func (a *aggregator) agrees(other *aggregator) error {
	x, y := a.info, other.info
	for _, f := range []struct {
		what string
		a, b any
	}{
		{"lanes", chunk.Spread(a.lanes(), 1), chunk.Spread(other.lanes(), 1)}, {"provider", x.Provider, y.Provider},
		{"window", x.Window, y.Window}, {"depth of queues", [2]uint32{x.SendDepth, x.RecvDepth}, [2]uint32{y.SendDepth, y.RecvDepth}},
		{"reading by reference", x.ByReference, y.ByReference}, {"link timeout in ms", x.LinkTimeoutMs, y.LinkTimeoutMs},
		{"rank", x.Rank, y.Rank}, {"hyper-parameters", x.Record, y.Record}, {"workers by rack", x.RackWorkers, y.RackWorkers},
		{"pods", x.Pods, y.Pods},
	} {
		if p, q := fmt.Sprint(f.a), fmt.Sprint(f.b); p != q {
			return fmt.Errorf("it has %s %s, the one at %s has %s: give all aggregators of a job the same cores, NICs, settings and version",
				f.what, q, a.cfg.Server, p)
		}
	}
	return nil
}

// lanes are the aggregator's, in the plan's form.
func (a *aggregator) lanes() []chunk.Lane {
	out := make([]chunk.Lane, len(a.info.Lanes))
	for i, l := range a.info.Lanes {
		out[i] = chunk.Lane{NIC: int(l.Nic), Core: int(l.Core), Weight: l.Weight}
	}
	return out
}

// places are the lanes of all aggregators.
func (w *Worker) places() []chunk.Lane {
	own := w.aggregators[0].lanes()
	if w.several() {
		return chunk.Spread(own, len(w.aggregators))
	}
	return own
}

// several reports whether the job is spread over several aggregators.
func (w *Worker) several() bool { return len(w.aggregators) > 1 }

// each is how many NICs each aggregator has, where there are several.
func (w *Worker) each() int {
	if !w.several() {
		return 0
	}
	return chunk.NICs(w.aggregators[0].lanes())
}

// of is the aggregator that has a lane.
func (w *Worker) of(lane int) *aggregator {
	return w.aggregators[lane/len(w.aggregators[0].info.Lanes)]
}

// everywhere makes a call to all aggregators at once. Its error is that of the first that has one.
func (w *Worker) everywhere(call func(i int, a *aggregator) error) error {
	if !w.several() {
		return call(0, w.aggregators[0])
	}
	errs := make([]error, len(w.aggregators))
	var all sync.WaitGroup
	for i, a := range w.aggregators {
		all.Go(func() {
			if err := call(i, a); err != nil {
				errs[i] = &oneError{a.cfg.Server, err}
			}
		})
	}
	all.Wait()
	return cmp.Or(errs...)
}

// oneError is the error of one of several aggregators.
type oneError struct {
	server string
	err    error
}

func (e *oneError) Error() string { return fmt.Sprintf("%s: %v", e.server, e.err) }

func (e *oneError) Unwrap() error { return e.err }

// watch opens the stream that ties this worker's life to an aggregator's, and follows it.
func (w *Worker) watch(a *aggregator) error {
	ctx, cancel := context.WithCancelCause(context.Background())
	a.unwatch = func() { cancel(nil) }
	stream, err := a.rpc.Watch(ctx, &api.WatchRequest{})
	if err != nil {
		cancel(err)
		close(a.watching)
		return classify(err)
	}
	// An aggregator that sends no heartbeat for this long is gone, even if its host answers pings.
	patience := 10 * time.Duration(a.info.HeartbeatMs) * time.Millisecond
	silence := time.AfterFunc(patience, func() { cancel(fmt.Errorf("no heartbeat for %v", patience)) })
	go func() {
		defer close(a.watching)
		defer stream.Close()
		defer silence.Stop()
		for stream.Receive() {
			silence.Reset(patience)
			if l := stream.Msg().Links; l != nil {
				w.failover.told(a, l)
			}
			if f := stream.Msg().Failure; f != nil {
				if !w.leaving.Load() {
					w.ended(&JobError{Job: w.cfg.Job, Rank: int(f.Rank), Text: f.Text}, f.Rank)
				}
				return
			}
		}
		if !w.leaving.Load() {
			why := cmp.Or(context.Cause(ctx), stream.Err(), io.EOF)
			w.ended(fmt.Errorf("%w: the connection to %s broke: %w", ErrServerLost, a.cfg.Server, why), -1)
		}
	}()
	return nil
}

// ended takes note that the job has ended at an aggregator, because of a worker, or because the aggregator is lost: -1. Others that
// the job is spread over learn it at once; while they are still being joined, by that.
func (w *Worker) ended(why error, rank int32) {
	w.blamed.CompareAndSwap(nil, &rank)
	if w.spread.Load() {
		w.giveUp(why)
	} else {
		w.fail(why)
	}
}
