package service

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
	"github.com/rackweave/rackweave/verbs"
)

func refuse(code connect.Code, format string, args ...any) *connect.Error {
	return connect.NewError(code, fmt.Errorf(format, args...))
}

// reason returns a refusal without its code, which is only for the caller.
func reason(err error) error {
	if c := new(connect.Error); errors.As(err, &c) {
		return c.Unwrap()
	}
	return err
}

// Join implements the schema's Join.
func (s *Service) Join(ctx context.Context, r *api.JoinRequest) (*api.JoinResponse, error) {
	if err := checkName("job", r.Job); err != nil {
		return nil, connect.NewError(connect.CodeInvalidArgument, err)
	}
	by := callerOf(ctx)
	if to, err := s.redirect(r, by); to != nil || err != nil {
		return to, err
	}
	m, sp, err := s.newMember(r)
	if err != nil {
		code := connect.CodeInvalidArgument
		is := errors.As(err, new(*misplaced))
		if errors.As(err, new(*unplanned)) || is && s.cluster.Members != nil {
			code = connect.CodeFailedPrecondition // by another plan it may have its place here
		}
		if is {
			s.endForming(r.Job, by, fmt.Errorf("%v was refused: %w", m, err))
		}
		return nil, refuse(code, "join job %q: %w", r.Job, err)
	}
	wait, cancel := bounded(ctx, r.TimeoutMs)
	defer cancel()
	j, last, err := s.admit(m, by, r, sp)
	for errors.As(err, new(*noPlace)) && wait.Err() == nil {
		select {
		case <-wait.Done():
		case <-s.closing:
			return nil, connect.NewError(connect.CodeUnavailable, errShutdown)
		case <-time.After(placeAgain):
			j, last, err = s.admit(m, by, r, sp)
		}
	}
	if err != nil {
		return nil, err
	}
	by.becomes(m)
	if last {
		j.startErr = j.beginFor(ctx, wait, m)
		s.mu.Lock()
		s.settle(j)
		s.mu.Unlock()
	}
	select {
	case <-j.started:
	case <-s.closing:
		return nil, connect.NewError(connect.CodeUnavailable, errShutdown)
	case <-wait.Done():
		if err := s.withdraw(m, wait.Err()); err != nil {
			return nil, err
		}
		<-j.started
	}
	if j.startErr != nil {
		code := connect.CodeFailedPrecondition
		switch {
		case errors.Is(wait.Err(), context.DeadlineExceeded):
			code = connect.CodeDeadlineExceeded
		case connect.CodeOf(j.startErr) == connect.CodeResourceExhausted:
			code = connect.CodeResourceExhausted
		}
		return nil, refuse(code, "join job %q: %w", r.Job, reason(j.startErr))
	}
	if ctx.Err() != nil {
		m.lost("it went away while it joined")
	}
	return m.welcome(), nil
}

// beginFor begins the job whose last worker has joined, and says why it could not: that one has gone away, another was refused, or
// what the job needs did not come while all had time.
func (j *job) beginFor(ctx, wait context.Context, last *member) error {
	wait, cancel := context.WithCancelCause(wait)
	defer cancel(nil)
	defer context.AfterFunc(j.hopeless, func() { cancel(context.Cause(j.hopeless)) })()
	err := j.begin(wait)
	switch why := context.Cause(j.hopeless); {
	case err == nil:
		return nil
	case errors.As(why, new(*impatient)):
		return fmt.Errorf("%w: %w", why, reason(err))
	case why != nil:
		return why
	case errors.Is(ctx.Err(), context.Canceled):
		return fmt.Errorf("%v went away while the job began: %w", last, err)
	}
	return err
}

// impatient is the error of a job that begins, one of whose workers waits no longer.
type impatient struct{ text string }

func (e *impatient) Error() string { return e.text }

// Is matches [context.DeadlineExceeded]: what the job still waited for (racks, connections, a place) has not come in time.
func (e *impatient) Is(target error) bool { return target == context.DeadlineExceeded }

// misplaced is the error of a worker that has come to another rack than its own.
type misplaced struct{ text string }

func (e *misplaced) Error() string { return e.text }

