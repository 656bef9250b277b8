package job

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/rackweave/rackweave/aggregate"
	"github.com/rackweave/rackweave/codec"
	"github.com/rackweave/rackweave/service/api"
	"github.com/rackweave/rackweave/service/quota"
)

// ChargeStatus charges the job for its status, unless the admin asks: each worker may wait for all others. A job that has ended has
// no account.
func (j *Job) ChargeStatus(ctx context.Context, by *Caller) error {
	if by.Admin {
		return nil
	}
	n := int64(j.Spec.Workers)
	if err := j.ChargeCall(ctx, "status", 4<<10+n*(512+4*n)); !errors.Is(err, quota.ErrOver) {
		return err
	}
	return nil
}

// Status describes the job.
func (j *Job) Status(ctx context.Context) *api.JobStatus {
	out := &api.JobStatus{
		Name: j.Name, State: j.State(), Mode: j.Spec.Mode.String(), Policy: j.Spec.Policy.String(), Optimizer: j.Spec.Rule.String(),
		Workers: uint32(j.Spec.Workers), ChunkBytes: uint32(j.Spec.ChunkBytes), AgeSeconds: time.Since(j.born).Seconds(),
		Part: uint32(j.Spec.Part), Parts: uint32(j.Spec.Parts), Compress: j.Spec.Compress.String(),
	}
	j.mu.Lock()
	out.Tensors, out.ModelBytes = uint64(j.Model.tensors), uint64(j.Model.bytes)
	for _, m := range j.Members {
		out.Members = append(out.Members,
			&api.WorkerStatus{Rank: uint32(max(m.inJob(), 0)), Host: m.Host, Pid: m.pid, Connected: m.attached, Left: m.gone()})
	}
	j.mu.Unlock()
	used := j.Account.Used()
	for _, name := range slices.Sorted(maps.Keys(used)) {
		r := &api.Resource{Name: name, Reserved: uint64(used[name]), Limit: uint64(j.Account.Limit(name))}
		if name == quota.Memory {
			r.Name, r.Unit = "memory", "bytes"
		}
		out.Resources = append(out.Resources, r)
	}
	if out.State == "forming" || j.Agg == nil {
		return out
	}
	out.Provider = j.Engine.Provider
	if out.State == "failed" {
		out.Failure = &api.Failure{Rank: j.inJob(j.failure.Rank), Text: j.failure.Err.Error()}
	}
	release, err := j.Hold()
	if err != nil {
		return out // its memory is gone, and the counters with it
	}
	defer release()
	memory := j.Agg.Memory()
	out.ParameterBytes, out.SlotBytes, out.ResultBytes = memory.Parameters, memory.Slots, memory.Results
	describeWorkers(j, out.Members)
	if j.codecs != nil {
		j.codecs.describe(out)
	}
	out.Policy = j.Spec.Policy.String()
	if g := j.Agg.Gate; g != nil {
		out.Policy = g.Spec().String()
		if next, at, ok := g.Next(); ok {
			out.NextPolicy, out.NextPolicyStep = next.String(), at
		}
	}
	j.Spec.Racks.Describe(out)
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	if j.Buddies() {
		out.WholeStep, _ = j.Agg.WholeStep(ctx) // a job that ends has none to tell
	}
	if d, ok, err := j.Agg.Drift(ctx); ok && err == nil {
		out.Drift = &api.Drift{
			Drift: d.Share, Threshold: j.Spec.Outer.Drift, LeastInterval: d.Least, MostInterval: d.Most, MeanInterval: d.Mean,
		}
	}
	if rows, err := j.Agg.Rows(ctx); err == nil {
		out.Sparse = sparse(rows, j.Spec.Workers)
	}
	if awaited, since, err := j.Agg.Awaited(ctx); err == nil {
		for r, n := range awaited {
			out.Members[r].AwaitedChunks = uint64(n)
		}
		nameAwaited(out.Members, float64(j.Agg.Now()-since)/1e9)
	}
	return out
}

// describeWorkers adds the counts of what workers have sent, and for whom they wait.
func describeWorkers(j *Job, members []*api.WorkerStatus) {
	for r, c := range j.Agg.WorkerCounters() {
		w := members[r]
		w.ReceivedBytes, w.SentBytes, w.Chunks, w.LastArrivals = c.RecvBytes, c.SentBytes, c.Chunks, c.LastArrivals
		if c.Chunks > 0 {
			w.LatenessSeconds = float64(c.LatenessNS) / float64(c.Chunks) / 1e9
		}
		if j.Spec.Compress != (codec.Pair{}) {
			w.Gradients, w.Answers = coding(&c.Up), coding(&c.Down)
		}
	}
	if j.Agg.Gate == nil {
		return
	}
	for r, w := range members {
		p := j.Agg.Gate.Look(r)
		w.Step, w.Held, w.HeldSeconds, w.Staleness = p.Step, p.Waits, float64(p.HeldNS)/1e9, p.MeanTau()
		if p.Waits {
			w.WaitsSeconds = float64(j.Agg.Now()-p.Since) / 1e9
			for _, other := range p.For {
				w.WaitsFor = append(w.WaitsFor, uint32(other))
			}
		}
	}
}

func coding(n *aggregate.Coding) *api.Coding {
	return &api.Coding{Payloads: n.Chunks, RawPayloads: n.Whole, Bytes: n.Sent, RawBytes: n.Raw, Energy: n.Energy, Lost: n.Lost}
}

func sparse(rows []*aggregate.RowStatus, workers int) (out []*api.SparseStatus) {
	for _, r := range rows {
		s := &api.SparseStatus{
			Name: r.Name, Rows: r.Rows, Width: r.Width, Steps: r.Steps, ListedRows: r.Listed, ListedBytes: r.Bytes,
			DenseBytes: r.DenseBytes(workers), MergedRows: r.Merged,
		}
		for _, c := range r.Hottest {
			s.Hottest = append(s.Hottest, &api.HotChunk{FirstRow: c.First, Rows: c.Rows, MergedRows: c.Merged})
		}
		out = append(out, s)
	}
	return out
}

// nameAwaited names, for each worker that has sent its gradients, the workers for which it waits.
func nameAwaited(members []*api.WorkerStatus, seconds float64) {
	for _, m := range members {
		for _, other := range members {
			if m.AwaitedChunks == 0 && other.AwaitedChunks > 0 {
				m.WaitsFor, m.WaitsSeconds = append(m.WaitsFor, other.Rank), seconds
			}
		}
	}
}

// Size returns how many members and tensors the job has, and the bytes of its parameters in f32.
func (j *Job) Size() (members, tensors int, bytes int64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return len(j.Members), j.Model.tensors, j.Model.bytes
}
