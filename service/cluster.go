package service

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"github.com/rackweave/rackweave/hierarchy"
	"github.com/rackweave/rackweave/service/api"
	"github.com/rackweave/rackweave/service/api/apiconnect"
	"github.com/rackweave/rackweave/service/racks"
)

// How racks ask each other: an answer that is not there yet is waited for in turns, and one that fails is asked for again.
const (
	askTurn   = 2 * time.Second
	stateTurn = 20 * time.Second
	askAgain  = 200 * time.Millisecond
	// startGrace is how long a job that has ended keeps what it said, so that the other racks learn it.
	startGrace = 5 * time.Second
)

// hub is what all jobs of an aggregator of a cluster share.
type hub struct {
	declared *cluster // all racks of the cluster
	id       string   // of this process
	url      func() string
	board    *racks.Board
	clients  map[string]*http.Client // by rack; each keeps its connections for the aggregator's life

	watching watching

	mu    sync.Mutex
	runs  map[*job]*run               // that are under way
	links map[string]*hierarchy.Links // by provider and racks, as they were measured last
}

// cluster is the racks that a job runs over, as this aggregator reaches them.
type cluster struct {
	*racks.Cluster
	*hub
	topology hierarchy.Topology
	own      int
}

// run is a job's run over several racks.
type run struct {
	id          string
	began       time.Time
	workers     []int          // by rank of the racks
	ids         []string       // by rack, of its run
	peers       []peer         // by rack; nothing at this one's place
	aggregators map[string]ask // by rack's name, who has asked
}

// peer is the aggregator of another rack.
type peer struct {
	apiconnect.RackServiceClient
	url        string
	aggregator string // identifies the process; empty: whichever is there
}

// ask is who asks for a rack.
type ask struct{ aggregator, url string }

func newCluster(c *racks.Cluster, url func() string) (*cluster, error) {
	if err := c.Check(); err != nil {
		return nil, err
	}
	h := &hub{id: newSession(), url: url, board: racks.NewBoard(), clients: map[string]*http.Client{},
		runs: map[*job]*run{}, links: map[string]*hierarchy.Links{},
		watching: watching{window: windowLasts, measure: (*cluster).measure}}
	if c.Members != nil {
		h.id = c.Members.ID()
	}
	for _, r := range c.Racks {
		trust, err := api.TrustOf(r.CA)
		if err != nil {
			return nil, fmt.Errorf("rack %q: %w", r.Name, err)
		}
		h.clients[r.Name] = &http.Client{Transport: &http.Transport{TLSHandshakeTimeout: 5 * time.Second, IdleConnTimeout: time.Minute,
			MaxIdleConnsPerHost: 4, TLSClientConfig: trust}}
	}
	var err error
	h.declared, err = h.over(c)
	return h.declared, err
}

// over returns the cluster of a declaration.
func (h *hub) over(c *racks.Cluster) (*cluster, error) {
	t, err := c.Topology()
	if err != nil {
		return nil, err
	}
	return &cluster{Cluster: c, hub: h, topology: t, own: c.Index()}, nil
}

// others are the other racks' names.
func (k *cluster) others() []string { return slices.Delete(k.Names(), k.own, k.own+1) }

// dial returns the aggregators of the other racks, at their URLs. Nothing is connected yet.
func (k *cluster) dial() []peer {
	peers := make([]peer, len(k.Racks))
	for i, r := range k.Racks {
		peers[i].url = r.URL
		if i != k.own {
			peers[i].RackServiceClient = apiconnect.NewRackServiceClient(k.clients[r.Name], r.URL)
		}
	}
	return peers
}

// hangUp closes the connections to other racks that no question uses.
func (h *hub) hangUp() {
	for _, c := range h.clients {
		c.CloseIdleConnections()
	}
}

