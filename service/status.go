package service

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"github.com/rackweave/rackweave/service/api"
	"github.com/rackweave/rackweave/service/quota"
)

// Status implements the schema's Status. A tenant learns of its own job, the admin of all.
func (s *Service) Status(ctx context.Context, _ *api.StatusRequest) (*api.StatusResponse, error) {
	by := callerOf(ctx)
	out := &api.StatusResponse{Version: s.opts.Version, UptimeSeconds: s.uptime().Seconds()}
	s.mu.Lock()
	out.Draining = s.draining
	s.cluster.describeMembers(out)
	for _, p := range s.served {
		out.Engines = append(out.Engines, s.engines[p].status(by.admin))
	}
	jobs := slices.DeleteFunc(s.allJobs(), func(j *job) bool { return !by.owns(j) })
	keeps := slices.DeleteFunc(slices.Collect(maps.Values(s.kept)), func(k *kept) bool { return !by.mayKnow(k) })
	s.mu.Unlock()
	slices.SortFunc(keeps, func(a, b *kept) int { return cmp.Compare(a.job, b.job) })
	for _, j := range jobs {
		out.Jobs = append(out.Jobs, j.status(ctx))
	}
	for _, k := range keeps {
		out.Jobs = append(out.Jobs, k.status())
	}
	return out, nil
}

// allJobs lists forming, running and retired jobs by name and age. The caller holds s.mu.
func (s *Service) allJobs() []*job {
	var jobs []*job
	for _, j := range s.jobs {
		jobs = append(jobs, j)
	}
	for j := range s.retired {
		jobs = append(jobs, j)
	}
	slices.SortFunc(jobs, func(a, b *job) int { return cmp.Or(cmp.Compare(a.name, b.name), a.born.Compare(b.born)) })
	return jobs
}

// owns reports whether a job is the caller's.
func (c *caller) owns(j *job) bool {
	return c.admin || c.member != nil && c.member.job == j || c.token != "" && equal(c.token, j.token)
}

// mayKnow reports whether what is kept is of the caller's job.
func (c *caller) mayKnow(k *kept) bool {
	return c.admin || c.member != nil && c.member.job.name == k.job && equal(c.member.job.token, k.token) ||
		c.token != "" && equal(c.token, k.token)
}

// status returns an engine's part of the status, without what it did for all if that is asked by one tenant. The caller holds s.mu,
// which guards the rates.
func (e *engine) status(all bool) *api.EngineStatus {
	out := &api.EngineStatus{Provider: e.provider, Window: uint32(e.agg.Window())}
	for i, l := range e.agg.Lanes() {
		cfg, c := l.Config(), l.Counters()
		lane := &api.LaneStatus{Device: e.names[i], Nic: uint32(cfg.NIC), Cpu: int32(cfg.CPU), Node: int32(cfg.Node)}
		out.Lanes = append(out.Lanes, lane)
		if !all {
			continue
		}
		lane.ReceivedBytes, lane.SentBytes, lane.Chunks, lane.FoldsOpen = c.RecvBytes, c.SentBytes, c.Chunks, c.FoldsOpen
		lane.ReceivedBytesPerSecond, lane.SentBytesPerSecond = e.rates[i].received, e.rates[i].sent
		lane.Sleeps, lane.Dropped, lane.Failovers = c.Sleeps, c.Dropped, c.Failovers
	}
	if !all {
		return out
	}
	for nic, d := range e.devices {
		all, failedOver := e.agg.Connections(d)
		out.Nics = append(out.Nics,
			&api.NicStatus{Device: d.Attr().Name, Up: e.links.isUp(nic), Connections: uint32(all), FailedOver: uint32(failedOver)})
	}
	return out
}

func (j *job) status(ctx context.Context) *api.JobStatus {
	out := &api.JobStatus{
		Name: j.name, State: j.state(), Mode: j.spec.mode.String(), Policy: j.spec.policy.String(), Optimizer: j.spec.rule.String(),
		Workers: uint32(j.spec.workers), ChunkBytes: uint32(j.spec.chunkBytes), AgeSeconds: time.Since(j.born).Seconds(),
		Part: uint32(j.spec.part), Parts: uint32(j.spec.parts),
	}
	j.mu.Lock()
	out.Tensors, out.ModelBytes = uint64(j.tensors), uint64(j.modelBytes)
	for _, m := range j.members {
		out.Members = append(out.Members,
			&api.WorkerStatus{Rank: uint32(max(m.inJob(), 0)), Host: m.host, Pid: m.pid, Connected: m.attached, Left: m.isGone})
	}
	j.mu.Unlock()
	used := j.account.Used()
	for _, name := range slices.Sorted(maps.Keys(used)) {
		r := &api.Resource{Name: name, Reserved: uint64(used[name]), Limit: uint64(j.account.Limit(name))}
		if name == quota.Memory {
			r.Name, r.Unit = "memory", "bytes"
		}
		out.Resources = append(out.Resources, r)
	}
	if out.State == "forming" || j.agg == nil {
		return out
	}
	out.Provider = j.engine.provider
	if out.State == "failed" {
		out.Failure = &api.Failure{Rank: j.inJob(j.failure.Rank), Text: j.failure.Err.Error()}
	}
	release, err := j.hold()
	if err != nil {
		return out // its memory is gone, and the counters with it
	}
	defer release()
	memory := j.agg.Memory()
	out.ParameterBytes, out.SlotBytes, out.ResultBytes = memory.Parameters, memory.Slots, memory.Results
	j.describeWorkers(out.Members)
	out.Policy = j.agg.Policy().String()
	j.describeRacks(out)
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	if j.buddies() {
		out.WholeStep, _ = j.agg.WholeStep(ctx) // a job that ends has none to tell
	}
	if awaited, since, err := j.agg.Awaited(ctx); err == nil {
		for r, n := range awaited {
			out.Members[r].AwaitedChunks = uint64(n)
		}
		nameAwaited(out.Members, float64(j.agg.Now()-since)/1e9)
	}
	return out
}

// describeWorkers says what workers have sent and for whom they wait.
func (j *job) describeWorkers(members []*api.WorkerStatus) {
	for r, c := range j.agg.WorkerCounters() {
		w := members[r]
		w.ReceivedBytes, w.SentBytes, w.Chunks, w.LastArrivals = c.RecvBytes, c.SentBytes, c.Chunks, c.LastArrivals
		if c.Chunks > 0 {
			w.LatenessSeconds = float64(c.LatenessNS) / float64(c.Chunks) / 1e9
		}
	}
	for r, w := range members {
		if p, ok := j.agg.Pace(r); ok {
			w.Step, w.Held, w.HeldSeconds, w.Staleness = p.Step, p.Waits, float64(p.HeldNS)/1e9, p.MeanTau()
			if p.Waits {
				w.WaitsSeconds = float64(j.agg.Now()-p.Since) / 1e9
				for _, other := range p.For {
					w.WaitsFor = append(w.WaitsFor, uint32(other))
				}
			}
		}
	}
}

// nameAwaited tells the workers that have sent their gradients for whose they wait.
func nameAwaited(members []*api.WorkerStatus, seconds float64) {
	for _, m := range members {
		for _, other := range members {
			if m.AwaitedChunks == 0 && other.AwaitedChunks > 0 {
				m.WaitsFor, m.WaitsSeconds = append(m.WaitsFor, other.Rank), seconds
			}
		}
	}
}
