package service

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"connectrpc.com/connect"
)

// gathering is a collective call in progress. Every worker makes it; the last to arrive does the work for all.
type gathering struct {
	arrived []bool // by rank
	count   int
	first   int // the rank that arrived first, and what it brought
	brought any
	full    bool // the work is being done
	done    chan struct{}
	result  any
	err     error
}

// gather adds a rank to the collective call named key and waits for all ranks. check compares what this worker brings with what the
// first one brought; its error fails the call for everyone at once. work runs once, in the last caller.
func (j *job) gather(ctx context.Context, key string, rank int, brings any, check func(first int, brought any) error,
	work func() (any, error)) (any, error) {
	j.mu.Lock()
	g, err := j.gathering(key, rank, brings)
	if err != nil {
		j.mu.Unlock()
		return nil, err
	}
	if g.count > 0 && check != nil {
		if err := check(g.first, g.brought); err != nil {
			j.finish(key, g, nil, err)
			j.mu.Unlock()
			return nil, err
		}
	}
	g.arrived[rank] = true
	if g.count++; g.count == len(g.arrived) {
		g.full = true
		j.mu.Unlock()
		var result any
		if work != nil {
			result, err = work()
		}
		j.mu.Lock()
		j.finish(key, g, result, err)
		j.mu.Unlock()
		return result, err
	}
	j.mu.Unlock()
	select {
	case <-g.done:
		return g.result, g.err
	case <-j.failed:
		return nil, j.failureError()
	case <-ctx.Done():
		return nil, j.giveUp(key, g, rank, ctx.Err())
	}
}

// gathering finds or starts the collective call named key. The caller holds j.mu.
func (j *job) gathering(key string, rank int, brings any) (*gathering, error) {
	if m := j.firstLeft(); m != nil {
		return nil, deserted(key, m)
	}
	g := j.gatherings[key]
	if g == nil {
		if len(j.gatherings) == maxGatherings {
			return nil, connect.NewError(connect.CodeResourceExhausted,
				fmt.Errorf("%s: job %q waits in %d calls already", key, j.name, maxGatherings))
		}
		g = &gathering{arrived: make([]bool, j.spec.workers), first: rank, brought: brings, done: make(chan struct{})}
		j.gatherings[key] = g
	}
	if g.arrived[rank] {
		return nil, connect.NewError(connect.CodeFailedPrecondition, fmt.Errorf("%s: worker %d is in this call already", key, rank))
	}
	return g, nil
}

// endGatherings fails the collective calls that wait for a worker who has left. The caller holds j.mu.
func (j *job) endGatherings(m *member) {
	for key, g := range j.gatherings {
		if !g.full && !g.arrived[m.rank] {
			j.finish(key, g, nil, deserted(key, m))
		}
	}
}

func deserted(key string, m *member) error {
	return connect.NewError(connect.CodeFailedPrecondition,
		fmt.Errorf("%s: %v has left job %q: it cannot be waited for", key, m, m.job.name))
}

// finish ends a collective call for all who wait. The caller holds j.mu.
func (j *job) finish(key string, g *gathering, result any, err error) {
	if j.gatherings[key] == g {
		delete(j.gatherings, key)
	}
	g.result, g.err = result, err
	close(g.done)
}

// giveUp removes a worker whose time is up from the call and names the missing ranks.
func (j *job) giveUp(key string, g *gathering, rank int, cause error) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	select {
	case <-g.done:
		return g.err
	default:
	}
	code := connect.CodeDeadlineExceeded
	if errors.Is(cause, context.Canceled) {
		code = connect.CodeCanceled
	}
	if g.full {
		return connect.NewError(code, fmt.Errorf("%s: all workers called, it is still being done", key))
	}
	var missing []string
	for r, there := range g.arrived {
		if !there {
			missing = append(missing, j.members[r].String())
		}
	}
	g.arrived[rank] = false
	if g.count--; g.count == 0 {
		delete(j.gatherings, key)
	} else if g.first == rank {
		for r, there := range g.arrived {
			if there {
				g.first = r // it brought the same: otherwise the call would have failed
				break
			}
		}
	}
	return connect.NewError(code, fmt.Errorf("%s: waited for %s", key, strings.Join(missing, ", ")))
}
