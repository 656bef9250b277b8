package cluster

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/proto"

	"github.com/rackweave/rackweave/hierarchy"
	"github.com/rackweave/rackweave/hierarchy/planner"
	"github.com/rackweave/rackweave/service/api"
	"github.com/rackweave/rackweave/service/api/apiconnect"
	"github.com/rackweave/rackweave/service/job"
	"github.com/rackweave/rackweave/service/racks"
	"github.com/rackweave/rackweave/service/rpc"
)

// A question without an answer within its timeout is asked again, and so is one that fails, after a pause.
const (
	askTimeout   = 2 * time.Second
	stateTimeout = 20 * time.Second
	probeTimeout = 10 * time.Second // of a question of a measurement
	askAgain     = 200 * time.Millisecond
	// startGrace is the time for which the posts of a job that has ended stay, so that the other racks can read them.
	startGrace = 5 * time.Second
)

// Config configures an aggregator's part in a cluster.
type Config struct {
	Cluster *racks.Cluster
	URL     func() string // of the aggregator
	// State answers another rack's question about the state of a job. It calls payload for the bytes that it must write.
	State func(ctx context.Context, j *job.Job, from int, q *api.StateQuestion,
		payload func(bytes int) ([]byte, error)) ([]byte, error)
}

// hub is shared by all jobs of an aggregator in a cluster.
type hub struct {
	Config
	jobs     *job.Table
	declared *Cluster // all racks of the cluster
	id       string   // of this process
	board    *racks.Board
	clients  map[string]*http.Client // by rack; each keeps its connections for the aggregator's life

	mu    sync.Mutex
	runs  map[*Rendezvous]bool      // under way
	links map[string]*planner.Links // by provider and racks, as measured last

	probing chan struct{} // has an element while a link from here is measured
	farMu   sync.Mutex    // held to change far
	far     *farEnd       // of a link to here. If nil, none is measured.
}

// Cluster holds the racks that a job runs over, as this aggregator reaches them. A nil Cluster is the part of an aggregator that is
// in none.
type Cluster struct {
	*racks.Cluster
	*hub
	topology hierarchy.Topology
	own      int
}

// run asks other racks: for a job over several of them, or for a measurement of links.
type run struct {
	k     *Cluster
	job   string // If empty, it measures.
	id    string
	began time.Time
	ids   []string // by rack, of its run
	peers []peer   // by rack, without a client for this one
}

func (k *Cluster) newRun(job string, peers []peer) run {
	return run{k: k, job: job, id: rpc.NewID(), began: time.Now(), ids: make([]string, len(peers)), peers: peers}
}

// peer is the aggregator of another rack.
type peer struct {
	apiconnect.RackServiceClient
	url        string
	aggregator string // identifies the process. If empty, any may serve the rack.
}

// ask identifies the aggregator that asks for a rack.
type ask struct{ aggregator, url string }

