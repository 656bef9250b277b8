package service

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/rackweave/rackweave/aggregate"
	"github.com/rackweave/rackweave/service/api"
	"github.com/rackweave/rackweave/service/quota"
)

// keptFor is how long the state of a failed run waits for the next.
const keptFor = time.Hour

// tenant is whose a job's runs are: a job of the same name that another token began is another's.
type tenant struct{ job, token string }

// kept is the state of a failed run of a job that this aggregator keeps, until the next run has taken it up, ended well or failed,
// or another job needs the memory.
type kept struct {
	keptThere
	tenant
	state   *aggregate.Remains
	account *quota.Account

	expiry *time.Timer
	mu     sync.RWMutex // read-locked to read the state, locked to free it
	freed  bool
}

// buddies reports whether the job's owners have buddies.
func (j *job) buddies() bool { return j.above != nil && j.above.Buddies }

// sayKept adds to a failure how the job may go on.
func (j *job) sayKept(err error) error {
	if !j.buddies() {
		return err
	}
	return fmt.Errorf("%w; racks keep each other's state: begin the job again, and restore %q to go on from its last whole step", err,
		api.BuddyName)
}

// close closes the job's aggregation, and keeps the state unless it has ended well in all racks.
func (j *job) close(well bool) error {
	defer close(j.over)
	closing := false
	select {
	case <-j.s.closing:
		closing = true
	default:
	}
	switch {
	case !j.buddies() || closing:
		return j.agg.Close()
	case well:
		j.s.dropKept(j.tenant())
		return j.agg.Close()
	}
	k := j.spec.racks
	u := k.run(j)
	state, err := j.agg.CloseKeeping()
	if state == nil || u == nil {
		return err
	}
	at := &kept{tenant: j.tenant(), state: state, account: j.account.PassOn(quota.Memory, state.Bytes())}
	at.keptThere = keptThere{Run: u.ids[0], Failed: time.Now().UnixNano(), Racks: k.Names(), Owners: j.above.Owners(), Own: k.own,
		Model: j.digestModel()}
	for rack := range k.Racks {
		g := keptRange{}
		g.Least, g.Most, g.Kept = state.Range(rack)
		at.Ranges, at.Buddy = append(at.Ranges, g), append(at.Buddy, k.topology.Buddy(rack))
	}
	j.s.keep(at)
	return err
}

// digestModel identifies what a state is of.
func (j *job) digestModel() string {
	h := sha256.New()
	fmt.Fprintln(h, j.spec.rule, j.spec.rule.States(j.spec.hyper), j.spec.chunkBytes)
	n := j.plan.NumTensors()
	for i := range n {
		t := j.plan.Tensor(i)
		fmt.Fprintf(h, "%q %d %v\n", t.Name, t.Elems, t.DType)
	}
	return fmt.Sprintf("%d tensors with %v (%x)", n, j.spec.rule, h.Sum(nil)[:4])
}

// keep keeps a state in place of that of an earlier run.
func (s *Service) keep(k *kept) {
	k.expiry = time.AfterFunc(keptFor, func() { s.dropThis(k) })
	s.mu.Lock()
	before := s.kept[k.tenant]
	s.kept[k.tenant] = k
	s.mu.Unlock()
	before.free(s)
	s.log.Info("the state of a failed job is kept for its next run", "job", k.job, "step", k.state.WholeStep(),
		"bytes", k.state.Bytes())
}

// keptOf returns what is kept of a job's runs; nil: nothing.
func (s *Service) keptOf(t tenant) *kept {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.kept[t]
}

// dropKept lets go of what is kept of a job's runs.
func (s *Service) dropKept(t tenant) {
	if k := s.keptOf(t); k != nil {
		s.dropThis(k)
	}
}

func (s *Service) dropThis(k *kept) {
	s.mu.Lock()
	if s.kept[k.tenant] == k {
		delete(s.kept, k.tenant)
	}
	s.mu.Unlock()
	k.free(s)
}

// keptOfOthers is what is charged for what is kept of other jobs.
func (s *Service) keptOfOthers(but tenant) quota.Amounts {
	s.mu.Lock()
	defer s.mu.Unlock()
	sum := quota.Amounts{}
	for of, k := range s.kept {
		if of == but {
			continue
		}
		for what, n := range k.account.Used() {
			sum[what] += n
		}
	}
	return sum
}

