package membership

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"

	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/service/api"
)

// Config describes a worker's membership.
type Config struct {
	Access // to the aggregator, or, with the URLs of several and commas between them, to all over which the job is spread
	// Links, if not nil, is called with an aggregator's reports of its links and broken connections, by a goroutine of the aggregator.
	Links func(*Aggregator, *api.Links)
	// Codecs, if not nil, makes the worker use the codecs that an aggregator announces, likewise. On an error it refuses them.
	Codecs func(*Aggregator, *api.Codecs) error
}

// Membership is a worker's membership in a job. Its methods may be called from any goroutine.
type Membership struct {
	cfg    Config
	job    string
	All    []*Aggregator // in the order in which all workers join them; at least one
	spread atomic.Bool   // all of several aggregators were joined

	once   sync.Once
	failed context.Context // ended by the worker's failure, its cause
	fail   context.CancelCauseFunc
	blamed atomic.Pointer[int32] // the rank that an aggregator has named for the failure, or -1 if an aggregator is lost

	streams  context.Context // that aggregators send to the worker, by which it follows them
	unwatch  context.CancelFunc
	watching sync.WaitGroup

	notifying sync.WaitGroup
	leaving   atomic.Bool
}

const (
	// ReasonWait is the time that a failure of the data path waits for the control plane to report its cause. Two
	// aggregators relay a cause from another rack, and each may wait for it first.
	ReasonWait   = 1500 * time.Millisecond
	leaveWithin  = 5 * time.Second
	acceptWithin = 2 * time.Second
	failWithin   = 2 * time.Second // for an aggregator to record a failure; one that is stopped does not
)

// Join joins the aggregator, or all over which the job is spread, when all workers have joined. r is the worker's request, whose
// host, and by the aggregators' answers rank, provider and place Join completes.
func Join(ctx context.Context, cfg Config, r *api.JoinRequest) (*Membership, error) {
	m := &Membership{cfg: cfg, job: r.Job}
	m.failed, m.fail = context.WithCancelCause(context.Background())
	m.streams, m.unwatch = context.WithCancel(context.Background())
	r.HostId, r.Spreads = api.HostID(), true
	r.Host, _ = os.Hostname()
	err := m.join(ctx, r)
	m.spread.Store(err == nil && m.Several())
	if err = cmp.Or(m.Err(), err); err == nil {
		return m, nil
	}
	if len(m.All) > 0 {
		_ = m.Leave(err)
		m.Close()
	}
	return nil, err
}

// join joins the aggregators in the order in which all workers do. If one alone is configured, it may answer with others to join
// instead. The first of several chooses the rank and the provider.
func (m *Membership) join(ctx context.Context, r *api.JoinRequest) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(m.failed, cancel)() // the job may end at one aggregator while the worker joins another
	var all []*api.Aggregator
	for u := range strings.SplitSeq(m.cfg.Server, ",") {
		all = append(all, &api.Aggregator{Url: u})
	}
	for i, sent := 0, false; i < len(all); i++ {
		if r.Part = uint32(i); len(all) > 1 {
			r.Parts = uint32(len(all))
		}
		if i == 0 && (r.Provider == "" || r.Provider == "auto") && !sameHost(all) {
			r.Providers = slices.DeleteFunc(r.Providers, func(p string) bool { return p == "shm" })
		}
		a, err := m.joinOne(ctx, all[i], r)
		switch {
		case err == nil && len(a.Info.Aggregators) == 0:
			if err = m.add(a); err == nil && r.Compress != "" && a.Info.Compress == "" {
				err = fmt.Errorf("it is of a version without codecs, and would leave out %s: update it, or name none", r.Compress)
			}
		case err == nil && len(all) == 1 && !sent:
			a.Close()
			all, r.Rack, sent, i = a.Info.Aggregators, a.Info.Rack, true, -1
			continue
		case err == nil:
			err = errors.New("it sends workers on to others: give all aggregators the same cluster")
		}
		switch {
		case err != nil && (len(all) > 1 || sent):
			return fmt.Errorf("aggregator %d of %d at %s: %w", i+1, len(all), all[i].Url, err)
		case err != nil:
			return err
		}
		r.Rank, r.Provider = int32(a.Info.Rank), a.Info.Provider
	}
	return nil
}

func (m *Membership) joinOne(ctx context.Context, at *api.Aggregator, r *api.JoinRequest) (*Aggregator, error) {
	access := m.cfg.Access
	access.Server, access.CA = strings.TrimRight(at.Url, "/"), cmp.Or(at.Ca, access.CA)
	a, err := Dial(access)
	if err != nil {
		return nil, err
	}
	return a, a.join(ctx, r)
}

