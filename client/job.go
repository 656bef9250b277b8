package client

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/rackweave/rackweave/client/membership"
	"github.com/rackweave/rackweave/service/api"
)

// job is the control plane's part of a worker: what the job has agreed on, and calls that concern the job as a whole.
type job struct {
	cfg    Config
	member *membership.Membership
	info   *api.JoinResponse // of the first aggregator
	sets   sets
}

// Err returns the worker's failure, or nil while it has none.
func (j *job) Err() error { return j.member.Err() }

// Failed returns a channel that is closed when the worker has failed.
func (j *job) Failed() <-chan struct{} { return j.member.Failed() }

// Rank returns this worker's number in the job, from 0.
func (j *job) Rank() int { return int(j.info.Rank) }

// Workers returns how many workers the job has.
func (j *job) Workers() int { return int(j.info.Workers) }

// Provider returns the name of what carries the job's data: shm, tcp or ibv.
func (j *job) Provider() string { return j.info.Provider }

// Racks returns how many of the job's workers are in each rack, in the order in which the racks' sums are added, and how many pods
// the racks form, whose sums come first. A job with one aggregator has no racks.
func (j *job) Racks() (workers []int, pods int) {
	for _, n := range j.info.RackWorkers {
		workers = append(workers, int(n))
	}
	return workers, max(int(j.info.Pods), 1)
}

// Lanes returns how many cores of the aggregator, or of all that it is spread over, serve the job.
func (j *job) Lanes() int { return len(j.info.Lanes) * len(j.member.All) }

// Aggregators returns how many aggregators the job is spread over: one, if it is not.
func (j *job) Aggregators() int { return len(j.member.All) }

// Outer returns how the job's racks that train independently synchronize, in the form of [Config], or none if they add their
// gradients.
func (j *job) Outer() string { return cmp.Or(j.info.Outer, "none") }

// Core returns how sums cross between racks: f32, bf16, or codecs in the form of [Config].
func (j *job) Core() string { return cmp.Or(j.info.Core, "f32") }

// Compress returns the codecs of the job's gradients and answers, in the form of [Config], or none.
func (j *job) Compress() string { return cmp.Or(j.info.Compress, "none") }

// Stream reports whether the job is in mode stream, in which every worker ends its own steps.
func (j *job) Stream() bool { return j.info.Mode == "stream" }

// Hyper returns the hyper-parameters that the job was created with.
func (j *job) Hyper() Hyper { return hyperOf(j.info.Record) }

// Barrier waits until all workers have called it with the same name. The error at the deadline names the workers that are missing.
// Before, it reports the batches of rows that are done, so that a checkpoint after it knows of them.
func (j *job) Barrier(ctx context.Context, name string) error {
	_, err := j.barrier(ctx, name)
	return err
}

func (j *job) barrier(ctx context.Context, name string) (*api.BarrierResponse, error) {
	for _, r := range j.sets.all() {
		if err := r.Flush(ctx); err != nil {
			return nil, err
		}
	}
	call, cancel, ms := membership.Bound(ctx, j.cfg.Timeout)
	defer cancel()
	r, err := j.member.All[0].RPC.Barrier(call, &api.BarrierRequest{Name: name, TimeoutMs: ms})
	if err != nil {
		return nil, j.member.Explain("barrier", err)
	}
	return r, nil
}

// SetPolicy is [SetPolicy] for the worker's job.
func (j *job) SetPolicy(ctx context.Context, policy string) (was string, err error) {
	return SetPolicy(ctx, j.cfg, policy)
}

// ReportLoss reports the validation loss after an epoch to the policy of the worker's job: strategy-switch may decide by it. One
// worker reports each epoch's.
func (j *job) ReportLoss(ctx context.Context, loss float64) error {
	call, cancel, _ := membership.Bound(ctx, j.cfg.Timeout)
	defer cancel()
	_, err := j.member.All[0].RPC.ReportLoss(call, &api.ReportLossRequest{Loss: loss})
	return j.member.Explain("report loss", err)
}

// whoIsAwaited asks the aggregator which workers it waits for, for the text of a timeout.
func (j *job) whoIsAwaited() string {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	late := make([]string, len(j.member.All))
	_ = j.member.Each(func(a *membership.Aggregator) error {
		who := "the aggregator"
		if j.member.Several() {
			who += " at " + a.Server
		}
		status, err := a.RPC.Status(ctx, &api.StatusRequest{})
		if err != nil {
			late[a.Number] = fmt.Sprintf("; %s does not answer either", who)
		} else if of := j.late(status); len(of) > 0 {
			late[a.Number] = fmt.Sprintf("; %s waits for %s", who, strings.Join(of, ", "))
		}
		return nil
	})
	return strings.Join(late, "")
}

// late returns the names of the workers that the job waits for, by an aggregator's status, or of the racks if it has the
// gradients of its own workers.
func (j *job) late(status *api.StatusResponse) (late []string) {
	for _, s := range slices.Backward(status.Jobs) { // the latest of its name comes last
		if s.Name != j.cfg.Job {
			continue
		}
		for _, m := range s.Members {
			switch {
			case m.AwaitedChunks > 0:
				late = append(late, fmt.Sprintf("worker %d (%d chunks)", m.Rank, m.AwaitedChunks))
			case s.Mode == "stream" && !m.Held && !m.Left && m.Step == slowest(s.Members):
				late = append(late, fmt.Sprintf("worker %d (at step %d)", m.Rank, m.Step))
			}
		}
		if len(late) > 0 {
			break
		}
		for _, r := range s.Racks {
			if !r.Own && r.AwaitedChunks > 0 {
				late = append(late, fmt.Sprintf("rack %q", r.Name))
			}
		}
		break
	}
	return late
}

// slowest returns the step of the member that has made the fewest.
func slowest(members []*api.WorkerStatus) uint64 {
	step := uint64(math.MaxUint64)
	for _, m := range members {
		if !m.Left {
			step = min(step, m.Step)
		}
	}
	return step
}
