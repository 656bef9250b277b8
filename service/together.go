package service

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/rackweave/rackweave/aggregate"
	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/service/api"
	"github.com/rackweave/rackweave/service/racks"
	"github.com/rackweave/rackweave/verbs"
)

// The stages at which the racks of a job meet while it starts.
const (
	stageForm   = "form"   // all workers of the rack have joined
	stageEnds   = "ends"   // the ends of the connections between aggregators
	stageEnd    = "end"    // all workers of the rack have left
	stageListen = "listen" // who waits for its peer does
	stageWhy    = "why"    // the job has failed
)

// said is one thing that all racks must say alike.
type said struct{ What, Value string }

// introduction is what a rack says of a job that has formed there.
type introduction struct {
	Run string
	// Aggregator identifies the process.
	Aggregator string

	HostID string
	UID    uint32
	Usable []string // providers that suit its workers, fastest first
	Said   []said
	Lanes  map[string]string // by provider, what the plan is made of
}

// place gives a worker its place in this rack: a job's workers are divided among the racks, and ranks count through them.
func (s *Service) place(sp *spec, m *member, rack string) error {
	m.ranks = sp.workers
	if sp.parts > 0 {
		return s.placeSpread(sp, m, rack)
	}
	if s.cluster == nil {
		if sp.onLoss != "" {
			return fmt.Errorf("on-loss %q, and this aggregator is of no cluster: leave it out", printable(sp.onLoss, maxHostName))
		}
		return nil
	}
	k, err := s.cluster.now(sp.onLoss)
	if err != nil {
		return err
	}
	workers, err := k.divide(sp.total)
	if err != nil {
		return err
	}
	for _, n := range workers[:k.own] {
		m.first += n
	}
	sp.racks, sp.workers = k, workers[k.own]
	m.ranks = sp.workers
	if m.rank < 0 {
		return nil
	}
	rank := m.rank
	if m.rank -= m.first; m.rank < 0 || m.rank >= sp.workers {
		first := 0
		for i, n := range workers {
			if rank < first+n {
				return &misplaced{fmt.Sprintf("rank %d of %d belongs to rack %q, this is rack %q with ranks %d to %d: join the aggregator at %s",
					rank, sp.total, k.Racks[i].Name, k.Own, m.first, m.first+sp.workers-1, cmp.Or(k.Racks[i].URL, "its URL"))}
			}
			first += n
		}
	}
	return nil
}

// introduce says what the racks must agree on.
func (j *job) introduce(u *run) (*introduction, error) {
	s := j.s
	k := j.spec.racks
	in := &introduction{Run: u.id, Aggregator: k.id, HostID: s.hostID, UID: s.uid, Lanes: map[string]string{}}
	candidates, err := j.candidates()
	if err != nil {
		return nil, err
	}
	for _, p := range candidates {
		if e := s.engines[p]; s.usable(p, j.members) == nil {
			in.Usable = append(in.Usable, p)
			in.Lanes[p] = fmt.Sprintf("%v, window %d", clusterLanes(e.lanes), e.agg.Window())
		}
	}
	token := sha256.Sum256(racks.Seal(k.Secret, j.token))
	hyper, _ := json.Marshal(j.spec.hyper)
	in.Said = []said{
		{"version", s.opts.Version}, {"racks", fmt.Sprint(k.Names())}, {"workers by rack", fmt.Sprint(u.workers)},
		{"shape", fmt.Sprintf("%s with %d pods", k.ShapeName(), k.topology.Pods)},
		{"type between racks", k.CoreName()}, {"mode", j.spec.mode.String()},
		{"optimizer", j.spec.rule.String()}, {"hyper-parameters", string(hyper)}, {"chunk_bytes", fmt.Sprint(j.spec.chunkBytes)},
		{"buddies", fmt.Sprint(k.Buddy)}, {"policy", fmt.Sprint(j.spec.policy)}, {"outer", j.spec.outer.String()},
		{"token's digest", hex.EncodeToString(token[:4])},
	}
	return in, nil
}

// clusterLanes are lanes as racks compare them: the numbers of cores differ from one machine to another.
func clusterLanes(lanes []chunk.Lane) []chunk.Lane {
	out := slices.Clone(lanes)
	for i := range out {
		out[i].Core = i
	}
	return out
}

