package job

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"

	"github.com/rackweave/rackweave/numa"
	"github.com/rackweave/rackweave/service/api"
	"github.com/rackweave/rackweave/service/engine"
	"github.com/rackweave/rackweave/service/quota"
	"github.com/rackweave/rackweave/service/rpc"
)

// Placer is the cluster of an aggregator, which places workers.
type Placer interface {
	// Redirect returns the aggregators that a worker must join instead, or nil. It calls may before it tells of them.
	Redirect(r *api.JoinRequest, may func() error) (*api.JoinResponse, error)
	// Place gives a worker its place in its job, and the job its racks.
	Place(sp *Spec, m *Member, r *api.JoinRequest) error
}

// retainer keeps the state of failed jobs for their next runs.
type retainer interface {
	// Close closes a job's aggregation, and keeps the state unless the job has ended well in all racks.
	Close(j *Job, well bool) error
	// Hint adds to a failure how the job can go on.
	Hint(j *Job, err error) error
	// Used returns what is charged for the states of other tenants.
	Used(but Tenant) quota.Amounts
	// DropOldest drops the oldest state of another tenant, and reports whether there was any.
	DropOldest(but Tenant) bool
}

// Config configures a table.
type Config struct {
	Log        *slog.Logger
	Engines    *engine.Set
	Refused    func(reason string) // counts a refusal
	Dismiss    func(member any)    // closes the connections of a member that is gone
	Placer     Placer
	Retainer   retainer
	Policy     func(job string, by *Caller) (Policy, error)
	Closing    <-chan struct{} // closed when the service ends
	WhyClosing func() error
	MaxJobs    int
	MaxWorkers int
	Quiet      time.Duration // A job that moves nothing for longer gives way. If 0, a minute.
}

// Table is the jobs of an aggregator.
type Table struct {
	Config
	Ledger  *quota.Ledger
	Running sync.WaitGroup
	Started atomic.Uint64
	Failed  atomic.Uint64

	mu       sync.Mutex
	jobs     map[string]*Job // forming and running
	retired  map[*Job]bool   // failed or ended, with memory to free
	sessions map[string]*Member
	members  int // of jobs and retired
	draining bool
	closed   bool
}

// ErrShutdown is the error of calls on an aggregator that ends.
var ErrShutdown = errors.New("the aggregator is shutting down")

func NewTable(c Config) *Table {
	t := &Table{Config: c, Ledger: openLedger(), jobs: map[string]*Job{}, retired: map[*Job]bool{}, sessions: map[string]*Member{}}
	t.Ledger.Add(c.Engines.Has())
	return t
}

// Find returns the job of a name that forms or runs, or nil.
func (t *Table) Find(name string) *Job {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.jobs[name]
}

// Session returns the member that has a session, or nil.
func (t *Table) Session(id string) *Member {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.sessions[id]
}

// Drain refuses new jobs. It returns the number of present jobs and whether it was draining already.
func (t *Table) Drain() (jobs int, already bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	already, t.draining = t.draining, true
	return len(t.jobs), already
}

// State returns the number of jobs that form or run, and whether new ones are refused.
func (t *Table) State() (jobs int, draining bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.jobs), t.draining
}

// TurnsAway reports whether the aggregator is draining and does not have the job.
func (t *Table) TurnsAway(job string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.draining && t.jobs[job] == nil
}

// Close refuses to begin jobs from now on.
func (t *Table) Close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.draining, t.closed = true, true
}

// Ending returns the retired runs of a job's name whose memory is not free yet.
func (t *Table) Ending(j *Job) (all []*Job) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for other := range t.retired {
		if other.Name == j.Name && other != j && other.Agg != nil {
			all = append(all, other)
		}
	}
	return all
}

// Tend records what jobs have moved, and fails jobs in which workers wait for one that has left.
func (t *Table) Tend(ctx context.Context, now time.Time) {
	for _, j := range t.RunningJobs() {
		j.look(now)
		j.failIfDeserted(ctx)
	}
}

