package service

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"connectrpc.com/connect"

	"github.com/rackweave/rackweave/hierarchy"
	"github.com/rackweave/rackweave/service/api"
	"github.com/rackweave/rackweave/service/api/apiconnect"
	"github.com/rackweave/rackweave/service/racks"
)

// How racks ask each other: an answer that is not there yet is waited for in turns, and one that fails is asked for again.
const (
	askTurn  = 2 * time.Second
	askAgain = 200 * time.Millisecond
	// startGrace is how long a job that could not start, or has ended, keeps what it said, so that the other racks learn it.
	startGrace = 5 * time.Second
)

// cluster is the other racks, as this aggregator reaches them.
type cluster struct {
	*racks.Cluster
	topology hierarchy.Topology
	own      int
	id       string // of this process
	url      func() string
	board    *racks.Board
	peers    []apiconnect.RackServiceClient // by rack; nil at this one's place

	mu   sync.Mutex
	runs map[*job]*run // that are under way
}

// run is a job's run over several racks.
type run struct {
	id          string
	workers     []int          // by rank of the racks
	ids         []string       // by rack, of its run
	aggregators map[string]ask // by rack's name, who has asked
}

// ask is who asks for a rack.
type ask struct{ aggregator, url string }

func newCluster(c *racks.Cluster, url func() string) (*cluster, error) {
	if err := c.Check(); err != nil {
		return nil, err
	}
	t, err := c.Topology()
	if err != nil {
		return nil, err
	}
	k := &cluster{Cluster: c, topology: t, own: c.Index(), id: newSession(), url: url, board: racks.NewBoard(), runs: map[*job]*run{}}
	for i, r := range c.Racks {
		var peer apiconnect.RackServiceClient
		if i != k.own {
			h, err := peerHTTP(r.CA)
			if err != nil {
				return nil, fmt.Errorf("rack %q: %w", r.Name, err)
			}
			peer = apiconnect.NewRackServiceClient(h, r.URL)
		}
		k.peers = append(k.peers, peer)
	}
	return k, nil
}

func peerHTTP(ca string) (*http.Client, error) {
	trust, err := api.TrustOf(ca)
	if err != nil {
		return nil, err
	}
	return &http.Client{Transport: &http.Transport{TLSHandshakeTimeout: 5 * time.Second, IdleConnTimeout: time.Minute,
		MaxIdleConnsPerHost: 4, TLSClientConfig: trust}}, nil
}

// fields are what a question's seal covers.
func fields(r *api.AskRequest) []string {
	return []string{r.From, r.To, r.Aggregator, r.Url, r.Job, r.Run, r.Stage, r.Nonce}
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
	ctx, cancel := context.WithTimeout(ctx, askTurn)
	defer cancel()
	go func() {
		select {
		case <-s.closing:
			cancel()
		case <-ctx.Done():
		}
	}()
	payload, ok, gone := k.board.Take(ctx, r.From, r.Job, r.Run, r.Stage, r.Nonce)
	if gone {
		return nil, refuse(connect.CodeAborted, "job %q has ended in rack %q: see its aggregator", r.Job, k.Own)
	}
	out := &api.AskResponse{Ready: ok, Payload: payload}
	out.Seal = racks.Seal(k.Secret, r.Nonce, fmt.Sprint(out.Ready), string(out.Payload))
	return out, nil
}

// claim refuses a second aggregator that claims a rack while a run goes on with the first.
func (k *cluster) claim(r *api.AskRequest) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	for j, u := range k.runs {
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
func (k *cluster) begin(j *job, workers []int) *run {
	u := &run{id: newSession(), workers: workers, ids: make([]string, len(k.Racks)), aggregators: map[string]ask{}}
	k.mu.Lock()
	k.runs[j] = u
	k.mu.Unlock()
	k.board.Begin(j.name, u.id)
	return u
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

// meet says something to all other racks at a stage of a job, and returns what they say, by rack.
func (k *cluster) meet(ctx context.Context, j *job, u *run, stage string, payload []byte) ([][]byte, error) {
	k.board.Post(j.name, u.id, stage, payload, len(k.Racks)-1)
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
			out[i] = payload
			continue
		}
		wg.Go(func() {
			if out[i], errs[i] = k.ask(ctx, i, j.name, u.ids[i], stage); errs[i] != nil {
				cancel(errs[i])
			}
		})
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil && !errors.Is(err, context.Canceled) {
			return nil, err
		}
	}
	return out, errors.Join(errs...)
}

// ask asks one rack until it answers.
func (k *cluster) ask(ctx context.Context, rack int, job, run, stage string) ([]byte, error) {
	r := &api.AskRequest{
		From: k.Own, To: k.Racks[rack].Name, Aggregator: k.id, Url: k.url(), Job: job, Run: run, Stage: stage, Nonce: newSession(),
	}
	r.Seal = racks.Seal(k.Secret, fields(r)...)
	var last error
	for {
		turn, cancel := context.WithTimeout(ctx, 2*askTurn)
		answer, err := k.peers[rack].Ask(turn, r)
		cancel()
		switch code := connect.CodeOf(err); {
		case err == nil && !racks.Sealed(answer.Seal, k.Secret, r.Nonce, fmt.Sprint(answer.Ready), string(answer.Payload)):
			return nil, fmt.Errorf("what answers for rack %q at %s has not this cluster's secret", r.To, k.Racks[rack].URL)
		case err == nil && answer.Ready:
			return answer.Payload, nil
		case err == nil:
			last = errors.New("it has not come so far")
		case code == connect.CodePermissionDenied || code == connect.CodeFailedPrecondition || code == connect.CodeAborted ||
			code == connect.CodeAlreadyExists || code == connect.CodeUnimplemented:
			return nil, fmt.Errorf("rack %q at %s: %w", r.To, k.Racks[rack].URL, reason(err))
		case ctx.Err() == nil:
			last = reason(err)
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
			return nil, fmt.Errorf("rack %q at %s: %w", r.To, k.Racks[rack].URL, errors.Join(cause, context.Canceled))
		}
		return nil, fmt.Errorf("rack %q at %s does not come to %q in time: %w", r.To, k.Racks[rack].URL, stage, last)
	}
}
