package aggregate

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/rackweave/rackweave/aggregate/balance"
	"github.com/rackweave/rackweave/chunk"
)

// DefaultBalance is the length of the windows in which lanes' traffic is compared.
const DefaultBalance = time.Second

// rebalancer moves chunks of an engine's jobs between lanes with uneven traffic.
type rebalancer struct {
	mu     sync.Mutex
	jobs   []*Job
	before map[*Job][]uint64 // bytes, by lane, at the end of the last window
	groups []laneGroup
	stop   chan struct{}
	ran    sync.WaitGroup
}

// laneGroup is a set of lanes between which chunks may move by themselves.
type laneGroup struct {
	lanes []int
	balance.Balancer
}

func newRebalancer(lanes []LaneConfig) *rebalancer {
	b := &rebalancer{before: map[*Job][]uint64{}, stop: make(chan struct{})}
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

func (b *rebalancer) run(window time.Duration) {
	ticker := time.NewTicker(window)
	defer ticker.Stop()
	for {
		select {
		case <-b.stop:
			return
		case <-ticker.C:
			b.compare()
		}
	}
}

func (b *rebalancer) compare() {
	b.mu.Lock()
	defer b.mu.Unlock()
	loads := make([][]balance.Load, len(b.jobs))
	for i, j := range b.jobs {
		now, before := traffic(j), b.before[j]
		loads[i] = make([]balance.Load, len(now))
		for lane := range now {
			if before == nil {
				continue
			}
			loads[i][lane].Bytes = now[lane] - min(before[lane], now[lane])
			if !fixed(j) {
				j.moves.do(func(p *balance.Placement) { loads[i][lane].Chunks = p.Count(lane) })
			}
		}
		b.before[j] = now
	}
	for i := range b.groups {
		g := &b.groups[i]
		lanes := make([][]balance.Load, len(g.lanes))
		for k, lane := range g.lanes {
			for job := range loads {
				lanes[k] = append(lanes[k], loads[job][lane])
			}
		}
		if s, ok := g.Decide(lanes); ok {
			_, _ = b.jobs[s.Job].Move(g.lanes[s.From], g.lanes[s.To], s.Chunks) // lanes whose indexes are exhausted stay uneven
		}
	}
}

func (b *rebalancer) add(j *Job) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.jobs = append(b.jobs, j)
}

// remove removes a job that add may have added.
func (b *rebalancer) remove(j *Job) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.jobs = slices.DeleteFunc(b.jobs, func(o *Job) bool { return o == j })
	delete(b.before, j)
}

func (b *rebalancer) close() {
	close(b.stop)
	b.ran.Wait()
}

// fixed reports whether the job keeps chunks where the plan has placed them, because not every worker waits for the others, or
// because racks or aggregators agree on lanes.
func fixed(j *Job) bool { return j.Gate != nil || j.place != nil || j.config.Part.Several() }

func movable(j *Job, from, to int) error {
	n := len(j.site.lanes)
	switch {
	case from < 0 || to < 0 || from >= n || to >= min(n, chunk.MoveLanes) || from == to:
		return fmt.Errorf("job %q: move chunks from lane %d to lane %d: use two of the %d lanes, the second below %d", j.shared.Name, from, to,
			n, chunk.MoveLanes)
	case j.site.lanes[from].Config.Node != j.site.lanes[to].Config.Node:
		return fmt.Errorf("job %q: move chunks from lane %d to lane %d: their memory is on nodes %d and %d: use lanes of one node", j.shared.Name,
			from, to, j.site.lanes[from].Config.Node, j.site.lanes[to].Config.Node)
	case fixed(j):
		return fmt.Errorf("job %q: a job in mode %v, of several racks or over several aggregators keeps chunks where they are", j.shared.Name,
			Stream)
	}
	return nil
}

// traffic returns the bytes that the job has received and sent in each lane, as the lanes published them last.
func traffic(j *Job) []uint64 {
	out := make([]uint64, len(j.site.lanes))
	for i, s := range j.shards {
		workers := make([]WorkerCounters, j.shared.Workers)
		s.WorkerCounters(workers)
		for _, c := range workers {
			out[i] += c.RecvBytes + c.SentBytes
		}
	}
	return out
}

// moveBatch bounds the chunks that one visit to a lane marks.
const moveBatch = 256

// Move marks up to n chunks of a lane to move to another, each at its next answer. It returns the number of chunks that it marked.
// A caller that wants more calls it again.
func (j *Job) Move(from, to, n int) (int, error) {
	if err := movable(j, from, to); err != nil {
		return 0, err
	}
	var indexes []uint32
	j.moves.do(func(p *balance.Placement) { indexes = p.Choose(from, to, n) })
	for batch := range slices.Chunk(indexes, moveBatch) {
		s := j.shards[from]
		s.Flow.Later(func() {
			for _, index := range batch {
				s.Machine.Move(index, to)
			}
		})
	}
	return len(indexes), nil
}
