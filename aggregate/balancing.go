package aggregate

import (
	"slices"
	"sync"
	"time"
)

// DefaultBalance is how long a window is of what lanes do.
const DefaultBalance = time.Second

// balancing watches an engine's jobs and evens out its lanes.
type balancing struct {
	mu     sync.Mutex
	jobs   []*Job
	before map[*Job][]uint64 // bytes, by lane, at the end of the last window
	groups []laneGroup
	stop   chan struct{}
	done   chan struct{}
}

// laneGroup is lanes between which chunks may move by themselves.
type laneGroup struct {
	lanes []int
	balancer
}

func newBalancing(lanes []LaneConfig) *balancing {
	b := &balancing{before: map[*Job][]uint64{}, stop: make(chan struct{}), done: make(chan struct{})}
	for i, l := range lanes {
		at := slices.IndexFunc(b.groups, func(g laneGroup) bool {
			first := lanes[g.lanes[0]]
			return first.Device == l.Device && first.Node == l.Node
		})
		if at < 0 {
			at, b.groups = len(b.groups), append(b.groups, laneGroup{})
		}
		b.groups[at].lanes = append(b.groups[at].lanes, i)
	}
	return b
}

// run looks at the lanes at the end of every window.
func (b *balancing) run(window time.Duration) {
	defer close(b.done)
	ticker := time.NewTicker(window)
	defer ticker.Stop()
	for {
		select {
		case <-b.stop:
			return
		case <-ticker.C:
			b.look()
		}
	}
}

// look ends a window.
func (b *balancing) look() {
	b.mu.Lock()
	defer b.mu.Unlock()
	loads := make([][]load, len(b.jobs))
	for i, j := range b.jobs {
		now, before := j.traffic(), b.before[j]
		loads[i] = make([]load, len(now))
		for lane := range now {
			if before == nil {
				continue
			}
			loads[i][lane].bytes = now[lane] - min(before[lane], now[lane])
			if j.fixed() == nil {
				loads[i][lane].chunks = j.moves.count(lane)
			}
		}
		b.before[j] = now
	}
	for i := range b.groups {
		g := &b.groups[i]
		lanes := make([][]load, len(g.lanes))
		for k, lane := range g.lanes {
			for job := range loads {
				lanes[k] = append(lanes[k], loads[job][lane])
			}
		}
		if s, ok := g.decide(lanes); ok {
			_, _ = b.jobs[s.job].Move(g.lanes[s.from], g.lanes[s.to], s.chunks) // lanes that cannot be named stay uneven
		}
	}
}

// add watches a job.
func (b *balancing) add(j *Job) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.jobs = append(b.jobs, j)
}

// remove watches a job no more.
func (b *balancing) remove(j *Job) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.jobs = slices.DeleteFunc(b.jobs, func(o *Job) bool { return o == j })
	delete(b.before, j)
}

func (b *balancing) close() {
	close(b.stop)
	<-b.done
}