// begin counts a job as running. It returns false if the service is closing.
func (t *Table) begin() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return false
	}
	t.Running.Add(1)
	return true
}

// retire frees a job's name and keeps its memory.
func (t *Table) retire(j *Job) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.jobs[j.Name] == j {
		delete(t.jobs, j.Name)
		t.retired[j] = true
	}
}

// forget drops all that is left of a job.
func (t *Table) forget(j *Job) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.retired, j)
	t.members -= len(j.Members)
	for _, m := range j.Members {
		delete(t.sessions, m.Session)
		t.Dismiss(m)
	}
}

// RunningJobs lists the jobs that run.
func (t *Table) RunningJobs() []*Job {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.DeleteFunc(slices.Collect(maps.Values(t.jobs)), func(j *Job) bool { return j.State() != "running" || j.Agg == nil })
}

// AllJobs lists forming, running and retired jobs by name and age.
func (t *Table) AllJobs() []*Job {
	t.mu.Lock()
	defer t.mu.Unlock()
	jobs := slices.AppendSeq(slices.Collect(maps.Values(t.jobs)), maps.Keys(t.retired))
	slices.SortFunc(jobs, func(a, b *Job) int { return cmp.Or(cmp.Compare(a.Name, b.Name), a.born.Compare(b.born)) })
	return jobs
}

const (
	// A job whose workers are not all connected gives its place away when it has had it for this long and another needs it; sooner if
	// its peer has more than half of all places.
	placeHeld      = 5 * time.Second
	placeHeldMost  = time.Second
	placeAgain     = 50 * time.Millisecond // until a job that begins asks again for a place, or for what is free soon
	retiredPerJobs = 4
	// Jobs that still form have no place, but each of their workers waits in a call.
	formingPerPlace = 4
)

// openLedger opens the machine's account: the memory that is available now, less what the process needs for itself.
func openLedger() *quota.Ledger {
	available := numa.AvailableMemory()
	return quota.New(quota.Amounts{quota.Memory: available - available/16})
}

// Charge charges the job, or returns a refusal. What is kept of other jobs makes room, if that is enough.
func (j *Job) Charge(what string, x quota.Amounts) error {
	err := j.Account.Charge(x)
	for err != nil && j.Account.Could(x, j.Table.Retainer.Used(j.Tenant())) && j.Table.Retainer.DropOldest(j.Tenant()) {
		err = j.Account.Charge(x)
	}
	if err != nil {
		j.Table.Refused("quota")
		return rpc.Refuse(connect.CodeResourceExhausted, "%s of job %q: %w", what, j.Name, err)
	}
	return nil
}

// ChargeCall charges the job for memory that a call takes, until the call's answer is written.
func (j *Job) ChargeCall(ctx context.Context, what string, bytes int64) error {
	x := quota.Amounts{quota.Memory: bytes}
	if err := j.Account.Charge(x); err != nil { // for a moment's memory no other job's state is given up
		j.Table.Refused("quota")
		return rpc.Refuse(connect.CodeResourceExhausted, "%s of job %q: %w", what, j.Name, err)
	}
	CallerOf(ctx).Owe(func() { j.Account.Return(x) })
	return nil
}

// takePlace gives a job that is about to start a place among the running jobs. Where all are taken, an idle one makes room. The
// caller holds t.mu.
func (t *Table) takePlace() error {
	running := len(t.jobs) - len(t.forming())
	if running < t.MaxJobs && running+len(t.retired) < retiredPerJobs*t.MaxJobs {
		return nil
	}
	t.Refused("jobs")
	t.endIdle(true)
	return &noPlace{rpc.Refuse(connect.CodeResourceExhausted, "the aggregator serves %d jobs, all it may: let one end, close unused sessions, or serve with a "+
		"larger --max-jobs", running)}
}