// fields are what a question's seal covers.
func fields(r *api.AskRequest) []string {
	all := []string{r.From, r.To, r.Aggregator, r.Url, r.Job, r.Run, r.Stage, r.Nonce, r.OwnRun, fmt.Sprint(r.AgeMs)}
	if r.State != nil {
		state, _ := proto.MarshalOptions{Deterministic: true}.Marshal(r.State) // never fails
		all = append(all, string(state))
	}
	if r.Probe != nil {
		probe, _ := proto.MarshalOptions{Deterministic: true}.Marshal(r.Probe) // never fails
		all = append(all, "probe", string(probe))
	}
	if r.Reshape != nil {
		reshape, _ := proto.MarshalOptions{Deterministic: true}.Marshal(r.Reshape) // never fails
		all = append(all, "reshape", string(reshape))
	}
	return all
}

// Ask implements the schema's Ask.
func (s *Service) Ask(ctx context.Context, r *api.AskRequest) (*api.AskResponse, error) {
	k := s.cluster
	if k == nil {
		return nil, refuse(connect.CodeFailedPrecondition, "this aggregator is of no cluster: start it with --cluster, or take it out of the file")
	}
	if !racks.Sealed(r.Seal, k.Secret, fields(r)...) {
		s.refusals.count("rack")
		return nil, refuse(connect.CodePermissionDenied, "an aggregator that calls itself rack %q, at %q, has not this cluster's secret",
			printable(r.From, maxHostName), printable(r.Url, maxHostName))
	}
	callerOf(ctx).isRack(r.From)
	switch {
	case r.To != k.Own:
		return nil, refuse(connect.CodeFailedPrecondition, "rack %q asks for rack %q, this is rack %q: give all aggregators the same cluster",
			r.From, r.To, k.Own)
	case r.From == k.Own || !slices.Contains(k.Names(), r.From):
		return nil, refuse(connect.CodeFailedPrecondition, "rack %q is none of the others of %v: give all aggregators the same cluster", r.From,
			k.Names())
	}
	if err := k.claim(r); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, turn(r))
	defer cancel()
	go func() {
		select {
		case <-s.closing:
			cancel()
		case <-ctx.Done():
		}
	}()
	payload, err := s.answer(ctx, r)
	out := &api.AskResponse{Payload: payload, Ready: err == nil}
	if err != nil && (r.State != nil || r.Probe != nil || r.Reshape != nil || !errors.Is(err, ctx.Err())) {
		return nil, err
	}
	out.Seal = racks.Seal(k.Secret, r.Nonce, fmt.Sprint(out.Ready), string(out.Payload))
	return out, nil
}

// answer answers a question, or returns the error of ctx if there is no answer in time.
func (s *Service) answer(ctx context.Context, r *api.AskRequest) ([]byte, error) {
	k := s.cluster
	switch {
	case r.State != nil:
		return k.answerState(ctx, r)
	case r.Probe != nil:
		return s.answerProbe(ctx, r.Probe, len(k.Racks)-1, false)
	case r.Reshape != nil:
		return s.answerReshape(ctx, r)
	}
	payload, err := k.board.Take(ctx, racks.Question{From: r.From, Job: r.Job, Run: r.Run, Stage: r.Stage, Nonce: r.Nonce,
		Asker: r.OwnRun, Since: time.Now().Add(-time.Duration(r.AgeMs) * time.Millisecond)})
	if why := new(racks.GivenUp); errors.As(err, &why) {
		return nil, refuse(connect.CodeAborted, "job %q could not start in rack %q: %s", r.Job, k.Own, printable(why.Why, maxFailureText))
	}
	if errors.Is(err, racks.ErrEnded) {
		return nil, k.endedHere(r.Job)
	}
	return payload, err
}

// turn is how long a question waits for its answer before it is asked again.
func turn(r *api.AskRequest) time.Duration {
	switch {
	case r.State != nil:
		return stateTurn
	case r.Probe != nil:
		return probeTurn
	}
	return askTurn
}

func (k *cluster) endedHere(job string) error {
	return refuse(connect.CodeAborted, "job %q has ended in rack %q: see its aggregator", job, k.Own)
}