// dropOldest lets go of what has been kept for longest of other jobs, and reports whether there was any.
func (s *Service) dropOldest(but tenant) bool {
	s.mu.Lock()
	var oldest *kept
	for of, k := range s.kept {
		if of != but && (oldest == nil || k.Failed < oldest.Failed) {
			oldest = k
		}
	}
	s.mu.Unlock()
	if oldest == nil {
		return false
	}
	s.log.Info("the state of a failed job is given up", "job", oldest.job, "for", but.job)
	s.dropThis(oldest)
	return true
}

// free frees what is kept; of nil nothing.
func (k *kept) free(s *Service) {
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
		s.log.Error("free the state of a failed job", "job", k.job, "err", err)
	}
	k.account.Close()
}

// status describes what is kept.
func (k *kept) status() *api.JobStatus {
	k.mu.RLock()
	defer k.mu.RUnlock()
	out := &api.JobStatus{Name: k.job, State: "kept", AgeSeconds: time.Since(time.Unix(0, k.Failed)).Seconds()}
	if !k.freed {
		out.WholeStep, out.ParameterBytes = k.state.WholeStep(), uint64(k.state.Bytes())
	}
	return out
}

// keptHere returns what is kept of the job's earlier runs, once those have ended.
func (j *job) keptHere(ctx context.Context) (*kept, error) {
	j.s.mu.Lock()
	var ending []*job
	for other := range j.s.retired {
		if other.name == j.name && other != j && other.agg != nil {
			ending = append(ending, other)
		}
	}
	j.s.mu.Unlock()
	for _, other := range ending {
		select {
		case <-other.over:
		case <-ctx.Done():
			return nil, fmt.Errorf("the failed run of job %q has not ended in time: %w", j.name, ctx.Err())
		}
	}
	return j.s.keptOf(j.tenant()), nil
}

// answerKept answers a question about the state that is kept of the job's failed run.
func (j *job) answerKept(ctx context.Context, q *api.StateQuestion) ([]byte, error) {
	k, err := j.keptHere(ctx)
	switch {
	case err != nil:
		return nil, err
	case q.Kind == api.StateQuestion_KEPT && k == nil:
		return nil, nil
	case q.Kind == api.StateQuestion_KEPT:
		return json.Marshal(&k.keptThere)
	case q.Kind == api.StateQuestion_DROP_KEPT:
		if k != nil && k.Run == q.Run {
			j.s.dropThis(k)
		}
		return nil, nil
	case k == nil || k.Run != q.Run:
		return nil, fmt.Errorf("%w any more", errNotKept)
	}
	k.mu.RLock()
	defer k.mu.RUnlock()
	if k.freed {
		return nil, fmt.Errorf("%w any more", errNotKept)
	}
	owners := make([]bool, len(k.Racks))
	for _, o := range q.Owners {
		if int64(o) >= int64(len(owners)) {
			return nil, fmt.Errorf("rack %d of %d: %w", o, len(owners), errProtocolOfRacks)
		}
		owners[o] = true
	}
	if q.Kind == api.StateQuestion_KEPT_UPDATES {
		updates, err := k.state.Updates(q.Changes, owners, j.plan.NumTensors())
		b := make([]byte, 0, 4*len(updates))
		for _, n := range updates {
			b = binary.LittleEndian.AppendUint32(b, n)
		}
		return b, err
	}
	return j.readKept(q, k, owners)
}

// readKept answers with the values of the pieces that are kept of some owners.
func (j *job) readKept(q *api.StateQuestion, k *kept, owners []bool) ([]byte, error) {
	pieces, data, err := j.pieces(q, 1+j.spec.rule.States(j.spec.hyper))
	if err != nil {
		return nil, err
	}
	read, err := k.state.Read(q.Changes, owners, pieces)
	if err != nil {
		return nil, err
	}
	b := make([]byte, len(pieces), len(pieces)+4*len(data))
	for i := range pieces {
		if read[i] {
			b[i] = 1
			b = appendFloats(b, pieces[i].Data)
		}
	}
	return b, nil
}

// takeKept is what an answer to READ_KEPT holds of pieces; it marks those in found.
func takeKept(b []byte, pieces []aggregate.Piece, found []bool) error {
	if len(b) < len(pieces) {
		return errProtocolOfRacks
	}
	read, b := b[:len(pieces)], b[len(pieces):]
	for i := range pieces {
		if read[i] == 0 {
			continue
		}
		n := 4 * len(pieces[i].Data)
		if len(b) < n {
			return errProtocolOfRacks
		}
		readFloats(pieces[i].Data, b[:n])
		b, found[i] = b[n:], true
	}
	return nil
}

