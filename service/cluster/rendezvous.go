package cluster

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"time"

	"github.com/rackweave/rackweave/aggregate"
	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/codec"
	"github.com/rackweave/rackweave/service/api"
	"github.com/rackweave/rackweave/service/engine"
	"github.com/rackweave/rackweave/service/job"
	"github.com/rackweave/rackweave/service/racks"
	"github.com/rackweave/rackweave/service/rpc"
	"github.com/rackweave/rackweave/verbs"
)

// These are the stages at which the racks of a job exchange messages.
const (
	stageForm   = "form"   // all workers of the rack have joined
	stageEnds   = "ends"   // the ends of the connections between aggregators
	stageEnd    = "end"    // all workers of the rack have left
	stageListen = "listen" // passive connections wait for their peers
	stageUp     = "up"     // active connections are there, or the rack fails with the reason
	stageWhy    = "why"    // the job has failed
)

// setting is a value on which all racks must agree.
type setting struct{ What, Value string }

// protocol is the version of the messages between aggregators. Aggregators of two builds run a job with each other if both have the
// same: a change that the build before does not understand raises it.
const protocol = 1

// introduction describes a job that has formed in a rack to the other racks.
type introduction struct {
	Run string
	// Aggregator identifies the process.
	Aggregator string

	HostID   string
	UID      uint32
	Usable   []string // providers that suit its workers, fastest first
	Settings []setting
	Lanes    map[string]string // by provider, the input of the plan
}

// Rendezvous connects a job with the same job of the other racks.
type Rendezvous struct {
	run
	workers []int    // by rack
	j       *job.Job // set when the job forms

	// Guarded by hub.mu.
	aggregators map[string]ask // by rack's name, which have asked
	choice      *choice        // of the shape. If nil, none was made.
}

// List returns the racks' names.
func (r *Rendezvous) List() string { return r.k.names() }

// introduce returns the values on which the racks must agree.
func (r *Rendezvous) introduce() (in introduction, err error) {
	k, j, all := r.k, r.j, r.k.jobs.Engines
	in = introduction{Run: r.id, Aggregator: k.id, HostID: all.HostID, UID: all.UID, Lanes: map[string]string{}}
	candidates, err := j.Candidates()
	if err != nil {
		return in, err
	}
	for _, p := range candidates {
		if e := all.By[p]; j.Table.Usable(p, j.Members) == nil {
			in.Usable = append(in.Usable, p)
			in.Lanes[p] = fmt.Sprintf("%v, window %d", clusterLanes(e.Lanes), e.Agg.Window())
		}
	}
	token := sha256.Sum256(racks.Seal(k.Secret, j.Token))
	hyper, _ := json.Marshal(j.Spec.Hyper)
	in.Settings = []setting{
		{"protocol", fmt.Sprint(protocol)}, {"racks", fmt.Sprint(k.Names())}, {"workers by rack", fmt.Sprint(r.workers)},
		{"shape", fmt.Sprintf("%s with %d pods", k.ShapeName(), k.topology.Pods)},
		{"type between racks", k.CoreName()}, {"mode", j.Spec.Mode.String()},
		{"optimizer", j.Spec.Rule.String()}, {"hyper-parameters", string(hyper)}, {"chunk_bytes", fmt.Sprint(j.Spec.ChunkBytes)},
		{"buddies", fmt.Sprint(k.Buddy)}, {"policy", fmt.Sprint(j.Spec.Policy)}, {"outer", j.Spec.Outer.String()},
		{"token's digest", hex.EncodeToString(token[:4])},
	}
	return in, nil
}

// clusterLanes returns lanes as racks compare them, because the numbers of cores differ from one machine to another.
func clusterLanes(lanes []chunk.Lane) []chunk.Lane {
	out := slices.Clone(lanes)
	for i := range out {
		out[i].Core = i
	}
	return out
}

