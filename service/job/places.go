package job

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"connectrpc.com/connect"

	"github.com/rackweave/rackweave/service/rpc"
)

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
