// Package transfers follows a step's chunks through a cluster, transfer by transfer. Package planner predicts the same by formulas.
// It is pure.
package transfers

import (
	"slices"

	"github.com/rackweave/rackweave/hierarchy"
	"github.com/rackweave/rackweave/hierarchy/planner"
	"github.com/rackweave/rackweave/pqueue"
)

// Simulate returns the time of a step in seconds, by following every chunk through every link, first come, first served.
// [planner.Cluster.Predict] approximates it. The workers of a rack are alike, so their transfers of a chunk are one transfer, as
// long on each worker's link, and as many times as long on a shared link as there are workers. Simulate takes some
// 16 * chunks * racks events.
func Simulate(c *planner.Cluster, shape hierarchy.Shape, chunks int, chunk float64) float64 {
	s := &simulation{c: c, chunk: chunk, free: map[hop]float64{}, queue: pqueue.New(event.before)}
	one := *c
	one.Workers = 1
	for i := range chunks {
		s.begin(edges(&one, shape, i))
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
	class planner.Link
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
	c     *planner.Cluster
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
			return hop{planner.AggregatorNIC, n.Rack, out}
		}
		return hop{planner.WorkerNIC, n.Rack, out}
	}
	path, latency := []hop{nic(from, true)}, s.c.RackLatency
	if from.Rack != to.Rack {
		latency = s.c.CoreLatency
		path = append(path, hop{planner.Uplink, from.Rack, true})
		if a, b := podOf(s.c, from), podOf(s.c, to); a != b {
			path = append(path, hop{planner.PodUplink, a, true}, hop{planner.PodUplink, b, false})
		}
		path = append(path, hop{planner.Uplink, to.Rack, false})
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
		if path = path[1:]; h.class == planner.WorkerNIC {
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

// podOf returns the number of a node's pod.
func podOf(c *planner.Cluster, n node) int { return n.Rack * max(c.Pods, 1) / c.Racks }

// edge is one chunk's transfer from one node to another.
type edge struct{ From, To node }

// edges returns the transfers of a chunk's gradients and sums up to its owner, each after the transfers into its source. Results
// take the same way back.
func edges(c *planner.Cluster, s hierarchy.Shape, chunk int) (up []edge) {
	t := hierarchy.Topology{Shape: s, Racks: c.Racks, Pods: c.Pods}
	if s == hierarchy.Flat { // it has the owners of sharded
		t.Shape = hierarchy.Sharded
	}
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