// Form agrees with the other racks on the engine of the job, and places the job.
func (r *Rendezvous) Form(ctx context.Context, j *job.Job) (p job.Placement, err error) {
	r.j = j
	k := r.k
	if p.Engine, err = r.agree(ctx); err != nil {
		return p, err
	}
	p.Lanes = clusterLanes(p.Engine.Lanes)
	if len(k.Racks) == 1 { // the plan has left out the others
		return p, nil
	}
	core, codecs, err := k.CrossesAs()
	if j.Spec.Mode == aggregate.TwoPhase {
		codecs.Down = codec.Spec{} // its results are parameters, which travel when the step is over
	}
	p.Above = &aggregate.Place{
		Topology: k.topology, Rack: k.own, Names: k.Names(), Workers: r.workers, Core: core, Codecs: codecs,
		Buddies: k.Buddy && j.Spec.Mode != aggregate.Aggregate, // which has no state
	}
	return p, err
}

// Welcome adds the job's racks to the answer to a worker.
func (r *Rendezvous) Welcome(out *api.JoinResponse) {
	r.k.welcome(r.j, r.workers, out)
	out.Rack, out.Racks = r.k.Own, r.k.aggregators()
}

// welcome adds the numbers of workers by rack to the answer to a worker.
func (k *Cluster) welcome(j *job.Job, workers []int, out *api.JoinResponse) {
	for _, n := range workers {
		out.RackWorkers = append(out.RackWorkers, uint32(n))
	}
	out.Pods = uint32(k.topology.Pods)
	out.Outer = j.Spec.Outer.String()
	if len(k.Racks) > 1 {
		out.Core = k.CoreName()
	}
}

// Describe adds the racks to the job's status.
func (r *Rendezvous) Describe(out *api.JobStatus) {
	k, j := r.k, r.j
	out.Shape = k.topology.Shape.String()
	k.mu.Lock()
	if r.choice != nil {
		out.Shape, out.ShapeReason = r.choice.Shape, r.choice.Reason
	}
	k.mu.Unlock()
	out.ShapeWarning = r.shapeWarning()
	if j.Spec.Outer.Every > 0 {
		out.Outer = j.Spec.Outer.String()
	}
	buddy := func(rack int) string {
		if !j.Buddies() {
			return ""
		}
		return k.Racks[k.topology.Buddy(rack)].Name
	}
	for i, c := range j.Agg.RackCounters() {
		out.Racks = append(out.Racks, &api.RackStatus{
			Name: k.Racks[i].Name, Url: r.peers[i].url, Own: i == k.own, Workers: uint32(r.workers[i]), OwnedBytes: c.OwnedBytes,
			ReceivedBytes: c.RecvBytes, SentBytes: c.SentBytes, AwaitedChunks: c.Awaited,
			Buddy: buddy(i),
		})
	}
}

// Started fails the job if the plan has changed while it began.
func (r *Rendezvous) Started() {
	if r.k.Members != nil {
		s := r.k.Members.Standing()
		r.k.follow(r.j, &s)
	}
}

// Publish lets the other racks learn why the job has failed.
func (r *Rendezvous) Publish(why error) {
	r.k.board.Post(r.id, stageWhy, []byte(why.Error()), r.k.others())
}

// Explain asks the rack where the job has failed for the reason.
func (r *Rendezvous) Explain(e *aggregate.FailedElsewhere) error {
	rack := slices.Index(r.k.Names(), e.Rack)
	if rack < 0 {
		return e
	}
	ctx, cancel := context.WithTimeout(context.Background(), job.ReasonWait)
	defer cancel()
	why, err := r.ask(ctx, rack, &api.AskRequest{Stage: stageWhy})
	if err != nil {
		return e
	}
	return fmt.Errorf("the job failed in rack %q: %s", e.Rack, rpc.Printable(string(why), rpc.MaxTextBytes))
}

