package job

import (
	"context"
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
	"github.com/rackweave/rackweave/service/quota"
	"github.com/rackweave/rackweave/service/rpc"
)

// Job is one tenant's job, from the first Join to the end of the last worker.
type Job struct {
	Table  *Table
	Name   string
	Token  string
	Policy Policy
	Spec   Spec
	born   time.Time
	peer   netip.Addr // of the first worker

	Account *quota.Account
	formation
	activity
	// started is closed when the job runs or has failed to start; startErr says which. The placement and agg are set before that and
	// never change.
	started  chan struct{}
	startErr error
	Placement
	Agg *aggregate.Job

	live
	Model  model
	memory memory

	Failed  chan struct{} // closed when the job has failed; failure is set before
	failure aggregate.Failure
	Ended   chan struct{} // closed when all members are gone
	Over    chan struct{} // closed when the retainer has closed it

	mu         sync.Mutex
	Members    []*Member // in the order they joined; by rank once started
	gone       int       // members that left or were lost
	gatherings map[string]*gathering
}

// formation holds what a job needs until it has started.
type formation struct {
	refused string // the last worker that was not admitted, and why; guarded by job.mu
	// hopeless ends when the job can no longer begin. despair ends it with the reason.
	hopeless context.Context
	despair  context.CancelCauseFunc
}

// activity tells whether a job uses its place. It is guarded by Table.mu.
type activity struct {
	starting time.Time // when the last worker joined
	moved    uint64    // what workers had moved when the job was last looked at
	movedAt  time.Time // since when that is so
}

// live holds what looks into a running job.
type live struct {
	Tracing   atomic.Bool   // while the job is traced
	Capturing chan struct{} // has one element while a capture waits for its step, and room for no more
	codecs    *codecControl // if nil, codecs stay
}

// model holds the tensors that a job has registered. It is read-locked to use tensors and locked to add to them, save or restore.
type model struct {
	sync.RWMutex
	Plan     *chunk.Plan
	Shapes   [][]uint64             // of its tensors
	Restored atomic.Pointer[uint32] // optimizer steps of the state that was restored last. If nil, none was
	Turn     atomic.Int32           // how far the state's holder has got that has locked the model

	// Guarded by job.mu.
	bytes   int64
	tensors int
}

// memory is read-locked to use a job's memory and locked to free it.
type memory struct {
	sync.RWMutex
	freed bool
}

func (j *Job) Tenant() Tenant { return Tenant{j.Name, j.Token} }

const (
	endGrace   = 5 * time.Second // how long an ended job's memory waits for its workers
	ReasonWait = 250 * time.Millisecond
)

// Buddies reports whether the job's owners have buddies.
func (j *Job) Buddies() bool { return j.Above != nil && j.Above.Buddies }

// inJob converts a rank in this rack to a rank in the job. It returns -1 for -1.
func (j *Job) inJob(rank int) int32 {
	if rank < 0 {
		return -1
	}
	return int32(j.Members[rank].inJob())
}