// takeWorker lets one more worker of a job in. Where all places are taken, the oldest job that still forms, of the peer with the
// most waiting workers, gives way to another; if none forms, an idle one does. The caller holds t.mu.
func (t *Table) takeWorker(j *Job) error {
	if t.members < t.MaxWorkers {
		return nil
	}
	t.Refused("workers")
	if out := t.oldestForming(func(j *Job) int { return len(j.Members) }); out == nil {
		t.endIdle(true)
	} else if out != j {
		t.endUnformed(out, "too many workers wait for others")
		return nil
	}
	return &noPlace{rpc.Refuse(connect.CodeResourceExhausted, "the aggregator serves %d workers, all it may: let a job end, or join another",
		t.members)}
}

// endIdle ends a job that has been idle for longer than it may: of the peer with the most jobs that run, the one that has been so
// for longest. It waits for one that ends already. The caller holds t.mu.
func (t *Table) endIdle(withQuiet bool) {
	of := map[netip.Addr]int{}
	for _, j := range t.jobs {
		if !j.isForming() {
			of[j.peer]++
		}
	}
	var out *Job
	var most time.Time
	var why string
	for _, j := range t.jobs {
		if j.isForming() {
			continue
		}
		if j.leaving() {
			return
		}
		since, within, is := j.idle(of[j.peer], withQuiet)
		if since.IsZero() || time.Since(since) <= within {
			continue
		}
		if out == nil || cmp.Or(cmp.Compare(of[j.peer], of[out.peer]), most.Compare(since)) > 0 {
			out, most, why = j, since, is
		}
	}
	if out != nil {
		out.end(errors.New(why + ", and another job needs its place"))
	}
}

// idle returns since when a job has had a place without using it, for how long it may, and what it has not done. If the time is
// zero, the job is busy. A job is idle whose workers have not all connected; with withQuiet also one that waits for its racks, or
// whose workers move no gradients. ofPeer is the number of its peer's jobs. The caller holds t.mu.
func (j *Job) idle(ofPeer int, withQuiet bool) (since time.Time, within time.Duration, why string) {
	within = cmp.Or(j.Table.Quiet, time.Minute)
	switch {
	case j.idles() && ofPeer > j.Table.MaxJobs/2:
		return j.starting, placeHeldMost, "its workers did not connect in time"
	case j.idles():
		return j.starting, placeHeld, "its workers did not connect in time"
	case !withQuiet:
		return since, within, ""
	case j.State() == "forming":
		return j.starting, within, fmt.Sprintf("it did not begin within %v", within)
	}
	return j.movedAt, within, fmt.Sprintf("it has moved nothing for %v", within)
}

// end ends a job: it does not begin, or it fails. The caller holds t.mu.
func (j *Job) end(why error) {
	switch {
	case j.isForming():
		j.startErr = why
		j.Table.settle(j)
	case !isClosed(j.started):
		j.despair(why)
	default:
		j.Agg.Fail(-1, why)
	}
}

// leaving reports whether a job that has a place is about to leave it. The caller holds t.mu.
func (j *Job) leaving() bool {
	if j.State() == "forming" {
		return j.hopeless.Err() != nil
	}
	return j.State() != "running" || j.Agg.Failure() != nil
}

// look records whether a job that runs has moved anything since the last call.
func (j *Job) look(now time.Time) {
	moved := uint64(0)
	for _, c := range j.Agg.WorkerCounters() {
		moved += c.RecvBytes + c.SentBytes
	}
	j.Table.mu.Lock()
	defer j.Table.mu.Unlock()
	if moved != j.moved || j.movedAt.IsZero() {
		j.moved, j.movedAt = moved, now
	}
}

// idles reports whether a job runs whose workers have not all connected. The caller holds t.mu.
func (j *Job) idles() bool { return !j.isForming() && j.State() == "running" && !j.connected() }

