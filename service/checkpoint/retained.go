package checkpoint

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/rackweave/rackweave/aggregate"
	"github.com/rackweave/rackweave/service/api"
	"github.com/rackweave/rackweave/service/job"
	"github.com/rackweave/rackweave/service/quota"
	"github.com/rackweave/rackweave/service/rpc"
)

// retainFor is the time for which the state of a failed run waits for the next run.
const retainFor = time.Hour

// retained is the state of a failed run of a job. This aggregator retains it until the next run has restored it, ended well or
// failed, or another job needs the memory.
type retained struct {
	retainedState
	job.Tenant
	state   *aggregate.Retained
	account *quota.Account

	expiry *time.Timer
	mu     sync.RWMutex // read-locked to read the state, locked to free it
	freed  bool
}

// Hint adds to a failure the way in which the job can go on.
func (st *Store) Hint(j *job.Job, err error) error {
	if !j.Buddies() {
		return err
	}
	return fmt.Errorf("%w; racks have buddies: begin the job again, and restore %q to go on from its last whole step", err,
		api.BuddyName)
}

// Close closes the job's aggregation, and retains the state unless the job has ended well in all racks.
func (st *Store) Close(j *job.Job, well bool) error {
	select {
	case <-j.Table.Closing:
		return j.Agg.Close()
	default:
	}
	switch {
	case !j.Buddies():
		return j.Agg.Close()
	case well:
		if k := st.retainedOf(j.Tenant()); k != nil {
			st.dropThis(k)
		}
		return j.Agg.Close()
	}
	s := st.Of(j)
	state, err := j.Agg.CloseRetaining()
	if state == nil {
		return err
	}
	at := &retained{Tenant: j.Tenant(), state: state, account: j.Account.PassOn(quota.Memory, state.Bytes())}
	at.retainedState = retainedState{Run: s.others.Run(), Failed: time.Now().UnixNano(), Racks: s.others.Names(),
		Owners: j.Above.Owners(), Own: s.others.Own(), Model: s.digestModel()}
	for rack := range at.Racks {
		g := stepRange{}
		g.Least, g.Most, g.Retained = state.Range(rack)
		at.Ranges, at.Buddy = append(at.Ranges, g), append(at.Buddy, j.Above.Topology.Buddy(rack))
	}
	st.retain(at)
	return err
}

// digestModel identifies the model and the optimizer of a state.
func (s *State) digestModel() string {
	h := sha256.New()
	fmt.Fprintln(h, s.Spec.Rule, s.Spec.Rule.States(s.Spec.Hyper), s.Spec.ChunkBytes)
	n := s.Model.Plan.NumTensors()
	for i := range n {
		t := s.Model.Plan.Tensor(i)
		fmt.Fprintf(h, "%q %d %v\n", t.Name, t.Elems, t.DType)
	}
	return fmt.Sprintf("%d tensors with %v (%x)", n, s.Spec.Rule, h.Sum(nil)[:4])
}

// retain retains a state in place of that of an earlier run.
func (st *Store) retain(k *retained) {
	k.expiry = time.AfterFunc(retainFor, func() { st.dropThis(k) })
	st.mu.Lock()
	before := st.retained[k.Tenant]
	st.retained[k.Tenant] = k
	st.mu.Unlock()
	before.free(st)
	st.log.Info("the state of a failed job is retained for its next run", "job", k.Job, "step", k.state.WholeStep(),
		"bytes", k.state.Bytes())
}

// retainedOf returns the retained state of a tenant, or nil.
func (st *Store) retainedOf(t job.Tenant) *retained {
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.retained[t]
}

// dropThis drops a retained state.
func (st *Store) dropThis(k *retained) {
	st.mu.Lock()
	if st.retained[k.Tenant] == k {
		delete(st.retained, k.Tenant)
	}
	st.mu.Unlock()
	k.free(st)
}

// Used returns the charges for the states of other tenants.
func (st *Store) Used(but job.Tenant) quota.Amounts {
	st.mu.Lock()
	defer st.mu.Unlock()
	sum := quota.Amounts{}
	for of, k := range st.retained {
		if of != but {
			sum.Add(k.account.Used())
		}
	}
	return sum
}

