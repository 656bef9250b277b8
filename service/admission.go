package service

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"connectrpc.com/connect"

	"github.com/rackweave/rackweave/aggregate"
	"github.com/rackweave/rackweave/numa"
	"github.com/rackweave/rackweave/service/quota"
)

const (
	connectWithin = 15 * time.Second // from Join to Connect
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

// resources are the names of what a provider has a number of.
func (e *engine) resources() (connections, regions string) {
	return "connections of " + e.provider, "regions of " + e.provider
}

// has is what a provider adds to the machine.
func (e *engine) has() quota.Amounts {
	connections, regions := e.resources()
	return quota.Amounts{connections: int64(e.agg.MaxConns()), regions: int64(e.devices[0].Attr().MaxMR)}
}

func (e *engine) amounts(n aggregate.Need) quota.Amounts {
	connections, regions := e.resources()
	return quota.Amounts{quota.Memory: n.Bytes, connections: int64(n.Connections), regions: int64(n.Regions)}
}

// charge charges the job, or returns a refusal. What is kept of other jobs makes room, if that is enough.
func (j *job) charge(what string, x quota.Amounts) error {
	err := j.account.Charge(x)
	for err != nil && j.account.Could(x, j.s.keptOfOthers(j.tenant())) && j.s.dropOldest(j.tenant()) {
		err = j.account.Charge(x)
	}
	if err != nil {
		j.s.refusals.count("quota")
		return refuse(connect.CodeResourceExhausted, "%s of job %q: %w", what, j.name, err)
	}
	return nil
}

// chargeCall charges the job for memory that a call takes, until the call's answer is written.
func (j *job) chargeCall(ctx context.Context, what string, bytes int64) error {
	x := quota.Amounts{quota.Memory: bytes}
	if err := j.account.Charge(x); err != nil { // for a moment's memory no other job's state is given up
		j.s.refusals.count("quota")
		return refuse(connect.CodeResourceExhausted, "%s of job %q: %w", what, j.name, err)
	}
	c := callerOf(ctx)
	c.owed = append(c.owed, func() { j.account.Return(x) })
	return nil
}

// takePlace gives a job that is about to start a place among those that run. Where all are taken, the oldest job whose workers have
// not connected in time makes room. The caller holds s.mu.
func (s *Service) takePlace() error {
	running := 0
	for _, j := range s.jobs {
		if !j.forming() {
			running++
		}
	}
	if running < s.opts.MaxJobs && running+len(s.retired) < retiredPerJobs*s.opts.MaxJobs {
		return nil
	}
	s.refusals.count("jobs")
	s.endOverdue()
	return &noPlace{refuse(connect.CodeResourceExhausted, "the aggregator serves %d jobs, all it may: let one end, close sessions that are no longer needed, or serve with a "+
		"larger --max-jobs", running)}
}

// endOverdue fails the job that has had its place for longest of those whose workers have not connected in time. The caller holds
// s.mu.
func (s *Service) endOverdue() {
	of := map[netip.Addr]int{}
	for _, j := range s.jobs {
		if !j.forming() {
			of[j.peer]++
		}
	}
	var idle *job
	for _, j := range s.jobs {
		held := placeHeld
		if of[j.peer] > s.opts.MaxJobs/2 {
			held = placeHeldMost
		}
		if j.idles() && time.Since(j.starting) > held && (idle == nil || j.starting.Before(idle.starting)) {
			idle = j
		}
	}
	if idle != nil {
		idle.agg.Fail(-1, errors.New("its workers did not connect in time, and another job needs its place"))
	}
}

// idles reports whether a job runs whose workers have not all connected. The caller holds s.mu.
func (j *job) idles() bool { return !j.forming() && j.state() == "running" && !j.connected() }

// chargeWorkers charges a job that begins for its workers. What ended jobs still hold, and jobs whose workers do not connect, is
// free soon: where that will be enough, chargeWorkers waits.
func (j *job) chargeWorkers(ctx context.Context, x quota.Amounts) error {
	for ctx.Err() == nil && !j.account.Could(x, j.s.keptOfOthers(j.tenant())) && j.account.Could(x, j.s.freeSoon(true)) {
		if !j.account.Could(x, j.s.freeSoon(false)) {
			j.s.mu.Lock()
			j.s.endOverdue()
			j.s.mu.Unlock()
		}
		select {
		case <-ctx.Done():
		case <-time.After(placeAgain):
		}
	}
	return j.charge("workers", x)
}

// freeSoon is what ended jobs still hold, and, with those that are idle, jobs whose workers have not all connected.
func (s *Service) freeSoon(idle bool) quota.Amounts {
	s.mu.Lock()
	defer s.mu.Unlock()
	sum := quota.Amounts{}
	add := func(j *job) {
		for what, n := range j.account.Used() {
			sum[what] += n
		}
	}
	for j := range s.retired {
		add(j)
	}
	for _, j := range s.jobs {
		if j.idles() && idle || !j.forming() && j.state() != "forming" && j.agg.Failure() != nil {
			add(j)
		}
	}
	return sum
}

// noPlace is a refusal that may be none in a moment.
type noPlace struct{ error }

func (n *noPlace) Unwrap() error { return n.error }

// connected reports whether all of a job's workers are connected.
func (j *job) connected() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, m := range j.members {
		if !m.attached {
			return false
		}
	}
	return len(j.members) == j.spec.workers
}

// makeRoom lets the oldest job that still forms, of the peer with the most of them, give way where too many do. The caller holds
// s.mu.
func (s *Service) makeRoom() {
	count := map[netip.Addr]int{}
	n, most := 0, 0
	for _, j := range s.jobs {
		if j.forming() {
			n++
			count[j.peer]++
			most = max(most, count[j.peer])
		}
	}
	if n < formingPerPlace*s.opts.MaxJobs {
		return
	}
	var out *job
	for _, j := range s.jobs {
		if j.forming() && count[j.peer] == most && (out == nil || j.born.Before(out.born)) {
			out = j
		}
	}
	s.refusals.count("forming")
	out.startErr = refuse(connect.CodeResourceExhausted, "too many jobs wait for their workers, and this one for the longest")
	s.settle(out)
}

// forming reports whether a job waits for workers. The caller holds s.mu.
func (j *job) forming() bool {
	select {
	case <-j.started:
		return false
	default:
		return j.starting.IsZero()
	}
}

// unconnected ends the membership of a worker that has joined and not connected.
func (m *member) unconnected() {
	m.job.mu.Lock()
	connected := m.attached
	m.job.mu.Unlock()
	if !connected {
		m.lost(fmt.Sprintf("it did not connect within %v of joining", connectWithin))
	}
}