// choose picks the engine of a job whose workers have all joined, the lanes of its plan, and its place above the rack.
func (j *job) choose(ctx context.Context) (*engine, []chunk.Lane, *aggregate.Above, error) {
	k := j.spec.racks
	if k == nil {
		e, err := j.s.chooseEngine(j)
		if err != nil {
			return nil, nil, nil, err
		}
		return e, e.loaded(), nil, nil
	}
	workers, err := k.Workers(j.spec.total)
	if err != nil {
		return nil, nil, nil, err
	}
	e, err := j.agree(ctx, workers)
	if err != nil {
		return nil, nil, nil, err
	}
	if len(k.Racks) == 1 { // the others are out
		return e, clusterLanes(e.lanes), nil, nil
	}
	core, err := chunk.ParseDType(k.CoreName())
	return e, clusterLanes(e.lanes), &aggregate.Above{
		Topology: k.topology, Rack: k.own, Names: k.Names(), Workers: workers, Core: core,
		Buddies: k.Buddy && j.spec.mode != aggregate.Aggregate, // which has no state
	}, err
}

// tellRacks adds to the answer to a worker how the job is spread over racks.
func (j *job) tellRacks(r *api.JoinResponse) {
	k := cmp.Or(j.spec.racks, j.spec.among)
	if k == nil {
		return
	}
	workers, _ := k.Workers(j.spec.total) // the job has started with them
	for _, n := range workers {
		r.RackWorkers = append(r.RackWorkers, uint32(n))
	}
	r.Pods = uint32(k.topology.Pods)
	r.Outer = j.spec.outer.String()
	if len(k.Racks) > 1 {
		r.Core = k.CoreName()
	}
	if j.spec.racks != nil {
		r.Rack, r.Racks = k.Own, k.aggregators()
	}
}

// describeRacks adds the racks to a job's status.
func (j *job) describeRacks(out *api.JobStatus) {
	k := j.spec.racks
	if k == nil {
		return
	}
	u := k.run(j)
	url := func(rack int) string {
		if u == nil {
			return k.Racks[rack].URL
		}
		return u.peers[rack].url
	}
	out.Shape = k.topology.Shape.String()
	j.mu.Lock()
	if j.choice != nil {
		out.Shape, out.ShapeReason = j.choice.Shape, j.choice.Reason
	}
	out.ShapeChanges = j.shapeChanges
	j.mu.Unlock()
	if j.spec.outer.Every > 0 {
		out.Outer = j.spec.outer.String()
	}
	workers, _ := k.Workers(j.spec.total) // the job has started with them
	buddy := func(rack int) string {
		if !j.buddies() {
			return ""
		}
		return k.Racks[k.topology.Buddy(rack)].Name
	}
	for i, c := range j.agg.RackCounters() {
		out.Racks = append(out.Racks, &api.RackStatus{
			Name: k.Racks[i].Name, Url: url(i), Own: i == k.own, Workers: uint32(workers[i]), OwnedBytes: c.OwnedBytes,
			ReceivedBytes: c.RecvBytes, SentBytes: c.SentBytes, AwaitedChunks: c.Awaited,
			Buddy: buddy(i),
		})
	}
	j.meetings.describe(out)
}

// giveUpRacks ends the run of a job that could not start.
func (j *job) giveUpRacks(why error) {
	if j.spec.racks != nil {
		j.spec.racks.giveUp(j, why)
	}
}

// sayWhy lets the other racks learn why the job has failed.
func (j *job) sayWhy() {
	k := j.spec.racks
	if k == nil {
		return
	}
	if u := k.run(j); u != nil {
		k.board.Post(j.name, u.id, stageWhy, []byte(j.failure.Err.Error()), k.others())
	}
}

// whyElsewhere asks the rack where the job has failed for the reason.
func (j *job) whyElsewhere(e *aggregate.FailedElsewhere) error {
	k := j.spec.racks
	rack, u := slices.Index(k.Names(), e.Rack), k.run(j)
	if rack < 0 || u == nil {
		return e
	}
	ctx, cancel := context.WithTimeout(context.Background(), reasonWait)
	defer cancel()
	why, err := k.ask(ctx, u, rack, &api.AskRequest{Job: j.name, Run: u.ids[rack], Stage: stageWhy})
	if err != nil {
		return e
	}
	return fmt.Errorf("the job failed in rack %q: %s", e.Rack, printable(string(why), maxFailureText))
}

// partRacks waits until the job has ended in the other racks, too: an aggregator that closes takes with it what they still wait
// for. An error says that it may not have, or not well.
func (j *job) partRacks() error {
	k := j.spec.racks
	if k == nil {
		return nil
	}
	u := k.run(j)
	if u == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), startGrace)
	defer cancel()
	j.agg.Away(true)
	_, err := k.meet(ctx, j, u, stageEnd, nil)
	if err != nil {
		j.s.log.Debug("the other racks may not have ended", "job", j.name, "err", err)
	}
	return err
}