// restoreKept takes up the state of the job's failed run, and returns its size.
func (j *job) restoreKept(ctx context.Context, others elsewhere) (bytes int64, err error) {
	if k := j.spec.racks; k == nil || !k.Buddy {
		return 0, fmt.Errorf("%w: racks of this aggregator's cluster have no buddies: put buddy: true into the file of all, or restore a checkpoint",
			errNotKept)
	}
	snap, err := j.snapshot(ctx, others)
	if err != nil {
		return 0, err
	}
	m := &keptModel{modelState: snap}
	if err := m.find(ctx); err != nil {
		return 0, err
	}
	updates, err := m.updates(ctx)
	if err != nil {
		return 0, err
	}
	order := make([]int, j.plan.NumTensors())
	for i := range order {
		order[i] = i
	}
	err = j.rewrite(ctx, snap, order, updates, "what racks keep", func(pieces []aggregate.Piece, data []float32) error {
		bytes += 4 * int64(len(data))
		return m.read(ctx, pieces)
	})
	if err != nil {
		return 0, err
	}
	drop := func(int) *api.StateQuestion { return &api.StateQuestion{Kind: api.StateQuestion_DROP_KEPT} }
	if _, err := m.ask(ctx, drop); err != nil {
		j.s.log.Warn("some racks still keep what was restored", "job", j.name, "err", err)
	}
	return bytes, nil
}

// keptModel is the state of a failed run, wherever racks keep it.
type keptModel struct {
	*modelState
	*recovery
}

// ask asks all racks, this one too.
func (m *keptModel) ask(ctx context.Context, about func(rack int) *api.StateQuestion) ([][]byte, error) {
	own := m.others.own()
	question := func(rack int) *api.StateQuestion {
		q := about(rack)
		if q != nil && m.recovery != nil {
			q.Run, q.Changes, q.Owners = m.run, m.changes, m.owners[rack]
		}
		return q
	}
	answers, err := m.modelState.ask(ctx, question)
	if err != nil {
		return nil, err
	}
	if q := question(own); q != nil {
		answers[own], err = m.j.answerKept(ctx, q)
	}
	return answers, err
}

// find finds out what racks keep, and the last step that is whole in it.
func (m *keptModel) find(ctx context.Context) error {
	answers, err := m.ask(ctx, func(int) *api.StateQuestion { return &api.StateQuestion{Kind: api.StateQuestion_KEPT} })
	if err != nil {
		return err
	}
	there := make([]*keptThere, len(answers))
	for rack, a := range answers {
		if len(a) == 0 {
			continue
		}
		if err := json.Unmarshal(a, &there[rack]); err != nil || !there[rack].sound() {
			return errors.Join(m.misunderstood(rack), err)
		}
	}
	m.recovery, err = recoverFrom(there, m.j.digestModel())
	return err
}

// givers asks the racks that give some of the state.
func (m *keptModel) givers(kind api.StateQuestion_Kind, pieces []aggregate.Piece) func(rack int) *api.StateQuestion {
	return func(rack int) *api.StateQuestion {
		if len(m.owners[rack]) == 0 {
			return nil
		}
		if len(pieces) == 0 {
			return &api.StateQuestion{Kind: kind}
		}
		return about(kind, pieces)
	}
}

// updates returns how many optimizer steps each tensor had had.
func (m *keptModel) updates(ctx context.Context) ([]uint32, error) {
	answers, err := m.ask(ctx, m.givers(api.StateQuestion_KEPT_UPDATES, nil))
	if err != nil {
		return nil, err
	}
	out := make([]uint32, m.j.plan.NumTensors())
	for rack, a := range answers {
		if len(m.owners[rack]) == 0 {
			continue
		}
		if len(a) != 4*len(out) {
			return nil, m.misunderstood(rack)
		}
		for t := range out {
			if n := binary.LittleEndian.Uint32(a[4*t:]); n != aggregate.NoUpdates {
				out[t] = n
			}
		}
	}
	return out, nil
}

// read fills pieces.
func (m *keptModel) read(ctx context.Context, pieces []aggregate.Piece) error {
	answers, err := m.ask(ctx, m.givers(api.StateQuestion_READ_KEPT, pieces))
	if err != nil {
		return err
	}
	found := make([]bool, len(pieces))
	for rack, a := range answers {
		if len(m.owners[rack]) == 0 {
			continue
		}
		if takeKept(a, pieces, found) != nil {
			return m.misunderstood(rack)
		}
	}
	if i := slices.Index(found, false); i >= 0 {
		return fmt.Errorf("%w of chunk %d", errNotKept, pieces[i].Chunk)
	}
	return nil
}