// claim refuses an aggregator that claims a rack of another: by the plan where there is one, else while a run goes on with the
// other.
func (k *cluster) claim(r *api.AskRequest) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.Members != nil {
		return k.holds(r)
	}
	for j, u := range k.runs {
		if s := j.state(); s == "failed" || s == "ended" {
			continue
		}
		if was, is := u.aggregators[r.From]; is && was.aggregator != r.Aggregator {
			return refuse(connect.CodeAlreadyExists, "two aggregators claim rack %q, at %s and at %s, and job %q runs with the first: end one of them",
				r.From, was.url, r.Url, j.name)
		}
	}
	for j, u := range k.runs {
		if j.name == r.Job {
			u.aggregators[r.From] = ask{r.Aggregator, printable(r.Url, maxHostName)}
		}
	}
	return nil
}

// begin starts a job's run.
func (k *cluster) begin(j *job, workers []int, peers []peer) *run {
	u := &run{id: newSession(), began: time.Now(), workers: workers, ids: make([]string, len(k.Racks)), peers: peers,
		aggregators: map[string]ask{}}
	k.mu.Lock()
	k.runs[j] = u
	k.mu.Unlock()
	k.board.Begin(j.name, u.id)
	return u
}

// run returns a job's run; nil: it has ended.
func (k *cluster) run(j *job) *run {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.runs[j]
}

// end forgets a job's run. If the job ended well, what it had to say stays for a while: other racks may still ask for it.
func (k *cluster) end(j *job) {
	k.mu.Lock()
	u := k.runs[j]
	delete(k.runs, j)
	k.mu.Unlock()
	if u == nil {
		return
	}
	select {
	case <-j.failed:
		k.board.End(j.name, u.id)
	default:
		time.AfterFunc(startGrace, func() { k.board.End(j.name, u.id) })
	}
}

// giveUp ends the run of a job that could not start, and tells racks that ask why.
func (k *cluster) giveUp(j *job, why error) {
	k.mu.Lock()
	u := k.runs[j]
	delete(k.runs, j)
	k.mu.Unlock()
	if u != nil {
		k.board.GiveUp(j.name, u.id, why.Error(), u.ids)
	}
}

// meet says something to all other racks at a stage of a job, and returns what they say, by rack.
func (k *cluster) meet(ctx context.Context, j *job, u *run, stage string, payload []byte) ([][]byte, error) {
	k.board.Post(j.name, u.id, stage, payload, k.others())
	out, err := k.askAll(ctx, j, u, func(rack int) *api.AskRequest { return &api.AskRequest{Stage: stage} })
	if err != nil {
		return nil, err
	}
	out[k.own] = payload
	return out, nil
}

// askAll asks all other racks of a job's run at once, until they have answered or one cannot; about says what.
func (k *cluster) askAll(ctx context.Context, j *job, u *run, about func(rack int) *api.AskRequest) ([][]byte, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		select {
		case <-j.failed:
			cancel(errors.New("the job has failed"))
		case <-j.s.closing:
			cancel(errShutdown)
		case <-ctx.Done():
		}
	}()
	out := make([][]byte, len(k.Racks))
	errs := make([]error, len(k.Racks))
	var wg sync.WaitGroup
	for i := range k.Racks {
		if i == k.own {
			continue
		}
		wg.Go(func() {
			r := about(i)
			if r == nil {
				return
			}
			r.Job, r.Run = j.name, u.ids[i]
			if out[i], errs[i] = k.ask(ctx, u, i, r); errs[i] != nil {
				cancel(errs[i])
			}
		})
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil && !errors.As(err, new(*askedNoMore)) {
			return nil, err
		}
	}
	return out, cmp.Or(errs...)
}

// askedNoMore is the error of a question that was given up before its deadline.
type askedNoMore struct {
	cause error
	last  error // what came of it so far; nil: nothing
}

func (e *askedNoMore) Error() string {
	if e.last == nil {
		return "asked no more: " + e.cause.Error()
	}
	return fmt.Sprintf("%v; asked no more: %v", e.last, e.cause)
}

// Is matches [context.Canceled].
func (e *askedNoMore) Is(target error) bool { return target == context.Canceled }

func (e *askedNoMore) Unwrap() error { return e.cause }

