package job

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"

	"github.com/rackweave/rackweave/service/api"
	"github.com/rackweave/rackweave/service/quota"
	"github.com/rackweave/rackweave/service/rpc"
)

// Join makes a worker a member of a job and waits until the job has started.
func (t *Table) Join(ctx context.Context, r *api.JoinRequest) (*api.JoinResponse, error) {
	if err := rpc.CheckName("job", r.Job); err != nil {
		return nil, connect.NewError(connect.CodeInvalidArgument, err)
	}
	by := CallerOf(ctx)
	to, err := t.Placer.Redirect(r, func() error { return t.mayJoin(r.Job, by) })
	if to != nil || err != nil {
		return to, err
	}
	m, sp, err := t.newMember(r)
	if err != nil {
		return nil, t.unplaced(m, by, r.Job, err)
	}
	wait, cancel := rpc.Bounded(ctx, r.TimeoutMs)
	defer cancel()
	j, last, err := t.admit(m, by, r, sp)
	for errors.As(err, new(*noPlace)) && wait.Err() == nil {
		select {
		case <-wait.Done():
		case <-t.Closing:
			return nil, connect.NewError(connect.CodeUnavailable, ErrShutdown)
		case <-time.After(placeAgain):
			j, last, err = t.admit(m, by, r, sp)
		}
	}
	if err != nil {
		return nil, err
	}
	by.becomes(m)
	if last {
		j.startErr = j.begin(ctx, wait, m)
		t.mu.Lock()
		t.settle(j)
		t.mu.Unlock()
	}
	select {
	case <-j.started:
	case <-t.Closing:
		return nil, connect.NewError(connect.CodeUnavailable, ErrShutdown)
	case <-wait.Done():
		if err := t.withdraw(m, wait.Err()); err != nil {
			return nil, err
		}
		<-j.started
	}
	if j.startErr != nil {
		return nil, j.notStarted(wait)
	}
	if ctx.Err() != nil {
		m.lost("it went away while it joined")
	}
	return m.welcome(), nil
}

// unplaced refuses a worker. A job that one of its workers takes to another rack ends: its others would wait in vain.
func (t *Table) unplaced(m *Member, by *Caller, job string, err error) error {
	code := connect.CodeInvalidArgument
	if at := new(Unplaced); errors.As(err, &at) {
		if at.Planned {
			code = connect.CodeFailedPrecondition
		}
		if at.Misplaced {
			t.EndForming(job, by, fmt.Errorf("%v was refused: %w", m, err))
		}
	}
	return rpc.Refuse(code, "join job %q: %w", job, err)
}

// notStarted returns the error of a worker whose job has not started.
func (j *Job) notStarted(wait context.Context) error {
	code := connect.CodeFailedPrecondition
	switch {
	case errors.Is(wait.Err(), context.DeadlineExceeded):
		code = connect.CodeDeadlineExceeded
	case connect.CodeOf(j.startErr) == connect.CodeResourceExhausted:
		code = connect.CodeResourceExhausted
	}
	return rpc.Refuse(code, "join job %q: %w", j.Name, rpc.Reason(j.startErr))
}

// blamed returns why the job could not begin: one of its workers has gone away, another was refused, or what the job needs did not
// come while all had time. The call of the last worker to join begins it.
func (j *Job) blamed(call context.Context, last *Member, err error) error {
	switch why := context.Cause(j.hopeless); {
	case errors.As(why, new(*impatient)):
		return fmt.Errorf("%w: %w", why, rpc.Reason(err))
	case why != nil:
		return why
	case errors.Is(call.Err(), context.Canceled):
		return fmt.Errorf("%v went away while the job began: %w", last, err)
	}
	return err
}

// impatient is the error of a job that begins, one of whose workers waits no longer.
type impatient struct{ text string }

func (e *impatient) Error() string { return e.text }

// Is matches [context.DeadlineExceeded]: what the job still waited for (racks, connections, a place) has not come in time.
func (e *impatient) Is(target error) bool { return target == context.DeadlineExceeded }

// Unplaced is the error of a worker that has no place here.
type Unplaced struct {
	Err       error
	Misplaced bool // it has one in another rack
	Planned   bool // by another plan it may have one here
}

func (e *Unplaced) Error() string { return e.Err.Error() }

func (e *Unplaced) Unwrap() error { return e.Err }

