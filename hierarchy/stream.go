package hierarchy

import (
	"math"

	"github.com/rackweave/rackweave/pqueue"
)

// Simulate returns the seconds that a step takes when every chunk is followed through every link, first come, first served: what
// [Cluster.Predict] sums up. The workers of a rack are alike, so that their transfers of a chunk are one, as long on each worker's
// link and [Cluster.Workers] times as long on a link that they share. It takes some 16 * chunks * racks events.
//
// A worker has at most window chunks unanswered; 0: all that it has.
func (c *Cluster) Simulate(s Shape, chunks int, chunk float64, window int) float64 {
	sim := newSimulation(c, chunk, window)
	sim.alike = float64(c.Workers)
	one := *c
	one.Workers = 1
	for i := range chunks {
		sim.add(&one, s, i)
	}
	return sim.run()
}

// hop is a link in one direction, and when it is free.
type hop struct {
	rate float64
	free float64
	own  bool // of each worker
}

type linkKey struct {
	link Link
	node Node
	out  bool
}

// transfer is an edge under way: the hops that are left, and what waits for it.
type transfer struct {
	from, to Node
	chunk    int
	up       bool
}

type event struct {
	at  float64
	seq int
	run func()
}

func (a event) before(b event) bool { return a.at < b.at || a.at == b.at && a.seq < b.seq }

type stationKey struct {
	node  Node
	chunk int
}

// station is a node's part in a chunk: how many transfers it waits for, and those that follow.
type station struct {
	missing int
	next    []transfer
}

type simulation struct {
	c        *Cluster
	chunk    float64
	alike    float64             // workers whose transfers of a chunk are one
	window   int                 // transfers that a worker may have unanswered
	unsent   map[Node][]transfer // of a worker, in order
	hops     map[linkKey]*hop
	cores    map[Node]*hop
	stations map[stationKey]*station // that wait for gradients and sums
	results  map[stationKey]*station // that wait for the result
	queue    *pqueue.Queue[event]
	seq      int
	now, end float64
}

func newSimulation(c *Cluster, chunk float64, window int) *simulation {
	return &simulation{c: c, chunk: chunk, window: window, unsent: map[Node][]transfer{},
		hops: map[linkKey]*hop{}, cores: map[Node]*hop{},
		stations: map[stationKey]*station{}, results: map[stationKey]*station{}, queue: pqueue.New(event.before)}
}

func (s *simulation) at(when float64, run func()) {
	s.seq++
	s.queue.Push(event{when, s.seq, run})
}

func (s *simulation) station(n Node, chunk int) *station {
	k := stationKey{n, chunk}
	if s.stations[k] == nil {
		s.stations[k] = &station{}
	}
	return s.stations[k]
}

// add lays out a chunk's transfers. A result leaves the owner when all gradients are there, and another node when it has come.
func (s *simulation) add(c *Cluster, shape Shape, chunk int) {
	up, down := shape.Edges(c, chunk)
	sent := map[Node]bool{}
	for _, e := range up {
		sent[e.From] = true
		s.station(e.To, chunk).missing++
	}
	result := map[Node]*station{}
	for _, e := range up {
		if !sent[e.To] {
			result[e.To] = s.station(e.To, chunk)
		}
	}
	for _, e := range up {
		t := transfer{e.From, e.To, chunk, true}
		if e.From.Worker >= 0 {
			s.unsent[e.From] = append(s.unsent[e.From], t)
		} else {
			s.station(e.From, chunk).next = append(s.station(e.From, chunk).next, t)
		}
	}
	for _, e := range down {
		if result[e.From] == nil {
			result[e.From] = &station{}
		}
		result[e.From].next = append(result[e.From].next, transfer{e.From, e.To, chunk, false})
	}
	for n, st := range result {
		s.results[stationKey{n, chunk}] = st
	}
}

// path is the links that a transfer takes, in order.
func (s *simulation) path(t transfer) (hops []*hop, latency float64) {
	get := func(l Link, n Node, out bool) {
		k := linkKey{l, n, out}
		if s.hops[k] == nil {
			s.hops[k] = &hop{rate: s.c.Rate(l), own: l == WorkerNIC}
		}
		hops = append(hops, s.hops[k])
	}
	nic := func(n Node, out bool) {
		switch {
		case n.Rack == s.c.Racks:
			get(SpineNIC, n, out)
		case n.Worker < 0:
			get(AggregatorNIC, n, out)
		default:
			get(WorkerNIC, n, out)
		}
	}
	pod := func(n Node) int { return n.Rack / s.c.inPod() }
	nic(t.from, true)
	latency = s.c.RackLatency
	if t.from.Rack != t.to.Rack {
		latency = s.c.CoreLatency
		if t.from.Rack < s.c.Racks {
			get(Uplink, Node{t.from.Rack, 0}, true)
		}
		if s.c.pods() > 1 && pod(t.from) != pod(t.to) {
			get(PodUplink, Node{pod(t.from), 0}, true)
			if t.to.Rack < s.c.Racks {
				get(PodUplink, Node{pod(t.to), 0}, false)
			}
		}
		if t.to.Rack < s.c.Racks {
			get(Uplink, Node{t.to.Rack, 0}, false)
		}
	}
	nic(t.to, false)
	return hops, latency
}

// start sends a transfer through its links, one after another.
func (s *simulation) start(t transfer) {
	hops, latency := s.path(t)
	s.cross(hops, s.many(t), func() { s.at(s.now+latency, func() { s.arrive(t) }) })
}

// many is how many gradients or results a transfer stands for.
func (s *simulation) many(t transfer) float64 {
	if t.from.Worker >= 0 || t.to.Worker >= 0 {
		return s.alike
	}
	return 1
}

func (s *simulation) cross(hops []*hop, many float64, then func()) {
	if len(hops) == 0 {
		then()
		return
	}
	h := hops[0]
	bytes := s.chunk
	if !h.own {
		bytes *= many
	}
	h.free = max(h.free, s.now) + bytes/h.rate
	s.at(h.free, func() { s.cross(hops[1:], many, then) })
}

func (s *simulation) arrive(t transfer) {
	s.end = max(s.end, s.now)
	if !t.up {
		if t.to.Worker >= 0 {
			s.send(t.to)
		}
		if st := s.results[stationKey{t.to, t.chunk}]; st != nil {
			s.leave(st)
		}
		return
	}
	done := s.now
	if s.c.FoldRate > 0 {
		core := s.cores[t.to]
		if core == nil {
			core = &hop{rate: s.c.FoldRate}
			s.cores[t.to] = core
		}
		core.free = max(core.free, s.now) + s.many(t)*s.chunk/core.rate
		done = core.free
	}
	s.at(done, func() {
		if st := s.stations[stationKey{t.to, t.chunk}]; st != nil {
			if st.missing--; st.missing == 0 {
				s.leave(st)
			}
		}
	})
}

func (s *simulation) leave(st *station) {
	for _, t := range st.next {
		s.start(t)
	}
}

// send starts a worker's next transfer.
func (s *simulation) send(n Node) {
	if waiting := s.unsent[n]; len(waiting) > 0 {
		s.unsent[n] = waiting[1:]
		s.start(waiting[0])
	}
}

func (s *simulation) run() float64 {
	first := s.window
	if first == 0 {
		first = math.MaxInt
	}
	for rack := range s.c.Racks {
		for w := range s.c.Workers {
			n := Node{rack, w}
			for range min(first, len(s.unsent[n])) {
				s.send(n)
			}
		}
	}
	for s.queue.Len() > 0 {
		e := s.queue.Pop()
		s.now = e.at
		e.run()
	}
	return s.end
}
