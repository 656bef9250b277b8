package planner

import (
	"slices"

	"github.com/rackweave/rackweave/hierarchy"
	"github.com/rackweave/rackweave/pqueue"
)

// Simulate returns the time of a step in seconds, by following every chunk through every link, first come, first served.
// [Cluster.Predict] approximates it. The workers of a rack are alike, so their transfers of a chunk are one transfer, as long on
// each worker's link, and [Cluster.Workers] times as long on a shared link. Simulate takes some 16 * chunks * racks events.
func (c *Cluster) Simulate(shape hierarchy.Shape, chunks int, chunk float64) float64 {
	s := &simulation{c: c, chunk: chunk, free: map[hop]float64{}, queue: pqueue.New(event.before)}
	one := *c
	one.Workers = 1
	for i := range chunks {
		s.begin(one.edges(shape, i))
	}
	for s.queue.Len() > 0 {
		e := s.queue.Pop()
		s.now = e.at
		e.run()
	}
	return s.now
}

// hop is a link in one direction.
type hop struct {
	class Link
	index int // of the rack or the pod
	out   bool
}

type event struct {
	at  float64
	seq int
	run func()
}

func (a event) before(b event) bool { return a.at < b.at || a.at == b.at && a.seq < b.seq }

type simulation struct {
	c     *Cluster
	chunk float64
	free  map[hop]float64 // time at which a hop is free
	queue *pqueue.Queue[event]
	seq   int
	now   float64
}

func (s *simulation) at(when float64, run func()) {
	s.seq++
	s.queue.Push(event{when, s.seq, run})
}

// begin starts a chunk's transfers, given those up to its owner. A node passes its sum on when all parts have arrived, and the
// owner then answers with the result.
func (s *simulation) begin(up []edge) {
	parent, children, missing := map[node]node{}, map[node][]node{}, map[node]int{}
	for _, e := range up {
		parent[e.From] = e.To
		children[e.To] = append(children[e.To], e.From)
		missing[e.To]++
	}
	var climb, descend func(node)
	descend = func(n node) {
		for _, child := range slices.Backward(children[n]) {
			s.send(n, child, func() { descend(child) })
		}
	}
	climb = func(n node) {
		to, is := parent[n]
		if !is {
			descend(n)
			return
		}
		s.send(n, to, func() {
			if missing[to]--; missing[to] == 0 {
				climb(to)
			}
		})
	}
	for _, e := range up {
		if e.From.Worker >= 0 {
			climb(e.From)
		}
	}
}

// send sends a chunk through links, one after another, and then calls arrived.
func (s *simulation) send(from, to node, arrived func()) {
	nic := func(n node, out bool) hop {
		if n.Worker < 0 {
			return hop{AggregatorNIC, n.Rack, out}
		}
		return hop{WorkerNIC, n.Rack, out}
	}
	path, latency := []hop{nic(from, true)}, s.c.RackLatency
	if from.Rack != to.Rack {
		latency = s.c.CoreLatency
		path = append(path, hop{Uplink, from.Rack, true})
		if a, b := from.Rack/s.c.inPod(), to.Rack/s.c.inPod(); a != b {
			path = append(path, hop{PodUplink, a, true}, hop{PodUplink, b, false})
		}
		path = append(path, hop{Uplink, to.Rack, false})
	}
	path = append(path, nic(to, false))
	shared := s.chunk // bytes on links that workers share
	if from.Worker >= 0 || to.Worker >= 0 {
		shared *= float64(s.c.Workers)
	}
	var cross func()
	cross = func() {
		if len(path) == 0 {
			s.at(s.now+latency, arrived)
			return
		}
		h, bytes := path[0], shared
		if path = path[1:]; h.class == WorkerNIC {
			bytes = s.chunk
		}
		s.free[h] = max(s.free[h], s.now) + bytes/s.c.Rate(h.class)
		s.at(s.free[h], cross)
	}
	cross()
}

// node is an end of a transfer: a worker, or a rack's aggregator if Worker is -1.
type node struct{ Rack, Worker int }

func aggregator(rack int) node { return node{rack, -1} }

// edge is one chunk's transfer from one node to another.
type edge struct{ From, To node }

// edges returns the transfers of a chunk's gradients and sums up to its owner, each after the transfers into its source. Results
// take the same way back.
func (c *Cluster) edges(s hierarchy.Shape, chunk int) (up []edge) {
	t := c.topology(s)
	owners := t.Owners()
	owner := owners[chunk%len(owners)]
	for rack := range c.Racks {
		first := rack
		if s == hierarchy.Flat {
			first = owner
		}
		for w := range c.Workers {
			up = append(up, edge{node{rack, w}, aggregator(first)})
		}
	}
	var climb func(rack int)
	climb = func(rack int) {
		for _, child := range t.Route(rack, owner).Children {
			climb(child)
			up = append(up, edge{aggregator(child), aggregator(rack)})
		}
	}
	if s != hierarchy.Flat {
		climb(owner)
	}
	return up
}