// Finish waits until the job has also ended in the other racks, because an aggregator that closes takes with it the results for
// which they still wait. It returns an error if the job may not have ended there, or not well.
func (r *Rendezvous) Finish() error {
	ctx, cancel := context.WithTimeout(context.Background(), startGrace)
	defer cancel()
	_, err := r.exchange(ctx, stageEnd, nil)
	if err != nil {
		r.k.jobs.Log.Debug("the other racks may not have ended", "job", r.job, "err", err)
	}
	return err
}

// End removes the job's run. Racks that ask for a job that could not start get the reason. If the job ended well, its posts stay
// for a while, because other racks may still ask for them.
func (r *Rendezvous) End(why error) {
	k := r.k
	k.mu.Lock()
	delete(k.runs, r)
	k.mu.Unlock()
	if why != nil {
		k.board.GiveUp(r.id, why.Error(), r.ids)
		return
	}
	select {
	case <-r.j.Failed:
		k.board.End(r.id)
	default:
		time.AfterFunc(startGrace, func() { k.board.End(r.id) })
	}
}

// agree exchanges introductions with the other racks and returns the engine of the job.
func (r *Rendezvous) agree(ctx context.Context) (e *engine.Engine, err error) {
	k := r.k
	peers, err := k.reach(ctx)
	if err != nil {
		return nil, err
	}
	r.begin(peers)
	ours, err := r.introduce()
	if err != nil {
		return nil, err
	}
	all, err := swap(ctx, r, stageForm, ours)
	if err != nil {
		return nil, err
	}
	for i := range all {
		r.ids[i] = all[i].Run
	}
	for i := range all {
		if want := r.peers[i].aggregator; i != k.own && want != "" && all[i].Aggregator != want {
			return nil, fmt.Errorf("rack %q at %s has another aggregator now: join again", k.Racks[i].Name, r.peers[i].url)
		}
		if err := differ(ours.Settings, all[i].Settings, k.Own, k.Racks[i].Name); err != nil {
			return nil, err
		}
	}
	for _, p := range ours.Usable {
		if !suits(p, all) {
			continue
		}
		for i := range all {
			if a, b := ours.Lanes[p], all[i].Lanes[p]; a != b {
				return nil, fmt.Errorf("rack %q has lanes %s, rack %q %s: give all aggregators the same cores, NICs and window", k.Own, a,
					k.Racks[i].Name, b)
			}
		}
		return k.jobs.Engines.By[p], nil
	}
	var have []string
	for i := range all {
		have = append(have, fmt.Sprintf("rack %q %v", k.Racks[i].Name, all[i].Usable))
	}
	return nil, fmt.Errorf("no provider suits the workers of all racks: %s", rpc.List(have))
}

// differ returns an error about the first setting in which two racks differ.
func differ(a, b []setting, nameA, nameB string) error {
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return fmt.Errorf("rack %q has %s %s, rack %q has %s %s: all racks must have the same", nameA, a[i].What, a[i].Value, nameB, b[i].What,
				b[i].Value)
		}
	}
	if len(a) != len(b) {
		return fmt.Errorf("rack %q has %d settings of the job, rack %q %d: run one version of all aggregators", nameA, len(a), nameB, len(b))
	}
	return nil
}

// suits reports whether a provider suits the workers of all racks and connects their aggregators.
func suits(p string, all []introduction) bool {
	for i := range all {
		a := &all[i]
		if !slices.Contains(a.Usable, p) {
			return false
		}
		if p == verbs.ProviderSHM && (a.HostID != all[0].HostID || a.UID != all[0].UID && a.UID != 0 && all[0].UID != 0) {
			return false
		}
	}
	return true
}

// addrOf returns the address of a URL's host, or the zero address if none is found.
func addrOf(ctx context.Context, text string) (at netip.Addr) {
	u, err := url.Parse(text)
	if err != nil || u.Hostname() == "" {
		return at
	}
	if all, err := net.DefaultResolver.LookupNetIP(ctx, "ip", u.Hostname()); err == nil {
		at = all[0]
	}
	return at
}