// State returns the job's state as Status names it.
func (j *Job) State() string {
	switch {
	case !isClosed(j.started):
		return "forming"
	case isClosed(j.Failed):
		return "failed"
	case isClosed(j.Ended):
		return "ended"
	}
	return "running"
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// FailureError returns the error of calls on a job that has failed or ended.
func (j *Job) FailureError() error {
	if isClosed(j.Failed) {
		return rpc.Refuse(connect.CodeAborted, "job %q has failed: %w", j.Name, j.failure.Err)
	}
	return rpc.Refuse(connect.CodeAborted, "job %q has ended", j.Name)
}

// explain adds to a job's failure what the control plane knows of the worker or rack that caused it. Often the data path sees a
// broken connection first, and the reason arrives a moment later.
func (j *Job) explain(f aggregate.Failure) aggregate.Failure {
	if e := new(aggregate.FailedElsewhere); errors.As(f.Err, &e) {
		f.Err = j.Spec.Racks.Explain(e)
		return f
	}
	if f.Rank < 0 || !errors.Is(f.Err, aggregate.ErrWorkerLost) {
		return f
	}
	m := j.Members[f.Rank]
	select {
	case <-m.Out:
	case <-time.After(ReasonWait):
	}
	if m.gone() && m.reason != nil && m.reason != errFailed {
		f.Err = m.reason
	}
	return f
}

// Hold keeps the job's memory from being freed until release is called.
func (j *Job) Hold() (release func(), err error) {
	j.memory.RLock()
	if j.memory.freed {
		j.memory.RUnlock()
		return nil, j.FailureError()
	}
	return j.memory.RUnlock, nil
}

// begin starts a job that all workers have joined, the last by a call that waits for so long, and supervises it. A panic fails it
// and no other.
func (j *Job) begin(call, wait context.Context, last *Member) (err error) {
	if !j.Table.begin() {
		j.Account.Close()
		return ErrShutdown
	}
	defer func() {
		if p := recover(); p != nil {
			j.Table.Log.Error("panic in the start of a job", "job", j.Name, "panic", p, "stack", string(debug.Stack()))
			err = fmt.Errorf("panic at its start: see the aggregator's log")
		}
		if err != nil {
			if j.Agg != nil {
				err = errors.Join(err, j.Agg.Close())
			}
			err = j.blamed(call, last, err)
			j.Spec.Racks.End(err) // their workers learn it, too
			j.Account.Close()
			j.Table.Running.Done()
		}
	}()
	ctx, cancel := context.WithCancelCause(wait)
	defer cancel(nil)
	defer context.AfterFunc(j.hopeless, func() { cancel(context.Cause(j.hopeless)) })()
	if j.Placement, err = j.Spec.Racks.Form(ctx, j); err != nil {
		return err
	}
	e, lanes := j.Engine, j.Lanes
	if j.Spec.Parts > 0 {
		lanes = chunk.Spread(lanes, j.Spec.Parts)
	}
	j.Model.Plan, err = chunk.NewPlan(chunk.Config{ChunkBytes: j.Spec.ChunkBytes, Lanes: lanes})
	if err != nil {
		return err
	}
	c := j.config()
	if err := j.chargeWorkers(ctx, e.Amounts(e.Agg.JobNeed(c))); err != nil {
		return err
	}
	j.Agg, err = e.Agg.NewJob(c)
	if err != nil {
		return err
	}
	if err := j.Spec.Racks.Connect(ctx); err != nil {
		return err
	}
	j.assignRanks()
	startCodecs(j)
	j.Table.Started.Add(1)
	go j.supervise()
	return nil
}

func (j *Job) config() aggregate.JobConfig {
	_, candidates, _ := j.Spec.candidates() // without a controller none
	return aggregate.JobConfig{
		Name: j.Name, Workers: j.Spec.Workers, Mode: j.Spec.Mode, Rule: j.Spec.Rule, Hyper: j.Spec.Hyper, ChunkBytes: j.Spec.ChunkBytes,
		Policy: j.Spec.Policy, Outer: j.Spec.Outer, Compress: j.Spec.Compress, Candidates: candidates,
		Weight: j.Policy.Weight, Place: j.Above,
		Lost: func(rank int, why error) { j.Members[rank].lost(why.Error()) },
		Part: aggregate.Part{Number: j.Spec.Part, Of: j.Spec.Parts, RackWorkers: j.Racks, Pods: j.Pods},
	}
}

// freeBeyond is the memory of a job after which the process gives back what it does not use.
const freeBeyond = 256 << 20

// supervise waits for the job's end, frees its name, then its memory.
func (j *Job) supervise() {
	defer j.Table.Running.Done()
	j.Spec.Racks.Started()
	select {
	case <-j.Agg.Failed():
	case <-j.Ended:
	case <-j.Table.Closing:
		j.Agg.Fail(-1, j.Table.WhyClosing())
	}
	if f := j.Agg.Failure(); f != nil {
		j.failure = j.explain(*f)
		j.Spec.Racks.Publish(j.failure.Err)
		j.failure.Err = j.Table.Retainer.Hint(j, j.failure.Err)
		j.Table.Log.Warn("job failed", "job", j.Name, "rank", f.Rank, "err", j.failure.Err)
		if p := new(aggregate.PanicError); errors.As(f.Err, &p) {
			j.Table.Log.Error("panic in a lane", "job", j.Name, "value", fmt.Sprint(p.Value), "stack", string(p.Stack))
		}
		j.Table.Failed.Add(1)
		close(j.Failed)
	} else {
		j.Table.Log.Info("job ended", "job", j.Name)
	}
	j.Table.retire(j)
	select {
	case <-j.Ended:
	case <-time.After(endGrace):
	case <-j.Table.Closing:
		// Watch streams are notified first; the server's end waits for them.
	}
	well := j.Agg.Failure() == nil && j.Spec.Racks.Finish() == nil
	large := j.Account.Used()[quota.Memory] > freeBeyond
	j.memory.Lock()
	j.memory.freed = true
	err := j.Table.Retainer.Close(j, well)
	j.memory.Unlock()
	close(j.Over)
	j.Spec.Racks.End(nil)
	if err != nil {
		j.Table.Log.Error("close job", "job", j.Name, "err", err)
	}
	j.Account.Close() // of what is kept there is another
	j.Table.forget(j)
	if large {
		time.AfterFunc(time.Second, debug.FreeOSMemory) // when its last calls have ended
	}
}

// failIfDeserted fails a job in which workers wait for the gradient of a worker that has left.
func (j *Job) failIfDeserted(ctx context.Context) {
	j.mu.Lock()
	left := make([]bool, len(j.Members))
	some := false
	for r, m := range j.Members {
		left[r] = m.left() || m.spared
		some = some || left[r]
	}
	all := j.gone == len(j.Members)
	j.mu.Unlock()
	if !some || all {
		return
	}
	awaited, _, err := j.Agg.Awaited(ctx)
	if err != nil {
		return
	}
	for r, n := range awaited {
		if n > 0 && left[r] {
			j.Agg.Fail(r, fmt.Errorf("%v has left the job, and others wait for its gradients", j.Members[r]))
			return
		}
	}
}

// codeOf returns the code of a call that waited until its context ended.
func codeOf(cause error) connect.Code {
	if errors.Is(cause, context.Canceled) {
		return connect.CodeCanceled
	}
	return connect.CodeDeadlineExceeded
}

// Tenant identifies the owner of a job's runs: its name and its token.
type Tenant struct{ Job, Token string }
