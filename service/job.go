package service

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"

	"github.com/rackweave/rackweave/aggregate"
	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/service/api"
	"github.com/rackweave/rackweave/service/quota"
)

// job is one tenant's job, from the first Join to the end of the last worker.
type job struct {
	s      *Service
	name   string
	token  string
	policy JobPolicy
	spec   spec
	born   time.Time
	peer   netip.Addr // of the first worker

	account  *quota.Account
	starting time.Time // when its last worker joined; guarded by s.mu
	// hopeless ends when the job cannot begin any more; despair ends it, with the reason.
	hopeless context.Context
	despair  context.CancelCauseFunc

	// started is closed when the job runs or has failed to start; startErr says which. The next fields are set before that and never
	// change.
	started  chan struct{}
	startErr error
	engine   *engine
	agg      *aggregate.Job
	meetings *meetings        // racks may miss some; else nil
	above    *aggregate.Above // nil: the rack is alone
	lanes    []chunk.Lane     // this aggregator's, as workers are told of them

	tracing sync.Mutex   // held while the job is traced
	model   sync.RWMutex // read-locked to use tensors, locked to add to them, save or restore; taken before the other locks
	turn    atomic.Int32 // of who has locked model: idle, marking or marked
	memory  sync.RWMutex // read-locked to use the job's memory, locked to free it
	freed   bool         // guarded by memory

	failed  chan struct{} // closed when the job has failed; failure is set before
	failure aggregate.Failure
	ended   chan struct{} // closed when all members are gone
	over    chan struct{} // closed when what is kept of it is known

	restored atomic.Pointer[uint32] // how many optimizer steps the state had had that was restored last; nil: none was

	mu           sync.Mutex
	members      []*member // in the order they joined; by rank once started
	gone         int       // members that left or were lost
	refused      string    // the last worker that was not admitted while the job formed, and why
	plan         *chunk.Plan
	modelBytes   int64
	tensors      int
	gatherings   map[string]*gathering
	choice       *choice // of the shape; nil: none was made
	shapeAsked   bool    // by somebody, while it ran
	shapeChanges uint32  // while it ran
	reshaping    reshaping

	linkMeasurements atomic.Uint64 // while it ran
}

// member is one worker of a job.
type member struct {
	job       *job
	session   string
	rank      int // in this rack; -1: any, until the job starts
	first     int // the rank in the whole job of this rack's first worker
	low       int // the first rank that it may have here
	ranks     int // how many it may have
	host      string
	run       string // "": unknown
	hostID    string
	pid       int64
	uid       uint32
	provider  string // asked for; "": any
	providers []string

	calls atomic.Int32 // under way

	// Guarded by job.mu.
	watched  bool
	dialled  bool              // called Connect
	attached bool              // and is connected
	left     bool              // said so
	isGone   bool              // left or lost
	timers   []*time.Timer     // of what it must do in time
	reason   error             // why it was lost
	carries  map[string]*carry // by name
	out      chan struct{}     // closed with isGone
}

func (m *member) String() string {
	if m.rank < 0 {
		return fmt.Sprintf("a worker on %s (pid %d)", m.host, m.pid)
	}
	return fmt.Sprintf("worker %d (%s, pid %d)", m.inJob(), m.host, m.pid)
}

func (j *job) tenant() tenant { return tenant{j.name, j.token} }

// inJob is the worker's rank in the whole job.
func (m *member) inJob() int { return m.first + m.rank }

// inJob is the rank in the whole job of a worker of this rack; -1 for none.
func (j *job) inJob(rank int) int32 {
	if rank < 0 {
		return -1
	}
	return int32(j.members[rank].inJob())
}

