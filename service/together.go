package service

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

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
)

// said is one thing that all racks must say alike.
type said struct{ What, Value string }

// introduction is what a rack says of a job that has formed there.
type introduction struct {
	Run    string
	HostID string
	UID    uint32
	Usable []string // providers that suit its workers, fastest first
	Said   []said
	Lanes  map[string]string // by provider, what the plan is made of
}

// place gives a worker its place in this rack: a job's workers are divided among the racks, and ranks count through them.
func (s *Service) place(sp *spec, m *member) error {
	if s.cluster == nil {
		return nil
	}
	workers, err := s.cluster.Workers(sp.total)
	if err != nil {
		return err
	}
	for _, n := range workers[:s.cluster.own] {
		m.first += n
	}
	sp.workers = workers[s.cluster.own]
	if m.rank < 0 {
		return nil
	}
	if m.rank < m.first || m.rank >= m.first+sp.workers {
		first := 0
		for i, n := range workers {
			if m.rank < first+n {
				return fmt.Errorf("rank %d of %d belongs to rack %q, this is rack %q with ranks %d to %d: join the aggregator at %s",
					m.rank, sp.total, s.cluster.Racks[i].Name, s.cluster.Own, m.first, m.first+sp.workers-1, s.cluster.Racks[i].URL)
			}
			first += n
		}
	}
	m.rank -= m.first
	return nil
}

// introduce says what the racks must agree on.
func (j *job) introduce(u *run) (*introduction, error) {
	s := j.s
	k := s.cluster
	in := &introduction{Run: u.id, HostID: s.hostID, UID: s.uid, Lanes: map[string]string{}}
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
		{"shape", fmt.Sprintf("%v with %d pods", k.topology.Shape, k.topology.Pods)}, {"mode", j.spec.mode.String()},
		{"optimizer", j.spec.rule.String()}, {"hyper-parameters", string(hyper)}, {"chunk_bytes", fmt.Sprint(j.spec.chunkBytes)},
		{"policy", fmt.Sprint(j.spec.policy)}, {"token's digest", hex.EncodeToString(token[:4])},
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
	k := j.s.cluster
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
	return e, clusterLanes(e.lanes), &aggregate.Above{Topology: k.topology, Rack: k.own, Names: k.Names(), Workers: workers}, nil
}

// tellRacks adds to the answer to a worker how the job is spread over racks.
func (j *job) tellRacks(r *api.JoinResponse) {
	k := j.s.cluster
	if k == nil {
		return
	}
	workers, _ := k.Workers(j.spec.total) // the job has started with them
	for _, n := range workers {
		r.RackWorkers = append(r.RackWorkers, uint32(n))
	}
	r.Pods = uint32(k.topology.Pods)
}

// describeRacks adds the racks to a job's status.
func (j *job) describeRacks(out *api.JobStatus) {
	k := j.s.cluster
	if k == nil {
		return
	}
	out.Shape = k.topology.Shape.String()
	workers, _ := k.Workers(j.spec.total) // the job has started with them
	for i, c := range j.agg.RackCounters() {
		out.Racks = append(out.Racks, &api.RackStatus{
			Name: k.Racks[i].Name, Url: k.Racks[i].URL, Own: i == k.own, Workers: uint32(workers[i]), OwnedBytes: c.OwnedBytes,
			ReceivedBytes: c.RecvBytes, SentBytes: c.SentBytes, AwaitedChunks: c.Awaited,
		})
	}
}

// giveUpRacks ends the run of a job that could not start, once the other racks have learnt why.
func (j *job) giveUpRacks() {
	if j.s.cluster != nil {
		time.AfterFunc(startGrace, j.endRacks)
	}
}

// partRacks waits until the job has ended in the other racks: an aggregator that closes takes with it what they still wait for.
func (j *job) partRacks() {
	k := j.s.cluster
	if k == nil {
		return
	}
	k.mu.Lock()
	u := k.runs[j]
	k.mu.Unlock()
	if u == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), startGrace)
	defer cancel()
	if _, err := k.meet(ctx, j, u, stageEnd, nil); err != nil {
		j.s.log.Debug("the other racks may not have ended", "job", j.name, "err", err)
	}
}

// endRacks forgets the job's run over several racks.
func (j *job) endRacks() {
	if j.s.cluster != nil {
		j.s.cluster.end(j)
	}
}

// agree meets the other racks and chooses the engine of the job.
func (j *job) agree(ctx context.Context, workers []int) (e *engine, err error) {
	k := j.s.cluster
	u := k.begin(j, workers)
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
		return fmt.Errorf("rack %q says %d things of the job, rack %q %d: run one version in all racks", nameA, len(a), nameB, len(b))
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
	k := j.s.cluster
	k.mu.Lock()
	u := k.runs[j]
	k.mu.Unlock()
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

var errProtocolOfRacks = errors.New("run one version in all racks")

// acrossRacks waits until all racks have come to a stage and say the same of it.
func (j *job) acrossRacks(ctx context.Context, stage, what, value string) error {
	k := j.s.cluster
	if k == nil {
		return nil
	}
	k.mu.Lock()
	u := k.runs[j]
	k.mu.Unlock()
	if u == nil {
		return j.failureError()
	}
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