// chargeWorkers charges a job that begins for its workers. What ended jobs still hold, and jobs whose workers do not connect, is
// free soon: where that will be enough, chargeWorkers waits.
func (j *Job) chargeWorkers(ctx context.Context, x quota.Amounts) error {
	for ctx.Err() == nil && !j.Account.Could(x, j.Table.Retainer.Used(j.Tenant())) && j.Account.Could(x, j.Table.freeSoon(true)) {
		if !j.Account.Could(x, j.Table.freeSoon(false)) {
			j.Table.mu.Lock()
			j.Table.endIdle(false)
			j.Table.mu.Unlock()
		}
		select {
		case <-ctx.Done():
		case <-time.After(placeAgain):
		}
	}
	return j.Charge("workers", x)
}

// freeSoon returns what ended jobs still hold. With idle it adds the jobs whose workers have not all connected.
func (t *Table) freeSoon(idle bool) quota.Amounts {
	t.mu.Lock()
	defer t.mu.Unlock()
	sum := quota.Amounts{}
	for j := range t.retired {
		sum.Add(j.Account.Used())
	}
	for _, j := range t.jobs {
		if j.idles() && idle || !j.isForming() && j.State() != "forming" && j.Agg.Failure() != nil {
			sum.Add(j.Account.Used())
		}
	}
	return sum
}

// noPlace is a refusal that may be none in a moment.
type noPlace struct{ error }

func (n *noPlace) Unwrap() error { return n.error }

// connected reports whether all of a job's workers are connected.
func (j *Job) connected() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, m := range j.Members {
		if !m.attached {
			return false
		}
	}
	return len(j.Members) == j.Spec.Workers
}

// makeRoom lets the oldest job that still forms, of the peer with the most of them, give way where too many do. The caller holds
// t.mu.
func (t *Table) makeRoom() {
	if len(t.forming()) >= formingPerPlace*t.MaxJobs {
		t.endUnformed(t.oldestForming(func(*Job) int { return 1 }), "too many jobs wait for their workers")
	}
}

// oldestForming returns the oldest job that still forms of the peer whose jobs weigh most, or nil if none forms. The caller holds
// t.mu.
func (t *Table) oldestForming(weight func(*Job) int) (out *Job) {
	forming, of := t.forming(), map[netip.Addr]int{}
	for _, j := range forming {
		of[j.peer] += weight(j)
	}
	for _, j := range forming {
		if out == nil || cmp.Or(cmp.Compare(of[j.peer], of[out.peer]), out.born.Compare(j.born)) > 0 {
			out = j
		}
	}
	return out
}

// endUnformed ends a job that still forms, because there are too many. The caller holds t.mu.
func (t *Table) endUnformed(j *Job, tooMany string) {
	t.Refused("forming")
	j.end(rpc.Refuse(connect.CodeResourceExhausted, "%s, and this job's for the longest", tooMany))
}

// forming lists the jobs that wait for workers. The caller holds t.mu.
func (t *Table) forming() []*Job {
	return slices.DeleteFunc(slices.Collect(maps.Values(t.jobs)), func(j *Job) bool { return !j.isForming() })
}

// isForming reports whether a job waits for workers. The caller holds t.mu.
func (j *Job) isForming() bool {
	return j.starting.IsZero() && !isClosed(j.started)
}

// settle ends a job's forming: it runs or has failed. The caller holds t.mu.
func (t *Table) settle(j *Job) {
	if j.startErr != nil {
		t.Log.Warn("job could not start", "job", j.Name, "err", j.startErr)
		delete(t.jobs, j.Name)
		t.members -= len(j.Members)
		for _, m := range j.Members {
			t.Dismiss(m)
		}
	} else {
		t.Log.Info("job started", "job", j.Name, "workers", j.Spec.Workers, "mode", j.Spec.Mode.String(), "optimizer",
			j.Spec.Rule.String(), "provider", j.Engine.Provider)
		for _, m := range j.Members {
			t.sessions[m.Session] = m
		}
	}
	close(j.started)
}
