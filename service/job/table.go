package job

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rackweave/rackweave/service/api"
	"github.com/rackweave/rackweave/service/engine"
	"github.com/rackweave/rackweave/service/quota"
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

// Observed reports whether a job that forms or runs is the caller's.
func (t *Table) Observed(by *Caller) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, j := range t.jobs {
		if by.Owns(j) {
			return true
		}
	}
	return false
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