// EndForming ends a job that still forms, or begins, because of one of its workers or racks: the others would wait in vain. It does
// nothing if by is not nil and lacks the job's token.
func (t *Table) EndForming(job string, by *Caller, why error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	j := t.jobs[job]
	if j != nil && (by == nil || rpc.Equal(by.Token, j.Token)) && !isClosed(j.started) {
		j.end(why)
	}
}

// newMember reads who asks to join, and what for.
func (t *Table) newMember(r *api.JoinRequest) (*Member, Spec, error) {
	sp, err := parseSpec(r)
	if err != nil {
		return nil, sp, err
	}
	m := &Member{
		Session: rpc.NewID(), Rank: int(r.Rank), Host: rpc.Printable(r.Host, rpc.MaxNameBytes), hostID: r.HostId, pid: r.Pid, uid: r.Uid,
		provider: r.Provider, providers: r.Providers, run: rpc.Printable(r.Run, maxRunName), Out: make(chan struct{}),
		codecs: make(chan *api.Codecs, codecsQueued),
	}
	m.Ranks = sp.Workers
	if err := t.Placer.Place(&sp, m, r); err != nil {
		return m, sp, err
	}
	if m.provider == "auto" {
		m.provider = ""
	}
	if m.provider != "" && t.Engines.By[m.provider] == nil {
		return nil, sp, fmt.Errorf("provider %q is not served here: use auto, or %s", m.provider, rpc.List(t.Engines.Served))
	}
	return m, sp, nil
}