// sameHost reports whether the URLs of aggregators have the same host, so that a worker may share memory with all.
func sameHost(all []*api.Aggregator) bool {
	host := func(a *api.Aggregator) string {
		u, err := url.Parse(a.Url)
		if err != nil {
			return a.Url // dialling it reports the error
		}
		return u.Hostname()
	}
	return !slices.ContainsFunc(all, func(a *api.Aggregator) bool { return host(a) != host(all[0]) })
}

// add adds an aggregator that has this worker, and follows it. One that differs from the first is an error.
func (m *Membership) add(a *Aggregator) error {
	lanes := a.Lanes()
	a.Number = len(m.All)
	a.Lane, a.NIC = a.Number*len(lanes), a.Number*chunk.NICs(lanes)
	m.All = append(m.All, a)
	if err := m.watch(a); err != nil {
		return err
	}
	first := m.All[0]
	for i, term := range a.Info.Terms[:min(len(a.Info.Terms), len(first.Info.Terms))] {
		if its := first.Info.Terms[i]; term != its {
			return fmt.Errorf("it has %s, the one at %s has %s: give all aggregators of a job the same cores, NICs, settings and version",
				term, first.Server, its)
		}
	}
	return nil
}

// watch opens the stream that ties this worker's life to an aggregator's, and follows it.
func (m *Membership) watch(a *Aggregator) error {
	ctx, cancel := context.WithCancelCause(m.streams)
	// An aggregator that sends no heartbeat for this long is gone, even if its host answers pings.
	patience := 10 * time.Duration(a.Info.HeartbeatMs) * time.Millisecond
	silence := time.AfterFunc(patience, func() { cancel(fmt.Errorf("no heartbeat for %v", patience)) })
	stream, err := a.RPC.Watch(ctx, &api.WatchRequest{})
	if err != nil {
		silence.Stop()
		cancel(err)
		return withCause(ctx, classify(err))
	}
	m.watching.Go(func() {
		defer stream.Close()
		defer silence.Stop()
		for stream.Receive() {
			silence.Reset(patience)
			if l := stream.Msg().Links; l != nil && m.cfg.Links != nil {
				m.cfg.Links(a, l)
			}
			if c := stream.Msg().Codecs; c != nil {
				m.take(ctx, a, c)
			}
			if f := stream.Msg().Failure; f != nil {
				m.end(&JobError{Job: m.job, Rank: int(f.Rank), Text: f.Text}, f.Rank)
				return
			}
		}
		why := cmp.Or(context.Cause(ctx), stream.Err(), io.EOF)
		m.end(fmt.Errorf("%w: the connection to %s broke: %w", ErrServerLost, a.Server, why), -1)
	})
	return nil
}

// take answers to codecs. If the answer does not arrive, the aggregator withdraws them.
func (m *Membership) take(ctx context.Context, a *Aggregator, c *api.Codecs) {
	r := &api.AcceptCodecsRequest{Version: c.Version, Accepted: m.cfg.Codecs != nil && m.cfg.Codecs(a, c) == nil}
	if c.Version == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, acceptWithin)
	defer cancel()
	_, _ = a.RPC.AcceptCodecs(ctx, r)
}

// end records that the job has ended at an aggregator because of the worker of a rank, or, with -1, that the aggregator is lost. It
// notifies the other aggregators; while the worker still joins, Join does.
func (m *Membership) end(why error, rank int32) {
	if !m.leaving.Load() {
		m.failOnce(why, m.blamed.CompareAndSwap(nil, &rank) && m.spread.Load())
	}
}

// Fail makes err the worker's failure, unless it has one.
func (m *Membership) Fail(err error) { m.failOnce(err, false) }

// GiveUp is like Fail, and notifies the aggregators at once, so that the other workers need not wait for Leave.
func (m *Membership) GiveUp(err error) { m.failOnce(err, true) }

func (m *Membership) failOnce(err error, notify bool) {
	m.once.Do(func() {
		if notify { // before anyone sees the failure
			m.notifying.Go(func() { _ = m.leave(err) })
		}
		m.fail(err)
	})
}

// Err returns the worker's failure, or nil while it has none.
func (m *Membership) Err() error { return context.Cause(m.failed) }

// Failed returns a channel that is closed when the worker has failed.
func (m *Membership) Failed() <-chan struct{} { return m.failed.Done() }

// Leave makes the Leave calls. With a reason the job fails.
func (m *Membership) Leave(reason error) error {
	m.leaving.Store(true)
	err := m.leave(reason)
	if err != nil {
		err = classify(err)
		m.Fail(err) // the aggregator finds out by the watch stream's end
	}
	return err
}