// How long a question is asked again that fails by what waiting hardly mends. An aggregator may just be starting, and the other
// racks should have come to ask why the job does not begin.
const (
	refusedWithin = 2 * time.Second
	unfitWithin   = time.Second
)

// remedy returns what mends an error that waiting hardly mends, and how long to wait all the same. Empty: waiting may mend it. By
// etcd another aggregator may take the place of one that refuses connections.
func (k *cluster) remedy(err error, url string) (string, time.Duration) {
	switch {
	case errors.As(err, new(*tls.CertificateVerificationError)):
		return "give the sha256:FINGERPRINT that its aggregator printed as ca of the rack in the cluster's file", unfitWithin
	case errors.Is(err, http.ErrSchemeMismatch):
		return "it serves without TLS: write its url with http:// in the cluster's file", unfitWithin
	case strings.HasPrefix(url, "http://") && strings.Contains(err.Error(), "400 Bad Request"):
		return "it serves TLS: write its url with https:// in the cluster's file, and its fingerprint as ca", unfitWithin
	case errors.Is(err, syscall.ECONNREFUSED) && k.Members == nil:
		return "nobody serves it there: start its aggregator, or mend its url in the cluster's file", refusedWithin
	}
	return "", 0
}

// ask asks one rack until it answers.
func (k *cluster) ask(ctx context.Context, u *run, rack int, r *api.AskRequest) ([]byte, error) {
	r.From, r.To, r.Aggregator, r.Url, r.Nonce = k.Own, k.Racks[rack].Name, k.id, k.url(), cmp.Or(r.Nonce, newSession())
	r.OwnRun = u.id
	var last error
	var stuck time.Time // since when tries end in what waiting hardly mends; zero: the last did not
	for {
		r.AgeMs = uint64(time.Since(u.began).Milliseconds())
		r.Seal = racks.Seal(k.Secret, fields(r)...)
		turn, cancel := context.WithTimeout(ctx, 2*turn(r))
		answer, err := u.peers[rack].Ask(turn, r)
		cancel()
		switch code := connect.CodeOf(err); {
		case err == nil && !racks.Sealed(answer.Seal, k.Secret, r.Nonce, fmt.Sprint(answer.Ready), string(answer.Payload)):
			return nil, fmt.Errorf("what answers for rack %q at %s has not this cluster's secret", r.To, u.peers[rack].url)
		case err == nil && answer.Ready:
			return answer.Payload, nil
		case err == nil:
			last = errors.New("it has not come so far")
		case code == connect.CodePermissionDenied || code == connect.CodeFailedPrecondition || code == connect.CodeAborted ||
			code == connect.CodeAlreadyExists || code == connect.CodeUnimplemented:
			return nil, fmt.Errorf("rack %q at %s: %w", r.To, u.peers[rack].url, reason(err))
		case ctx.Err() == nil:
			last = reason(err)
			if remedy, within := k.remedy(err, u.peers[rack].url); remedy == "" {
				stuck = time.Time{}
			} else if stuck.IsZero() {
				stuck = time.Now()
			} else if time.Since(stuck) > within {
				return nil, fmt.Errorf("rack %q at %s: %w: %s", r.To, u.peers[rack].url, last, remedy)
			}
			k.clients[r.To].CloseIdleConnections()                  // they may be as dead
			if err := k.moved(u, rack); err != nil && r.Run == "" { // the job has not begun
				return nil, err
			}
		}
		pause := askAgain
		if err == nil {
			pause = 0
		}
		select {
		case <-time.After(pause):
			if ctx.Err() == nil {
				continue
			}
		case <-ctx.Done():
		}
		if cause := context.Cause(ctx); !errors.Is(cause, context.DeadlineExceeded) {
			return nil, fmt.Errorf("rack %q at %s: %w", r.To, u.peers[rack].url, &askedNoMore{cause, last})
		}
		return nil, fmt.Errorf("rack %q at %s does not come to %q in time: %w", r.To, u.peers[rack].url, cmp.Or(r.Stage, "state"),
			cmp.Or(last, errors.New("it has not answered")))
	}
}