// admit makes a worker a member of its job. It makes the job if it is missing, and reports whether the worker completes it.
func (t *Table) admit(m *Member, by *Caller, r *api.JoinRequest, sp Spec) (j *Job, last bool, err error) {
	policy, err := t.Policy(r.Job, by)
	if err != nil {
		return nil, false, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.draining {
		return nil, false, rpc.Refuse(connect.CodeUnavailable, "the aggregator is draining and takes no workers: join another")
	}
	j = t.jobs[r.Job]
	if j == nil {
		if j, err = t.newJob(r, by, policy, sp); err != nil {
			return nil, false, err
		}
	}
	if !rpc.Equal(by.Token, j.Token) {
		return nil, false, wrongToken(r.Job)
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if err := j.ofRun(m); err != nil {
		return nil, false, err
	}
	if err := j.Spec.differs(sp); err != nil {
		if j.isForming() { // it has the job's token and will not join as the others did: they would wait in vain
			j.end(fmt.Errorf("%v was refused: %w", m, err))
		}
		return nil, false, rpc.Refuse(connect.CodeFailedPrecondition, "join job %q: %w", r.Job, err)
	}
	if err := j.hasRoom(m, r.Rack); err != nil {
		return nil, false, err
	}
	if last = len(j.Members)+1 == j.Spec.Workers; last {
		if err := t.takePlace(); err != nil {
			j.refused = fmt.Sprintf("; %v waited: %v", m, rpc.Reason(err))
			return nil, false, err
		}
	}
	if err := t.takeWorker(j); err != nil {
		return nil, false, err
	}
	if last {
		j.starting = time.Now()
	}
	t.jobs[r.Job] = j
	t.members++
	m.Job = j
	j.Members = append(j.Members, m)
	t.Log.Info("worker joined", "job", j.Name, "host", m.Host, "pid", m.pid, "workers",
		fmt.Sprintf("%d of %d", len(j.Members), j.Spec.Workers))
	return j, last, nil
}

// ofRun refuses a worker of another run than the job's: two runs that name their job alike would add each other's gradients. The
// caller holds j.mu.
func (j *Job) ofRun(m *Member) error {
	for _, other := range j.Members {
		if m.run != "" && other.run != "" && m.run != other.run {
			return rpc.Refuse(connect.CodeFailedPrecondition, "job %q is of run %q, which %v began, and this worker is of run %q: set RACKWEAVE_JOB to "+
				"another name for one of the runs, or wait until the first has ended", j.Name, other.run, other, m.run)
		}
	}
	return nil
}

// mayJoin refuses a caller without the token of the job, which may not have begun.
func (t *Table) mayJoin(name string, by *Caller) error {
	policy, err := t.Policy(name, by)
	if err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	token := cmp.Or(policy.Token, by.Token)
	if j := t.jobs[name]; j != nil {
		token = j.Token
	}
	if !rpc.Equal(by.Token, token) {
		return wrongToken(name)
	}
	return nil
}

func wrongToken(job string) error {
	return rpc.Refuse(connect.CodePermissionDenied, "job %q: wrong token", job)
}

// hasRoom refuses a worker if no rank is left. The caller holds j.mu.
func (j *Job) hasRoom(m *Member, rack string) error {
	if len(j.Members) == j.Spec.Workers {
		return rpc.Refuse(connect.CodeResourceExhausted,
			"job %q has all of its %d workers: this one is too many, or an earlier run has not ended", j.Name, j.Spec.Workers)
	}
	there := 0 // of its rack
	for _, other := range j.Members {
		if m.Rank >= 0 && m.Rank == other.Rank {
			j.refused = fmt.Sprintf("; %v was refused: %v has its rank", m, other)
			return rpc.Refuse(connect.CodeAlreadyExists, "rank %d of job %q is taken by %v", m.Rank, j.Name, other)
		}
		if other.Low == m.Low {
			there++
		}
	}
	if there == m.Ranks {
		return rpc.Refuse(connect.CodeResourceExhausted, "job %q has all of the %d workers of rack %q: this one is too many", j.Name, there,
			rpc.Printable(rack, rpc.MaxNameBytes))
	}
	return nil
}

// newJob makes a job from its first worker's request. The caller holds t.mu.
func (t *Table) newJob(r *api.JoinRequest, by *Caller, policy Policy, sp Spec) (*Job, error) {
	t.makeRoom()
	if n := policy.Quota.maxWorkers(); sp.Workers > n {
		return nil, rpc.Refuse(connect.CodeResourceExhausted, "job %q of %d workers: its quota is %d", r.Job, sp.Workers, n)
	}
	hopeless, despair := context.WithCancelCause(context.Background())
	j := &Job{
		formation: formation{hopeless: hopeless, despair: despair}, live: live{Capturing: make(chan struct{}, 1)},
		Table: t, Name: r.Job, Token: cmp.Or(policy.Token, by.Token), Policy: policy, Spec: sp, born: time.Now(),
		started: make(chan struct{}),
		Failed:  make(chan struct{}), Ended: make(chan struct{}), Over: make(chan struct{}),
		gatherings: map[string]*gathering{}, peer: by.Conn.Addr(),
		Account: t.Ledger.Open(quota.Amounts{quota.Memory: policy.Quota.MemoryBytes}),
	}
	return j, nil
}

// assignRanks gives the free ranks to the workers that asked for none, in the order they joined, and sorts members by rank.
func (j *Job) assignRanks() {
	j.mu.Lock()
	defer j.mu.Unlock()
	byRank := make([]*Member, j.Spec.Workers)
	for _, m := range j.Members {
		if m.Rank >= 0 {
			byRank[m.Rank] = m
		}
	}
	for _, m := range j.Members {
		if m.Rank >= 0 {
			continue
		}
		next := m.Low
		for byRank[next] != nil {
			next++
		}
		m.Rank, byRank[next] = next, m
	}
	j.Members = byRank
}

// withdraw removes a worker that waits no longer from a job that still forms. It returns nil if the job has started meanwhile, or
// has all its workers: then it does not begin without this one.
func (t *Table) withdraw(m *Member, cause error) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	j := m.Job
	if isClosed(j.started) {
		return nil
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	there := len(j.Members)
	if there == j.Spec.Workers {
		if errors.Is(cause, context.Canceled) {
			j.despair(fmt.Errorf("%v went away while the job began", m))
		} else {
			j.despair(&impatient{fmt.Sprintf("%v waited until its time was up", m)})
		}
		return nil
	}
	j.Members = slices.DeleteFunc(j.Members, func(o *Member) bool { return o == m })
	t.members--
	t.Dismiss(m)
	if len(j.Members) == 0 {
		delete(t.jobs, j.Name)
	}
	return rpc.Refuse(codeOf(cause), "join job %q: %d of %d workers came in time%s%s", j.Name, there, j.Spec.Workers,
		missing(j, m), j.refused)
}

// missing names the ranks that no worker has asked for, if workers ask for ranks.
func missing(j *Job, but *Member) string {
	taken := make([]bool, j.Spec.Workers)
	for _, m := range append(slices.Clone(j.Members), but) {
		if m.Rank < 0 {
			return ""
		}
		taken[m.Rank] = true
	}
	var names []string
	for r, t := range taken {
		if !t {
			names = append(names, fmt.Sprint(r))
		}
	}
	return ": missing ranks " + strings.Join(names, ", ")
}
