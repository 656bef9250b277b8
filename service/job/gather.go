package job

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"connectrpc.com/connect"

	"github.com/rackweave/rackweave/service/api"
	"github.com/rackweave/rackweave/service/rpc"
)

// maxGatherings limits the barriers that one job waits in at once.
const maxGatherings = 64

// gathering is a collective call in progress. Every worker makes it; the last to arrive does the work for all.
type gathering struct {
	arrived map[int][]declared // the tensors that each rank has brought
	work    func() (*api.RegisterResponse, error)
	full    bool // it is being done
	done    chan struct{}
	result  *api.RegisterResponse
	err     error
}

// gather adds a rank to the collective call named key and waits for all ranks. A worker that brings other tensors than another one
// brought fails the call for everyone at once. work runs once, in the last caller.
func (j *Job) gather(ctx context.Context, key string, rank int, brings []declared,
	work func() (*api.RegisterResponse, error)) (*api.RegisterResponse, error) {
	j.mu.Lock()
	g, err := j.gathering(key, rank)
	if err != nil {
		j.mu.Unlock()
		return nil, err
	}
	for other, brought := range g.arrived {
		err = mismatch(other, brought, rank, brings)
		break // all brought the same
	}
	if err != nil {
		j.Agg.Fail(rank, fmt.Errorf("register with job %q: %w", j.Name, err))
		err = rpc.Refuse(connect.CodeFailedPrecondition, "register with job %q: %w", j.Name, err)
		j.finish(key, g, nil, err)
		j.mu.Unlock()
		return nil, err
	}
	g.arrived[rank], g.work = brings, work
	if j.complete(g) {
		g.full = true
		j.mu.Unlock()
		j.perform(key, g)
		return g.result, g.err
	}
	j.mu.Unlock()
	select {
	case <-g.done:
		return g.result, g.err
	case <-j.Failed:
		return nil, j.FailureError()
	case <-ctx.Done():
		return nil, j.giveUp(key, g, rank, ctx.Err())
	}
}

// complete reports whether all have arrived who are not lost. The caller holds j.mu.
func (j *Job) complete(g *gathering) bool {
	for rank, m := range j.Members {
		if _, there := g.arrived[rank]; !there && !m.spared {
			return false
		}
	}
	return true
}

// perform does the work of a collective call that is complete.
func (j *Job) perform(key string, g *gathering) {
	result, err := g.work()
	j.mu.Lock()
	defer j.mu.Unlock()
	j.finish(key, g, result, err)
}

// gathering finds or starts the collective call named key. The caller holds j.mu.
func (j *Job) gathering(key string, rank int) (*gathering, error) {
	if i := slices.IndexFunc(j.Members, (*Member).left); i >= 0 {
		return nil, deserted(key, j.Members[i])
	}
	g := j.gatherings[key]
	if g == nil {
		if len(j.gatherings) == maxGatherings {
			return nil, rpc.Refuse(connect.CodeResourceExhausted, "%s: job %q waits in %d calls already", key, j.Name, maxGatherings)
		}
		g = &gathering{arrived: map[int][]declared{}, done: make(chan struct{})}
		j.gatherings[key] = g
	}
	if _, there := g.arrived[rank]; there {
		return nil, rpc.Refuse(connect.CodeFailedPrecondition, "%s: worker %d is in this call already", key, rank)
	}
	return g, nil
}

// endGatherings fails the collective calls that wait for a worker who has left. The caller holds j.mu.
func (j *Job) endGatherings(m *Member) {
	for key, g := range j.gatherings {
		if _, there := g.arrived[m.Rank]; !there && !g.full {
			j.finish(key, g, nil, deserted(key, m))
		}
	}
}

func deserted(key string, m *Member) error {
	return rpc.Refuse(connect.CodeFailedPrecondition, "%s: %v has left job %q: it cannot be waited for", key, m, m.Job.Name)
}

// finish ends a collective call for all who wait. The caller holds j.mu.
func (j *Job) finish(key string, g *gathering, result *api.RegisterResponse, err error) {
	if j.gatherings[key] == g {
		delete(j.gatherings, key)
	}
	g.result, g.err = result, err
	close(g.done)
}

// giveUp removes a worker whose time is up from the call and names the missing ranks.
func (j *Job) giveUp(key string, g *gathering, rank int, cause error) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if isClosed(g.done) {
		return g.err
	}
	if g.full {
		return rpc.Refuse(codeOf(cause), "%s: all workers called, it is still being done", key)
	}
	var missing []string
	for r, m := range j.Members {
		if _, there := g.arrived[r]; !there {
			missing = append(missing, m.String())
		}
	}
	if delete(g.arrived, rank); len(g.arrived) == 0 {
		delete(j.gatherings, key)
	}
	return rpc.Refuse(codeOf(cause), "%s: waited for %s", key, strings.Join(missing, ", "))
}