// New returns an aggregator's part in a cluster.
func New(config Config) (*Cluster, error) {
	c := config.Cluster
	if err := c.Check(); err != nil {
		return nil, err
	}
	h := &hub{Config: config, id: rpc.NewID(), board: racks.NewBoard(), clients: map[string]*http.Client{},
		runs: map[*Rendezvous]bool{}, links: map[string]*planner.Links{}, probing: make(chan struct{}, 1)}
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

// OwnURL returns the URL of this aggregator in the cluster's declaration.
func (k *Cluster) OwnURL() string {
	if k == nil {
		return ""
	}
	return k.Racks[k.own].URL
}

// Open sets the jobs, before other racks ask about them.
func (k *Cluster) Open(jobs *job.Table) {
	if k != nil {
		k.jobs = jobs
	}
}

// Standing returns who serves which rack now. It returns false if that is fixed by the cluster's file.
func (k *Cluster) Standing() (s racks.Standing, dynamic bool) {
	if !k.planned() {
		return s, false
	}
	return k.Members.Standing(), true
}

// CheckTLS returns an error if the declaration has this aggregator, which serves TLS, without TLS.
func (k *Cluster) CheckTLS() error {
	if at := k.OwnURL(); !k.planned() && strings.HasPrefix(at, "http://") {
		return fmt.Errorf("rack %q is at %s in the cluster's file, and its aggregator serves TLS: write https:// there, and its fingerprint as ca",
			k.Own, at)
	}
	return nil
}

// over returns the cluster of a declaration.
func (h *hub) over(c *racks.Cluster) (*Cluster, error) {
	t, err := c.Topology()
	if err != nil {
		return nil, err
	}
	return &Cluster{Cluster: c, hub: h, topology: t, own: c.Index()}, nil
}

// others returns the names of the other racks.
func (k *Cluster) others() []string { return slices.Delete(k.Names(), k.own, k.own+1) }

// dial returns the aggregators of the other racks by a plan, or by the cluster's file if p is nil. Nothing is connected yet.
func (k *Cluster) dial(p *racks.Plan) []peer {
	peers := make([]peer, len(k.Racks))
	for i, r := range k.Racks {
		peers[i].url = r.URL
		if p != nil {
			h := k.holder(p, r.Name)
			peers[i].url, peers[i].aggregator = h.URL, h.Aggregator
		}
		if i != k.own {
			peers[i].RackServiceClient = apiconnect.NewRackServiceClient(k.clients[r.Name], peers[i].url)
		}
	}
	return peers
}

// Close ends a measurement that is under way, and closes the connections to other racks. No question uses them.
func (k *Cluster) Close() {
	if k == nil {
		return
	}
	if err := k.closeFar(""); err != nil {
		k.jobs.Log.Error("end a measurement of links", "err", err)
	}
	for _, c := range k.clients {
		c.CloseIdleConnections()
	}
}

// fields returns the fields of a question that its seal covers.
func fields(r *api.AskRequest) []string {
	all := []string{r.From, r.To, r.Aggregator, r.Url, r.Job, r.Run, r.Stage, r.Nonce, r.OwnRun, fmt.Sprint(r.AgeMs), r.Division}
	if r.State != nil {
		state, _ := proto.MarshalOptions{Deterministic: true}.Marshal(r.State) // never fails
		all = append(all, string(state))
	}
	if r.Probe != nil {
		probe, _ := proto.MarshalOptions{Deterministic: true}.Marshal(r.Probe) // never fails
		all = append(all, "probe", string(probe))
	}
	return all
}

func errAlone() error {
	return rpc.Refuse(connect.CodeFailedPrecondition,
		"this aggregator is of no cluster: start it with --cluster, or take it out of the file")
}

// sameFile is the remedy if aggregators disagree about their racks.
const sameFile = "give all aggregators the same cluster's file, and each its own --rack"

// timeout returns the time after which a question without an answer is asked again.
func timeout(r *api.AskRequest) time.Duration {
	switch {
	case r.State != nil:
		return stateTimeout
	case r.Probe != nil:
		return probeTimeout
	}
	return askTimeout
}

func endedHere(job, rack string) error {
	return rpc.Refuse(connect.CodeAborted, "job %q has ended in rack %q: see its aggregator", job, rack)
}

// begin starts the job's run.
func (r *Rendezvous) begin(peers []peer) {
	k := r.k
	r.run, r.aggregators = k.newRun(r.j.Name, peers), map[string]ask{}
	k.mu.Lock()
	k.runs[r] = true
	k.mu.Unlock()
	k.board.Begin(r.job, r.id)
}

// exchange posts a payload to all other racks at a stage of the job, and returns theirs by rack.
func (r *Rendezvous) exchange(ctx context.Context, stage string, payload []byte) ([][]byte, error) {
	r.k.board.Post(r.id, stage, payload, r.k.others())
	out, err := r.askAll(ctx, func(rack int) *api.AskRequest { return &api.AskRequest{Stage: stage} })
	if err != nil {
		return nil, err
	}
	out[r.k.own] = payload
	return out, nil
}

// swap exchanges values with all other racks at a stage of a job. The value of a rack that posts none is left zero.
func swap[T any](ctx context.Context, r *Rendezvous, stage string, ours T) ([]T, error) {
	payload, err := json.Marshal(ours)
	if err != nil {
		return nil, err
	}
	answers, err := r.exchange(ctx, stage, payload)
	if err != nil {
		return nil, err
	}
	all := make([]T, len(answers))
	for i, a := range answers {
		if err := json.Unmarshal(a, &all[i]); err != nil && len(a) > 0 {
			return nil, fmt.Errorf("what rack %q gives for %q cannot be read: %w", r.k.Racks[i].Name, stage,
				errors.Join(err, rpc.ErrVersions))
		}
	}
	return all, nil
}

// askAll asks all other racks at once, until they have answered or one cannot. about returns the question to a rack, or nil.
func (r *Rendezvous) askAll(ctx context.Context, about func(rack int) *api.AskRequest) ([][]byte, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		select {
		case <-r.j.Failed:
			cancel(errors.New("the job has failed"))
		case <-r.k.jobs.Closing:
			cancel(job.ErrShutdown)
		case <-ctx.Done():
		}
	}()
	out := make([][]byte, len(r.peers))
	g, asking := errgroup.WithContext(ctx)
	for i := range out {
		if i == r.k.own {
			continue
		}
		g.Go(func() (err error) {
			if q := about(i); q != nil {
				out[i], err = r.ask(asking, i, q)
			}
			return err
		})
	}
	return out, g.Wait()
}

// These constants limit how long a question is asked again after an error that is probably permanent. The aggregator may just be
// starting, and the other racks must have time to ask why the job does not begin.
const (
	refusedWithin = 2 * time.Second
	unfitWithin   = time.Second
)