// DropOldest drops the oldest state of another tenant, and reports whether there was any.
func (st *Store) DropOldest(but job.Tenant) bool {
	st.mu.Lock()
	var oldest *retained
	for of, k := range st.retained {
		if of != but && (oldest == nil || k.Failed < oldest.Failed) {
			oldest = k
		}
	}
	st.mu.Unlock()
	if oldest == nil {
		return false
	}
	st.log.Info("the state of a failed job is dropped", "job", oldest.Job, "for", but.Job)
	st.dropThis(oldest)
	return true
}

// free frees the state. It does nothing if k is nil.
func (k *retained) free(st *Store) {
	if k == nil {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.freed {
		return
	}
	k.freed = true
	k.expiry.Stop()
	if err := k.state.Close(); err != nil {
		st.log.Error("free the state of a failed job", "job", k.Job, "err", err)
	}
	k.account.Close()
}

// status describes the state.
func (k *retained) status() *api.JobStatus {
	k.mu.RLock()
	defer k.mu.RUnlock()
	out := &api.JobStatus{Name: k.Job, State: "retained", AgeSeconds: time.Since(time.Unix(0, k.Failed)).Seconds()}
	if !k.freed {
		out.WholeStep, out.ParameterBytes = k.state.WholeStep(), uint64(k.state.Bytes())
	}
	return out
}

// retainedHere returns the retained state of the job's earlier runs, after these have ended, or nil.
func (s *State) retainedHere(ctx context.Context) (*retained, error) {
	for _, other := range s.Table.Ending(s.Job) {
		select {
		case <-other.Over:
		case <-ctx.Done():
			return nil, fmt.Errorf("the failed run of job %q has not ended in time: %w", s.Name, ctx.Err())
		}
	}
	return s.store.retainedOf(s.Tenant()), nil
}

// answerRetained answers a question about the retained state of the job's failed run.
func (s *State) answerRetained(ctx context.Context, q *api.StateQuestion) ([]byte, error) {
	k, err := s.retainedHere(ctx)
	switch {
	case err != nil:
		return nil, err
	case q.Kind == api.StateQuestion_RETAINED && k == nil:
		return nil, nil
	case q.Kind == api.StateQuestion_RETAINED:
		return json.Marshal(&k.retainedState)
	case q.Kind == api.StateQuestion_DROP_RETAINED:
		if k != nil && k.Run == q.Run {
			s.store.dropThis(k)
		}
		return nil, nil
	case k == nil || k.Run != q.Run:
		return nil, errNotRetained
	}
	k.mu.RLock()
	defer k.mu.RUnlock()
	if k.freed {
		return nil, errNotRetained
	}
	owners := make([]bool, len(k.Racks))
	for _, o := range q.Owners {
		if int64(o) >= int64(len(owners)) {
			return nil, fmt.Errorf("rack %d of %d: %w", o, len(owners), rpc.ErrVersions)
		}
		owners[o] = true
	}
	if q.Kind == api.StateQuestion_RETAINED_UPDATES {
		updates, err := k.state.Updates(q.Changes, owners, s.Model.Plan.NumTensors())
		return appendValues(nil, updates), err
	}
	pieces, data, err := s.pieces(q, 1+s.Spec.Rule.States(s.Spec.Hyper))
	if err != nil {
		return nil, err
	}
	read, err := k.state.Read(q.Changes, owners, pieces)
	if err != nil {
		return nil, err
	}
	b := make([]byte, len(pieces), len(pieces)+4*len(data)) // for each piece, whether its values follow
	for i := range pieces {
		if read[i] {
			b[i] = 1
			b = appendValues(b, pieces[i].Data)
		}
	}
	return b, nil
}

// restoreRetained restores the state of the job's failed run, and returns its size.
func (s *State) restoreRetained(ctx context.Context) (bytes uint64, err error) {
	if !s.others.Buddies() {
		return 0, fmt.Errorf("%w: racks of this aggregator's cluster have no buddies: put buddy: true into the file of all, or restore a checkpoint",
			errNotRetained)
	}
	snap, err := s.snapshot(ctx)
	if err != nil {
		return 0, err
	}
	m := &retainedModel{model: snap}
	if err := m.find(ctx); err != nil {
		return 0, err
	}
	updates, err := m.updates(ctx)
	if err != nil {
		return 0, err
	}
	err = s.rewrite(ctx, snap, s.order(), updates, "the retained state", func(pieces []aggregate.Piece, data []float32) error {
		bytes += 4 * uint64(len(data))
		return m.read(ctx, pieces)
	})
	if err != nil {
		return 0, err
	}
	drop := func(int) *api.StateQuestion { return &api.StateQuestion{Kind: api.StateQuestion_DROP_RETAINED} }
	if _, err := m.ask(ctx, drop); err != nil {
		s.store.log.Warn("some racks still retain what was restored", "job", s.Name, "err", err)
	}
	return bytes, nil
}

// retainedModel is the state of a failed run, as racks retain it.
type retainedModel struct {
	*model
	*recovery
}

// ask asks all racks, with this one.
func (m *retainedModel) ask(ctx context.Context, about func(rack int) *api.StateQuestion) ([][]byte, error) {
	own := m.others.Own()
	question := func(rack int) *api.StateQuestion {
		q := about(rack)
		if q != nil && m.recovery != nil {
			q.Run, q.Changes, q.Owners = m.run, m.changes, m.owners[rack]
		}
		return q
	}
	answers, err := m.model.ask(ctx, question)
	if err != nil {
		return nil, err
	}
	if q := question(own); q != nil {
		answers[own], err = m.s.answerRetained(ctx, q)
	}
	return answers, err
}

// find asks the racks for their retained states, and finds the last step that is whole in them.
func (m *retainedModel) find(ctx context.Context) error {
	answers, err := m.ask(ctx, func(int) *api.StateQuestion { return &api.StateQuestion{Kind: api.StateQuestion_RETAINED} })
	if err != nil {
		return err
	}
	there := make([]*retainedState, len(answers))
	for rack, a := range answers {
		if len(a) == 0 {
			continue
		}
		if err := json.Unmarshal(a, &there[rack]); err != nil || !there[rack].sound() {
			return errors.Join(m.misunderstood(rack), err)
		}
	}
	m.recovery, err = recoverFrom(there, m.s.digestModel())
	return err
}

// askGivers asks the racks that give some of the state.
func (m *retainedModel) askGivers(ctx context.Context, q func() *api.StateQuestion) ([][]byte, error) {
	return m.ask(ctx, func(rack int) *api.StateQuestion {
		if !m.gives(rack) {
			return nil
		}
		return q()
	})
}

// updates returns the number of optimizer steps of each tensor.
func (m *retainedModel) updates(ctx context.Context) ([]uint32, error) {
	answers, err := m.askGivers(ctx, func() *api.StateQuestion { return &api.StateQuestion{Kind: api.StateQuestion_RETAINED_UPDATES} })
	if err != nil {
		return nil, err
	}
	out := slices.Repeat([]uint32{aggregate.NoUpdates}, m.s.Model.Plan.NumTensors())
	return m.merge(out, answers, m.gives)
}

// gives reports whether a rack gives some of the state.
func (m *retainedModel) gives(rack int) bool { return len(m.owners[rack]) > 0 }

// read fills pieces.
func (m *retainedModel) read(ctx context.Context, pieces []aggregate.Piece) error {
	answers, err := m.askGivers(ctx, func() *api.StateQuestion { return about(api.StateQuestion_READ_RETAINED, pieces) })
	if err != nil {
		return err
	}
	found := make([]bool, len(pieces))
	for rack, a := range answers {
		if !m.gives(rack) {
			continue
		}
		ok := len(a) >= len(pieces)
		read, values := a[:min(len(a), len(pieces))], a[min(len(a), len(pieces)):]
		for i := range pieces {
			if ok && read[i] != 0 {
				values, ok = readValues(pieces[i].Data, values)
				found[i] = true
			}
		}
		if !ok {
			return m.misunderstood(rack)
		}
	}
	if i := slices.Index(found, false); i >= 0 {
		return fmt.Errorf("%w of chunk %d", errNotRetained, pieces[i].Chunk)
	}
	return nil
}

// DropAll drops all states of failed jobs.
func (st *Store) DropAll() {
	for st.DropOldest(job.Tenant{}) {
	}
}

// Status describes the states of failed jobs that the caller may know of.
func (st *Store) Status(mayKnow func(job.Tenant) bool) (out []*api.JobStatus) {
	st.mu.Lock()
	all := slices.DeleteFunc(slices.Collect(maps.Values(st.retained)), func(k *retained) bool { return !mayKnow(k.Tenant) })
	st.mu.Unlock()
	slices.SortFunc(all, func(a, b *retained) int { return cmp.Compare(a.Job, b.Job) })
	for _, k := range all {
		out = append(out, k.status())
	}
	return out
}