// endRacks forgets the job's run over several racks.
func (j *job) endRacks() {
	if j.spec.racks != nil {
		j.spec.racks.end(j)
	}
}

// agree meets the other racks and chooses the engine of the job.
func (j *job) agree(ctx context.Context, workers []int) (e *engine, err error) {
	k := j.spec.racks
	peers, err := k.reach(ctx)
	if err != nil {
		return nil, err
	}
	u := k.begin(j, workers, peers)
	ours, err := j.introduce(u)
	if err != nil {
		return nil, err
	}
	payload, err := json.Marshal(ours)
	if err != nil {
		return nil, err
	}
	answers, err := k.meet(ctx, j, u, stageForm, payload)
	if err != nil {
		return nil, err
	}
	all := make([]introduction, len(answers))
	for i, a := range answers {
		if err := json.Unmarshal(a, &all[i]); err != nil {
			return nil, fmt.Errorf("rack %q says what cannot be read: %w", k.Racks[i].Name, err)
		}
		u.ids[i] = all[i].Run
	}
	for i := range all {
		if want := u.peers[i].aggregator; i != k.own && want != "" && all[i].Aggregator != want {
			return nil, fmt.Errorf("rack %q at %s has got another aggregator meanwhile: join again", k.Racks[i].Name, u.peers[i].url)
		}
		if err := differ(ours.Said, all[i].Said, k.Own, k.Racks[i].Name); err != nil {
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
		return j.s.engines[p], nil
	}
	var have []string
	for i := range all {
		have = append(have, fmt.Sprintf("rack %q %v", k.Racks[i].Name, all[i].Usable))
	}
	return nil, fmt.Errorf("no provider suits the workers of all racks: %s", list(have))
}

// differ names the first thing that two racks say differently.
func differ(a, b []said, nameA, nameB string) error {
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return fmt.Errorf("rack %q has %s %s, rack %q has %s %s: all racks must say the same", nameA, a[i].What, a[i].Value, nameB, b[i].What,
				b[i].Value)
		}
	}
	if len(a) != len(b) {
		return fmt.Errorf("rack %q says %d things of the job, rack %q %d: run one version of all aggregators", nameA, len(a), nameB, len(b))
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

// connectRacks connects the job's aggregators. Of two the one of the later rack is active.
func (j *job) connectRacks(ctx context.Context) error {
	k := j.spec.racks
	u := k.run(j)
	ends := make([][]aggregate.PeerLane, len(k.Racks))
	for i := range k.Racks {
		if i == k.own {
			continue
		}
		var err error
		if ends[i], err = j.agg.OpenPeer(ctx, i); err != nil {
			return err
		}
	}
	payload, err := json.Marshal(ends)
	if err != nil {
		return err
	}
	answers, err := k.meet(ctx, j, u, stageEnds, payload)
	if err != nil {
		return err
	}
	theirs := make([][]aggregate.PeerLane, len(k.Racks))
	for i, a := range answers {
		var all [][]aggregate.PeerLane
		if err := json.Unmarshal(a, &all); err != nil || len(all) != len(k.Racks) {
			return fmt.Errorf("rack %q gives %d ends that can be read: %w", k.Racks[i].Name, len(all), errors.Join(err, errProtocolOfRacks))
		}
		theirs[i] = all[k.own]
	}
	for i := k.own + 1; i < len(k.Racks); i++ {
		if err := j.agg.JoinPeer(ctx, i, theirs[i], false); err != nil {
			return err
		}
	}
	if _, err := k.meet(ctx, j, u, stageListen, nil); err != nil {
		return err
	}
	for i := range k.own {
		if err := j.agg.JoinPeer(ctx, i, theirs[i], true); err != nil {
			return err
		}
	}
	return j.agg.PeersUp(ctx)
}

var errProtocolOfRacks = errors.New("run one version of all aggregators")

// acrossRacks waits until all racks have come to a stage and say the same of it.
func (j *job) acrossRacks(ctx context.Context, stage, what, value string) error {
	k := j.spec.racks
	if k == nil {
		return nil
	}
	u := k.run(j)
	if u == nil {
		return j.failureError()
	}
	if rack, n := k.board.Behind(j.name, u.id); rack != "" {
		return fmt.Errorf("rack %q has not come to %d barriers and registrations that rack %q has come to: let the workers of all racks do the same",
			rack, n, k.Own)
	}
	j.agg.Away(true) // its workers wait here, and come to no meeting
	defer j.agg.Away(false)
	answers, err := k.meet(ctx, j, u, stage, []byte(value))
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