func newSession() string {
	var b [16]byte
	rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

// state returns the job's state as Status names it.
func (j *job) state() string {
	select {
	case <-j.started:
	default:
		return "forming"
	}
	select {
	case <-j.failed:
		return "failed"
	default:
	}
	select {
	case <-j.ended:
		return "ended"
	default:
		return "running"
	}
}

func (j *job) firstLeft() *member {
	for _, m := range j.members {
		if m.left {
			return m
		}
	}
	return nil
}

// failureError returns the error of calls on a job that has failed or ended.
func (j *job) failureError() error {
	select {
	case <-j.failed:
		return connect.NewError(connect.CodeAborted, fmt.Errorf("job %q has failed: %w", j.name, j.failure.Err))
	default:
		return connect.NewError(connect.CodeAborted, fmt.Errorf("job %q has ended", j.name))
	}
}

// explain adds to a job's failure what the control plane knows of the worker or rack that caused it. Often the data path sees a
// broken connection first, and the reason arrives a moment later.
func (j *job) explain(f aggregate.Failure) aggregate.Failure {
	if e := new(aggregate.FailedElsewhere); errors.As(f.Err, &e) {
		f.Err = j.whyElsewhere(e)
		return f
	}
	if f.Rank < 0 || !errors.Is(f.Err, aggregate.ErrWorkerLost) {
		return f
	}
	m := j.members[f.Rank]
	select {
	case <-m.out:
	case <-time.After(reasonWait):
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if m.reason != nil && m.reason != errFailed {
		f.Err = m.reason
	}
	return f
}

// hold keeps the job's memory from being freed until release is called.
func (j *job) hold() (release func(), err error) {
	j.memory.RLock()
	if j.freed {
		j.memory.RUnlock()
		return nil, j.failureError()
	}
	return j.memory.RUnlock, nil
}

// begin runs a job that all workers have joined. A panic fails it and no other.
func (j *job) begin(ctx context.Context) (err error) {
	defer func() {
		if p := recover(); p != nil {
			j.s.log.Error("panic in the start of a job", "job", j.name, "panic", p, "stack", string(debug.Stack()))
			err = fmt.Errorf("panic at its start: see the aggregator's log")
		}
		if err != nil {
			j.account.Close()
		}
	}()
	return j.run(ctx)
}

// run starts the job and supervises it.
func (j *job) run(ctx context.Context) (err error) {
	if !j.s.begin() {
		return errShutdown
	}
	defer func() {
		if err != nil {
			j.giveUpRacks(err)
			j.s.jobsRunning.Done()
		}
	}()
	e, lanes, above, err := j.choose(ctx)
	if err != nil {
		return err
	}
	if j.lanes = lanes; j.spec.parts > 0 {
		lanes = chunk.Spread(lanes, j.spec.parts)
	}
	j.plan, err = chunk.NewPlan(chunk.Config{ChunkBytes: j.spec.chunkBytes, Lanes: lanes})
	if err != nil {
		return err
	}
	j.above = above
	c := j.config()
	if c.Outer.Quorum > 0 && above != nil {
		j.meetings = newMeetings(above.Racks)
		c.Met = j.meetings.hear
	}
	if err := j.chargeWorkers(ctx, e.amounts(e.agg.JobNeed(c))); err != nil {
		return err
	}
	j.agg, err = e.agg.NewJob(c)
	if err != nil {
		return err
	}
	if above != nil {
		if err := j.connectRacks(ctx); err != nil {
			return errors.Join(err, j.agg.Close())
		}
	}
	j.engine = e
	j.assignRanks()
	j.s.jobsStarted.Add(1)
	if j.meetings != nil {
		go j.logMeetings(j.meetings, above.Names)
	}
	go j.supervise()
	return nil
}

func (j *job) config() aggregate.JobConfig {
	return aggregate.JobConfig{
		Name: j.name, Workers: j.spec.workers, Mode: j.spec.mode, Rule: j.spec.rule, Hyper: j.spec.hyper, ChunkBytes: j.spec.chunkBytes,
		Policy: j.spec.policy, Outer: j.spec.outer, Weight: j.policy.Weight, Part: j.part(),
		Above: j.above,
	}
}

// assignRanks gives the free ranks to the workers that asked for none, in the order they joined, and sorts members by rank.
func (j *job) assignRanks() {
	j.mu.Lock()
	defer j.mu.Unlock()
	byRank := make([]*member, j.spec.workers)
	for _, m := range j.members {
		if m.rank >= 0 {
			byRank[m.rank] = m
		}
	}
	for _, m := range j.members {
		if m.rank >= 0 {
			continue
		}
		next := m.low
		for byRank[next] != nil {
			next++
		}
		m.rank, byRank[next] = next, m
	}
	j.members = byRank
}

// freeBeyond is the memory of a job after which the process gives back what it does not use.
const freeBeyond = 256 << 20

// supervise waits for the job's end, frees its name, then its memory.
func (j *job) supervise() {
	defer j.s.jobsRunning.Done()
	if k := j.spec.racks; k != nil && k.Members != nil { // the plan may have changed while the job began
		s := k.Members.Standing()
		j.follow(&s)
	}
	select {
	case <-j.agg.Failed():
	case <-j.ended:
	case <-j.s.closing:
		j.agg.Fail(-1, j.s.shutdown())
	}
	if f := j.agg.Failure(); f != nil {
		j.failure = j.explain(*f)
		j.sayWhy()
		j.failure.Err = j.sayKept(j.failure.Err)
		j.s.log.Warn("job failed", "job", j.name, "rank", f.Rank, "err", j.failure.Err)
		if p := new(aggregate.PanicError); errors.As(f.Err, &p) {
			j.s.log.Error("panic in a lane", "job", j.name, "value", fmt.Sprint(p.Value), "stack", string(p.Stack))
		}
		j.s.jobsFailed.Add(1)
		close(j.failed)
	} else {
		j.s.log.Info("job ended", "job", j.name)
	}
	j.s.retire(j)
	select {
	case <-j.ended:
	case <-time.After(endGrace):
	case <-j.s.closing:
		// Watch streams are notified first; the server's end waits for them.
	}
	well := j.agg.Failure() == nil && j.partRacks() == nil
	large := j.account.Used()[quota.Memory] > freeBeyond
	j.memory.Lock()
	j.freed = true
	err := j.close(well)
	j.memory.Unlock()
	if j.meetings != nil {
		close(j.meetings.log) // no lane hears of the job any more
	}
	j.endRacks()
	if err != nil {
		j.s.log.Error("close job", "job", j.name, "err", err)
	}
	j.account.Close() // of what is kept there is another
	j.s.forget(j)
	if large {
		time.AfterFunc(time.Second, debug.FreeOSMemory) // when its last calls have ended
	}
}

// watch marks a member as watched.
func (m *member) watch() error {
	j := m.job
	j.mu.Lock()
	defer j.mu.Unlock()
	if m.isGone {
		return connect.NewError(connect.CodeNotFound, fmt.Errorf("%v has left job %q", m, j.name))
	}
	if m.watched {
		return connect.NewError(connect.CodeAlreadyExists, fmt.Errorf("%v of job %q is watched already", m, j.name))
	}
	m.watched = true
	return nil
}

// lostBy returns why the member was lost; nil: it was not.
func (m *member) lostBy() error {
	m.job.mu.Lock()
	defer m.job.mu.Unlock()
	return m.reason
}

func (m *member) isAttached() bool {
	m.job.mu.Lock()
	defer m.job.mu.Unlock()
	return m.attached
}

// leave ends the membership of a worker that is done.
func (m *member) leave(ctx context.Context) error {
	if !m.depart(nil) {
		return nil
	}
	select {
	case <-m.job.ended:
		m.job.s.retire(m.job) // before the last worker hears that it has left: it may join the next job of this name at once
	default:
	}
	m.job.s.log.Info("worker left", "job", m.job.name, "rank", m.rank)
	return m.job.agg.Detach(ctx, m.rank)
}

// lost ends the membership of a worker that is lost, and fails the job.
func (m *member) lost(why string) {
	reason := fmt.Errorf("%v is gone: %s", m, why)
	if m.depart(reason) {
		m.job.agg.Fail(m.rank, reason)
	}
}

// giveUp is lost for a worker that says itself why it cannot go on. Where the job is spread over several aggregators, it may have
// heard at another who is to blame.
func (m *member) giveUp(why string, blame *int32) {
	j := m.job
	if blame == nil || j.spec.parts == 0 || *blame < -1 || int(*blame) >= j.spec.workers || int(*blame) == m.rank {
		m.lost(why)
		return
	}
	select {
	case <-m.out:
	default:
		j.agg.Fail(int(*blame), fmt.Errorf("%v gave up: %s", m, why))
		m.depart(errFailed)
	}
}

// errFailed is the reason why members of a failed job are gone.
var errFailed = errors.New("the job has failed")

// depart marks a member as gone, and as lost if there is a reason. It reports whether the member was there.
func (m *member) depart(reason error) bool {
	j := m.job
	j.mu.Lock()
	defer j.mu.Unlock()
	if m.isGone {
		return false
	}
	m.isGone, m.left, m.reason = true, reason == nil, reason
	close(m.out)
	for _, t := range m.timers {
		t.Stop()
	}
	if reason == nil {
		j.endGatherings(m)
	}
	if j.gone++; j.gone == len(j.members) {
		close(j.ended)
	}
	return true
}

// failIfDeserted fails a job in which workers wait for the gradient of a worker that has left.
func (j *job) failIfDeserted(ctx context.Context) {
	j.mu.Lock()
	left := make([]bool, len(j.members))
	some := false
	for r, m := range j.members {
		left[r] = m.left
		some = some || m.left
	}
	all := j.gone == len(j.members)
	j.mu.Unlock()
	if !some || all {
		return
	}
	awaited, _, err := j.agg.Awaited(ctx)
	if err != nil {
		return
	}
	for r, n := range awaited {
		if n > 0 && left[r] {
			j.agg.Fail(r, fmt.Errorf("%v has left the job, and others wait for its gradient of %d chunks", j.members[r], n))
			return
		}
	}
}

var (
	errShutdown  = errors.New("the aggregator is shutting down")
	errNoSession = errors.New("no such session: give the one that Join returned in the header " + api.SessionHeader +
		"; it has ended, or the aggregator was restarted, if it was that: join again")
	errNoToken    = errors.New("no token that is known here: give the job's, or the admin's, as Authorization: Bearer TOKEN")
	errBusyMember = errors.New("the worker has as many calls under way as it may: wait for some")
	errNotAdmin   = errors.New("only for the admin: give the admin's token, or call as the aggregator's user over its Unix socket")
)