// Connect connects the job's aggregators. Of two the one of the later rack is active.
func (r *Rendezvous) Connect(ctx context.Context) error {
	k, j := r.k, r.j
	if j.Above == nil {
		return nil
	}
	ends := make([][]aggregate.PeerLane, len(k.Racks))
	for i := range k.Racks {
		if i == k.own {
			continue
		}
		var err error
		if ends[i], err = j.Agg.OpenPeer(ctx, i); err != nil {
			return err
		}
	}
	answers, err := swap(ctx, r, stageEnds, ends)
	if err != nil {
		return err
	}
	theirs := make([][]aggregate.PeerLane, len(k.Racks))
	for i, all := range answers {
		if len(all) != len(k.Racks) {
			return fmt.Errorf("rack %q gives ends for %d racks: %w", k.Racks[i].Name, len(all), rpc.ErrVersions)
		}
		theirs[i] = all[k.own]
	}
	for i := k.own + 1; i < len(k.Racks); i++ {
		if err := j.Agg.JoinPeer(ctx, i, theirs[i], false); err != nil {
			return err
		}
	}
	if _, err := r.exchange(ctx, stageListen, nil); err != nil {
		return err
	}
	for i := range k.own {
		at := addrOf(ctx, r.peers[i].url)
		for l := range theirs[i] {
			theirs[i][l].Endpoint = verbs.Located(theirs[i][l].Endpoint, at)
		}
		if err := j.Agg.JoinPeer(ctx, i, theirs[i], true); err != nil {
			return err
		}
	}
	if _, err := r.exchange(ctx, stageUp, nil); err != nil {
		return err
	}
	return j.Agg.PeersUp(ctx)
}

// Agree waits until all racks have reached a stage, and refuses racks whose values differ.
func (r *Rendezvous) Agree(ctx context.Context, stage, what, value string) error {
	k := r.k
	if rack, n := k.board.Behind(r.id); rack != "" {
		return fmt.Errorf("rack %q has not come to %d barriers and registrations that rack %q has come to: let the workers of all racks do the same",
			rack, n, k.Own)
	}
	answers, err := r.exchange(ctx, stage, []byte(value))
	if err != nil {
		return err
	}
	for i, a := range answers {
		if string(a) != value {
			return fmt.Errorf("rack %q has %s %s, rack %q has %s: all workers must do the same", k.Own, what, value, k.Racks[i].Name, a)
		}
	}
	return nil
}

// Own returns the number of this rack.
func (r *Rendezvous) Own() int { return r.k.own }

// Names returns the names of all racks.
func (r *Rendezvous) Names() []string { return r.k.Names() }

// Buddies reports whether racks of the cluster keep each other's state.
func (r *Rendezvous) Buddies() bool { return r.k.Buddy }

// Run identifies the run in the first rack.
func (r *Rendezvous) Run() string { return r.ids[0] }

// Ask puts questions to all other racks at once, and returns the answers by rack.
func (r *Rendezvous) Ask(ctx context.Context, about func(rack int) *api.StateQuestion) ([][]byte, error) {
	return r.askAll(ctx, func(rack int) *api.AskRequest {
		if q := about(rack); q != nil {
			return &api.AskRequest{State: q}
		}
		return nil
	})
}

// Replace lets the other racks ask back for the payload, as a question must be small.
func (r *Rendezvous) Replace(ctx context.Context, about func(int) *api.StateQuestion, payload func() []byte) (some bool,
	err error) {
	stage := "state " + rpc.NewID()
	questions := make([]*api.StateQuestion, len(r.peers))
	var asked []string
	for rack, name := range r.k.Names() {
		if rack == r.k.own {
			continue
		}
		if questions[rack] = about(rack); questions[rack] != nil {
			questions[rack].Stage = stage
			asked = append(asked, name)
		}
	}
	if asked == nil {
		return false, nil
	}
	r.k.board.Post(r.id, stage, payload(), asked)
	_, err = r.Ask(ctx, func(rack int) *api.StateQuestion { return questions[rack] })
	return r.k.board.Withdraw(r.id, stage), err
}