// remedyOf returns the remedy for an error that waiting hardly mends, and the time to wait all the same. The remedy is empty if
// waiting may mend the error. By etcd another aggregator may take the place of one that refuses connections.
func remedyOf(err error, url string, planned bool) (string, time.Duration) {
	switch {
	case errors.As(err, new(*tls.CertificateVerificationError)):
		return "give the sha256:FINGERPRINT that its aggregator printed as ca of the rack in the cluster's file", unfitWithin
	case errors.Is(err, http.ErrSchemeMismatch):
		return "it serves without TLS: write its url with http:// in the cluster's file", unfitWithin
	case strings.HasPrefix(url, "http://") && strings.Contains(err.Error(), "400 Bad Request"):
		return "it serves TLS: write its url with https:// in the cluster's file, and its fingerprint as ca", unfitWithin
	case errors.Is(err, syscall.ECONNREFUSED) && !planned:
		return "no aggregator serves it there: start its aggregator, or mend its url in the cluster's file", refusedWithin
	}
	return "", 0
}

// ask asks one rack until it answers.
func (u *run) ask(ctx context.Context, rack int, r *api.AskRequest) ([]byte, error) {
	k := u.k
	r.Job, r.Run = u.job, u.ids[rack]
	r.From, r.To, r.Aggregator, r.Url, r.Nonce = k.Own, k.Racks[rack].Name, k.id, k.URL(), cmp.Or(r.Nonce, rpc.NewID())
	r.OwnRun, r.Division = u.id, k.declared.Division()
	last := errors.New("it has not answered")
	answered := false   // so that one that refuses connections has ended
	var stuck time.Time // since then tries fail by what waiting hardly mends. If zero, the last did not.
	for {
		r.AgeMs = uint64(time.Since(u.began).Milliseconds())
		r.Seal = racks.Seal(k.Secret, fields(r)...)
		once, cancel := context.WithTimeout(ctx, 2*timeout(r))
		answer, err := u.peers[rack].Ask(once, r)
		cancel()
		switch code := connect.CodeOf(err); {
		case err == nil && !racks.Sealed(answer.Seal, k.Secret, r.Nonce, fmt.Sprint(answer.Ready), string(answer.Payload)):
			return nil, fmt.Errorf("what answers for rack %q at %s has not this cluster's secret", r.To, u.peers[rack].url)
		case err == nil && answer.Ready:
			return answer.Payload, nil
		case err == nil:
			last, answered = errors.New("it is not there yet"), true
		case code == connect.CodePermissionDenied || code == connect.CodeFailedPrecondition || code == connect.CodeAborted ||
			code == connect.CodeAlreadyExists || code == connect.CodeUnimplemented:
			return nil, fmt.Errorf("rack %q at %s: %w", r.To, u.peers[rack].url, rpc.Reason(err))
		case ctx.Err() == nil:
			last = rpc.Reason(err)
			if answered && k.Members == nil && errors.Is(err, syscall.ECONNREFUSED) {
				return nil, fmt.Errorf("rack %q at %s has ended meanwhile: %w: start its aggregator, and join again", r.To,
					u.peers[rack].url, last)
			}
			if remedy, within := remedyOf(err, u.peers[rack].url, k.Members != nil); remedy == "" {
				stuck = time.Time{}
			} else if stuck.IsZero() {
				stuck = time.Now()
			} else if time.Since(stuck) > within {
				return nil, fmt.Errorf("rack %q at %s: %w: %s", r.To, u.peers[rack].url, last, remedy)
			}
			k.clients[r.To].CloseIdleConnections()               // they may be as dead
			if err := u.moved(rack); err != nil && r.Run == "" { // the job has not begun
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
			return nil, fmt.Errorf("rack %q at %s: %w; asked no longer: %w", r.To, u.peers[rack].url, last, cause)
		}
		return nil, fmt.Errorf("rack %q at %s does not reach %q in time: %w", r.To, u.peers[rack].url, cmp.Or(r.Stage, "state"), last)
	}
}

// planned reports whether a plan places the racks.
func (k *Cluster) planned() bool { return k != nil && k.Members != nil }

// names returns the racks' names, for comparison.
func (k *Cluster) names() string { return fmt.Sprint(k.Names()) }

// holder returns the aggregator that serves a rack by a plan of all declared racks.
func (h *hub) holder(p *racks.Plan, rack string) racks.Holder {
	if i := slices.Index(h.declared.Names(), rack); i < len(p.Holders) {
		return p.Holders[i]
	}
	return racks.Holder{}
}

// moved returns an error if another aggregator now serves a rack than the one with which a run would begin.
func (u *run) moved(rack int) error {
	k := u.k
	if k.Members == nil {
		return nil
	}
	s := k.Members.Standing()
	h := k.holder(&s.Plan, k.Racks[rack].Name)
	if h.Aggregator == u.peers[rack].aggregator {
		return nil
	}
	return fmt.Errorf("rack %q is now served by %v, and the job was beginning with the aggregator at %s: join again", k.Racks[rack].Name, h,
		u.peers[rack].url)
}