// endForming ends a job that still forms, or begins, for what one of its workers has done: the others would wait in vain. It leaves
// alone a job that the caller has not the token of.
func (s *Service) endForming(job string, by *caller, why error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	j := s.jobs[job]
	if j == nil || !equal(by.token, j.token) {
		return
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	select {
	case <-j.started:
		return
	default:
	}
	if len(j.members) == j.spec.workers {
		j.despair(why)
		return
	}
	j.startErr = why
	s.settle(j)
}

// newMember reads who asks to join, and what for.
func (s *Service) newMember(r *api.JoinRequest) (*member, spec, error) {
	sp, err := parseSpec(r)
	if err != nil {
		return nil, sp, err
	}
	m := &member{
		session: newSession(), rank: int(r.Rank), host: printable(r.Host, maxHostName), hostID: r.HostId, pid: r.Pid, uid: r.Uid,
		provider: r.Provider, providers: r.Providers, run: printable(r.Run, maxRunName), out: make(chan struct{}),
	}
	if err := s.place(&sp, m, r.Rack); err != nil {
		return m, sp, err
	}
	if err := s.chooseOuter(&sp, r.Outer); err != nil {
		return nil, sp, err
	}
	if m.provider == "auto" {
		m.provider = ""
	}
	if m.provider != "" && s.engines[m.provider] == nil {
		return nil, sp, fmt.Errorf("provider %q is not served here: use auto, or %s", m.provider, list(s.served))
	}
	return m, sp, nil
}

// admit makes a worker a member of its job. It makes the job if there is none, and reports whether the worker completes it.
func (s *Service) admit(m *member, by *caller, r *api.JoinRequest, sp spec) (j *job, last bool, err error) {
	policy, err := s.policy(r.Job, by)
	if err != nil {
		return nil, false, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.draining {
		return nil, false, refuse(connect.CodeUnavailable, "the aggregator is draining and takes no workers: join another")
	}
	j = s.jobs[r.Job]
	if j == nil {
		if j, err = s.newJob(r, by, policy, sp); err != nil {
			return nil, false, err
		}
	}
	if !equal(by.token, j.token) {
		return nil, false, wrongToken(r.Job)
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if err := j.ofRun(m); err != nil {
		return nil, false, err
	}
	if err := j.spec.differs(sp); err != nil {
		if len(j.members) < j.spec.workers {
			// It has the job's token and will not join as the others did: they would wait in vain.
			j.startErr = fmt.Errorf("%v was refused: %w", m, err)
			s.settle(j)
		}
		return nil, false, refuse(connect.CodeFailedPrecondition, "join job %q: %w", r.Job, err)
	}
	if err := j.hasRoom(m, r.Rack); err != nil {
		return nil, false, err
	}
	if last = len(j.members)+1 == j.spec.workers; last {
		if err := s.takePlace(); err != nil {
			j.refused = fmt.Sprintf("; %v waited: %v", m, reason(err))
			return nil, false, err
		}
	}
	if s.members == s.opts.MaxWorkers {
		return nil, false, refuse(connect.CodeResourceExhausted, "the aggregator serves %d workers, all it may", s.members)
	}
	if last {
		j.starting = time.Now()
	}
	s.jobs[r.Job] = j
	s.members++
	m.job = j
	j.members = append(j.members, m)
	s.log.Info("worker joined", "job", j.name, "host", m.host, "pid", m.pid, "workers",
		fmt.Sprintf("%d of %d", len(j.members), j.spec.workers))
	return j, last, nil
}

// ofRun refuses a worker of another run than the job's: two runs that name their job alike would add each other's gradients. The
// caller holds j.mu.
func (j *job) ofRun(m *member) error {
	for _, other := range j.members {
		if m.run != "" && other.run != "" && m.run != other.run {
			return refuse(connect.CodeFailedPrecondition, "job %q is of run %q, which %v began, and this worker is of run %q: set RACKWEAVE_JOB to "+
				"another name for one of the runs, or wait until the first has ended", j.name, other.run, other, m.run)
		}
	}
	return nil
}

// mayJoin refuses a caller without the token of the job, which may not have begun.
func (s *Service) mayJoin(name string, by *caller) error {
	policy, err := s.policy(name, by)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	token := cmp.Or(policy.Token, by.token)
	if j := s.jobs[name]; j != nil {
		token = j.token
	}
	if !equal(by.token, token) {
		return wrongToken(name)
	}
	return nil
}

func wrongToken(job string) error {
	return refuse(connect.CodePermissionDenied, "job %q: wrong token", job)
}

// hasRoom refuses a worker for whom there is no rank. The caller holds j.mu.
func (j *job) hasRoom(m *member, rack string) error {
	if len(j.members) == j.spec.workers {
		return refuse(connect.CodeResourceExhausted,
			"job %q has all of its %d workers: this one is too many, or an earlier run has not ended", j.name, j.spec.workers)
	}
	there := 0 // of its rack
	for _, other := range j.members {
		if m.rank >= 0 && m.rank == other.rank {
			j.refused = fmt.Sprintf("; %v was refused: %v has its rank", m, other)
			return refuse(connect.CodeAlreadyExists, "rank %d of job %q is taken by %v", m.rank, j.name, other)
		}
		if other.low == m.low {
			there++
		}
	}
	if there == m.ranks {
		return refuse(connect.CodeResourceExhausted, "job %q has all of the %d workers of rack %q: this one is too many", j.name, there,
			printable(rack, maxHostName))
	}
	return nil
}

// newJob makes a job from its first worker's request. The caller holds s.mu.
func (s *Service) newJob(r *api.JoinRequest, by *caller, policy JobPolicy, sp spec) (*job, error) {
	s.makeRoom()
	if n := policy.Quota.maxWorkers(); sp.workers > n {
		return nil, refuse(connect.CodeResourceExhausted, "job %q of %d workers: its quota is %d", r.Job, sp.workers, n)
	}
	hopeless, despair := context.WithCancelCause(context.Background())
	return &job{
		hopeless: hopeless, despair: despair,
		s: s, name: r.Job, token: cmp.Or(policy.Token, by.token), policy: policy, spec: sp, born: time.Now(),
		started: make(chan struct{}),
		failed:  make(chan struct{}), ended: make(chan struct{}), over: make(chan struct{}),
		gatherings: map[string]*gathering{}, peer: by.conn.Addr(),
		account: s.ledger.Open(quota.Amounts{quota.Memory: policy.Quota.MemoryBytes}),
	}, nil
}

// settle ends a job's forming: it runs or has failed. The caller holds s.mu.
func (s *Service) settle(j *job) {
	if j.startErr != nil {
		s.log.Warn("job could not start", "job", j.name, "err", j.startErr)
		delete(s.jobs, j.name)
		s.members -= len(j.members)
		for _, m := range j.members {
			s.door.Dismiss(m)
		}
	} else {
		s.log.Info("job started", "job", j.name, "workers", j.spec.workers, "mode", j.spec.mode.String(), "optimizer",
			j.spec.rule.String(), "provider", j.engine.provider)
		for _, m := range j.members {
			s.sessions[m.session] = m
		}
	}
	close(j.started)
}

// withdraw removes a worker that waits no longer from a job that still forms. It returns nil if the job has started meanwhile, or
// has all its workers: then it does not begin without this one.
func (s *Service) withdraw(m *member, cause error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	j := m.job
	select {
	case <-j.started:
		return nil
	default:
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	there := len(j.members)
	if there == j.spec.workers {
		if errors.Is(cause, context.Canceled) {
			j.despair(fmt.Errorf("%v went away while the job began", m))
		} else {
			j.despair(&impatient{fmt.Sprintf("%v waited until its time was up", m)})
		}
		return nil
	}
	j.members = slices.DeleteFunc(j.members, func(o *member) bool { return o == m })
	s.members--
	s.door.Dismiss(m)
	if len(j.members) == 0 {
		delete(s.jobs, j.name)
	}
	code := connect.CodeDeadlineExceeded
	if errors.Is(cause, context.Canceled) {
		code = connect.CodeCanceled
	}
	return refuse(code, "join job %q: %d of %d workers came in time%s%s", j.name, there, j.spec.workers, j.missing(m), j.refused)
}

// missing names the ranks that no worker has asked for, if workers ask for ranks.
func (j *job) missing(but *member) string {
	taken := make([]bool, j.spec.workers)
	for _, m := range append(slices.Clone(j.members), but) {
		if m.rank < 0 {
			return ""
		}
		taken[m.rank] = true
	}
	var names []string
	for r, t := range taken {
		if !t {
			names = append(names, fmt.Sprint(r))
		}
	}
	return ": missing ranks " + strings.Join(names, ", ")
}

// chooseEngine picks the provider of a job whose workers have all joined.
func (s *Service) chooseEngine(j *job) (*engine, error) {
	candidates, err := j.candidates()
	if err != nil {
		return nil, err
	}
	var reasons []string
	for _, p := range candidates {
		if err := s.usable(p, j.members); err == nil {
			return s.engines[p], nil
		} else {
			reasons = append(reasons, fmt.Sprintf("%s: %v", p, err))
		}
	}
	return nil, fmt.Errorf("no provider suits all workers: %s", strings.Join(reasons, "; "))
}

// candidates are the providers that the job's workers allow, fastest first.
func (j *job) candidates() ([]string, error) {
	var asked *member
	for _, m := range j.members {
		if m.provider == "" {
			continue
		}
		if asked != nil && asked.provider != m.provider {
			return nil, fmt.Errorf("%v asks for provider %s, %v for %s: all workers must ask for the same, or for auto", m, m.provider,
				asked, asked.provider)
		}
		asked = m
	}
	if asked != nil {
		return []string{asked.provider}, nil
	}
	return slices.DeleteFunc(verbs.Providers(), func(p string) bool { return p == verbs.ProviderSim }), nil
}

// usable reports whether all workers can use a provider, and if not, why.
func (s *Service) usable(p string, members []*member) error {
	if s.engines[p] == nil {
		return errors.New("not served here")
	}
	for _, m := range members {
		if !slices.Contains(m.providers, p) {
			return fmt.Errorf("%v has none", m)
		}
		if p == verbs.ProviderSHM && m.hostID != s.hostID {
			return fmt.Errorf("%v is not on the aggregator's host", m)
		}
		if p == verbs.ProviderSHM && m.uid != s.uid && m.uid != 0 && !s.opts.sharesWithAnyUser() {
			return fmt.Errorf("%v runs as user %d, the aggregator as user %d: run both as one, use another provider, or start the aggregator "+
				"with --provider-options shm:users=any", m, m.uid, s.uid)
		}
	}
	return nil
}

// welcome returns the answer to a worker whose job has started.
func (m *member) welcome() *api.JoinResponse {
	j := m.job
	e := j.engine
	r := &api.JoinResponse{
		Session: m.session, Rank: uint32(m.inJob()), Workers: uint32(j.spec.total), ChunkBytes: uint32(j.spec.chunkBytes),
		Provider: e.provider, Window: uint32(e.agg.Window()), SendDepth: uint32(e.depths.WorkerSend),
		RecvDepth: uint32(e.depths.WorkerRecv), ByReference: e.byReference(), LiveHyper: j.spec.liveHyper(),
		WatchWithinMs: uint32(watchWithin.Milliseconds()), HeartbeatMs: uint32(heartbeatEvery.Milliseconds()),
		LinkTimeoutMs: uint32(e.linkTimeout.Milliseconds()),
	}
	j.tellRacks(r)
	record := j.spec.rule.Record(j.spec.hyper)
	r.Record = record[:]
	for i, l := range j.lanes {
		r.Lanes = append(r.Lanes, &api.Lane{Nic: uint32(l.NIC), Core: uint32(l.Core), Weight: l.Weight, Device: e.names[i]})
	}
	for _, o := range j.members {
		if o.hostID == m.hostID {
			r.LocalWorkers++
		}
	}
	j.mu.Lock()
	m.timers = []*time.Timer{time.AfterFunc(watchWithin, m.unwatched), time.AfterFunc(connectWithin, m.unconnected)}
	j.mu.Unlock()
	return r
}

// unwatched ends the membership of a worker that has joined and not opened its Watch.
func (m *member) unwatched() {
	m.job.mu.Lock()
	watched := m.watched
	m.job.mu.Unlock()
	if !watched {
		m.lost(fmt.Sprintf("it did not open its watch stream within %v of joining", watchWithin))
	}
}