func (m *Membership) leave(reason error) error {
	request, within := &api.LeaveRequest{}, leaveWithin
	if reason != nil {
		request.Failure, request.Blame, within = reason.Error(), m.blamed.Load(), failWithin
	}
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	return m.Each(func(a *Aggregator) error {
		_, err := a.RPC.Leave(ctx, request)
		return err
	})
}

// Close ends the streams. An aggregator that the worker has not left finds it lost.
func (m *Membership) Close() {
	m.leaving.Store(true)
	m.Fail(ErrClosed)
	m.notifying.Wait()
	m.unwatch()
	m.watching.Wait()
	for _, a := range m.All {
		a.Close()
	}
}

// Several reports whether the job is spread over several aggregators.
func (m *Membership) Several() bool { return len(m.All) > 1 }

// Lanes returns the lanes of all aggregators.
func (m *Membership) Lanes() []chunk.Lane {
	own := m.All[0].Lanes()
	if m.Several() {
		return chunk.Spread(own, len(m.All))
	}
	return own
}

// Of returns the aggregator that has a lane.
func (m *Membership) Of(lane int) *Aggregator { return m.All[lane/len(m.All[0].Info.Lanes)] }

// Each makes a call to all aggregators at once. Its error is that of the first that has one.
func (m *Membership) Each(call func(a *Aggregator) error) error {
	if !m.Several() {
		return call(m.All[0])
	}
	errs := make([]error, len(m.All))
	var all sync.WaitGroup
	for i, a := range m.All {
		all.Go(func() {
			if err := call(a); err != nil {
				errs[i] = &partError{a.Server, err}
			}
		})
	}
	all.Wait()
	return cmp.Or(errs...)
}

// Connect sends the ends of the worker's lanes to the aggregators that have the lanes, and returns theirs.
func (m *Membership) Connect(ctx context.Context, r *api.ConnectRequest) ([]*api.AggregatorLane, error) {
	n := len(m.All[0].Info.Lanes)
	out := make([]*api.AggregatorLane, len(r.Lanes))
	err := m.Each(func(a *Aggregator) error {
		answer, err := a.RPC.Connect(ctx, &api.ConnectRequest{
			Lanes: r.Lanes[a.Lane : a.Lane+n], TimeoutMs: r.TimeoutMs, AckTimeoutMs: r.AckTimeoutMs, Resumable: r.Resumable,
		})
		if err == nil && len(answer.Lanes) != n {
			err = fmt.Errorf("the aggregator answers for %d lanes of %d", len(answer.Lanes), n)
		}
		if err == nil {
			copy(out[a.Lane:], answer.Lanes)
		}
		return err
	})
	return out, m.Explain("connect", err)
}

// Register registers tensors at all aggregators, whose plans must be equal, and returns the first one's answer.
func (m *Membership) Register(ctx context.Context, r *api.RegisterRequest) (*api.RegisterResponse, error) {
	answers := make([]*api.RegisterResponse, len(m.All))
	err := m.Each(func(a *Aggregator) (err error) {
		answers[a.Number], err = a.RPC.Register(ctx, r)
		return err
	})
	if err != nil {
		return nil, m.Explain("register", err)
	}
	for i, r := range answers {
		if !slices.Equal(r.PlanHash, answers[0].PlanHash) {
			err := fmt.Errorf("register: the aggregators at %s and %s place the tensors differently: they are of different versions",
				m.All[0].Server, m.All[i].Server)
			m.GiveUp(err)
			return nil, err
		}
	}
	return answers[0], nil
}

// Explain returns the worker's failure instead of a call's error that follows from it, and other errors as this package's.
func (m *Membership) Explain(what string, err error) error {
	if err == nil {
		return nil
	}
	if code := connect.CodeOf(err); code == connect.CodeAborted || code == connect.CodeUnauthenticated { // the session has ended
		m.AwaitReason()
	}
	if failed := m.Err(); failed != nil {
		return fmt.Errorf("%s: %w", what, failed)
	}
	if part := new(partError); errors.As(err, &part) {
		what = fmt.Sprintf("%s at %s", what, part.server)
	}
	return fmt.Errorf("%s: %w", what, classify(err))
}

// AwaitReason waits a while for an aggregator to report the reason of a failure, and reports whether the worker has failed.
func (m *Membership) AwaitReason() bool {
	select {
	case <-m.failed.Done():
		return true
	case <-time.After(ReasonWait):
		return false
	}
}
