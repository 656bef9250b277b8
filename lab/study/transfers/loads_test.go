package transfers

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/rackweave/rackweave/hierarchy"
	"github.com/rackweave/rackweave/hierarchy/planner"
)

// back returns the transfers of results.
func back(up []edge) (down []edge) {
	for _, e := range slices.Backward(up) {
		down = append(down, edge{e.To, e.From})
	}
	return down
}

// load counts what one step of a shape puts on every link, transfer by transfer, and returns the most of each class.
func load(c *planner.Cluster, s hierarchy.Shape, chunks int) planner.Loads {
	type end struct {
		link planner.Link
		id   node
		out  bool
	}
	bytes := map[end]float64{}
	nic := func(n node) (planner.Link, node) {
		if n.Worker < 0 {
			return planner.AggregatorNIC, n
		}
		return planner.WorkerNIC, n
	}
	for chunk := range chunks {
		up := edges(c, s, chunk)
		for _, e := range append(up, back(up)...) {
			for _, out := range []bool{true, false} {
				n := e.To
				if out {
					n = e.From
				}
				l, id := nic(n)
				bytes[end{l, id, out}] += 1 / float64(chunks)
				if e.From.Rack != e.To.Rack {
					bytes[end{planner.Uplink, node{n.Rack, 0}, out}] += 1 / float64(chunks)
				}
				if podOf(c, e.From) != podOf(c, e.To) && c.Pods > 1 {
					bytes[end{planner.PodUplink, node{podOf(c, n), 0}, out}] += 1 / float64(chunks)
				}
			}
		}
	}
	var most planner.Loads
	for e, n := range bytes {
		most[e.link] = max(most[e.link], n)
	}
	return most
}

func TestLoadsAreWhatTheTransfersAddUpTo(t *testing.T) {
	for _, racks := range []int{1, 2, 3, 4, 6, 8} {
		for _, workers := range []int{1, 3, 4} {
			for _, pods := range []int{0, 2, 3} {
				c := &planner.Cluster{Racks: racks, Workers: workers, Pods: pods, WorkerNIC: 1, AggregatorNIC: 1, Uplink: 1,
					PodUplink: 1}
				if c.Check() != nil {
					continue
				}
				for _, s := range hierarchy.Shapes() {
					if c.Fits(s) != nil {
						continue
					}
					want, got := load(c, s, racks*racks*6), c.Loads(s)
					for l := range want {
						if math.Abs(want[l]-got[l]) > 1e-9 {
							t.Errorf("%v, %d racks, %d workers, %d pods: %v carries %g, the transfers add up to %g", s, racks, workers, pods, planner.Link(l), got[l], want[l])
						}
					}
				}
			}
		}
	}
}

// Whatever the shape, the owner gets every worker's gradient once, every worker gets the result once, and nobody passes on what
// it does not have.
func TestEveryShapeReachesEverybody(t *testing.T) {
	for _, racks := range []int{1, 2, 3, 5, 8} {
		c := &planner.Cluster{Racks: racks, Workers: 3, WorkerNIC: 1, AggregatorNIC: 1, Uplink: 1, PodUplink: 1}
		if racks == 8 {
			c.Pods = 4
		}
		for _, s := range hierarchy.Shapes() {
			if c.Fits(s) != nil {
				continue
			}
			for chunk := range 2 * racks {
				t.Run(fmt.Sprintf("%v, %d racks, chunk %d", s, racks, chunk), func(t *testing.T) {
					reaches(t, c, s,
						chunk)
				})
			}
		}
	}
}

func reaches(t *testing.T, c *planner.Cluster, s hierarchy.Shape, chunk int) {
	up := edges(c, s, chunk)
	sum := map[node]map[node]bool{}
	for rack := range c.Racks {
		for w := range c.Workers {
			n := node{rack, w}
			sum[n] = map[node]bool{n: true}
		}
	}
	sent := map[node]bool{}
	for _, e := range up {
		if sent[e.From] {
			t.Fatalf("%v sends its sum twice", e.From)
		}
		sent[e.From] = true
		if sent[e.To] {
			t.Fatalf("%v has passed its sum on when %v's comes", e.To, e.From)
		}
		if sum[e.To] == nil {
			sum[e.To] = map[node]bool{}
		}
		for n := range sum[e.From] {
			if sum[e.To][n] {
				t.Fatalf("%v gets %v's gradient twice", e.To, n)
			}
			sum[e.To][n] = true
		}
	}
	var owner node
	owners := 0
	for n, from := range sum {
		if !sent[n] {
			owner = n
			owners++
			if len(from) != c.Racks*c.Workers {
				t.Fatalf("owner %v has %d gradients", n, len(from))
			}
		}
	}
	if owners != 1 {
		t.Fatalf("%d owners", owners)
	}
	has := map[node]bool{owner: true}
	for _, e := range back(up) {
		if !has[e.From] || has[e.To] {
			t.Fatalf("result goes from %v, which has it: %v, to %v, which has it: %v", e.From, has[e.From], e.To,
				has[e.To])
		}
		has[e.To] = true
	}
	for rack := range c.Racks {
		for w := range c.Workers {
			if !has[node{rack, w}] {
				t.Fatalf("worker %d of rack %d gets no result", w, rack)
			}
		}
	}
}
