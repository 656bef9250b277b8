package hierarchy

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// Whatever the shape, every rack's sum comes to the owner once, and they are added in order.
func TestRoutesAddTheRacksInOrder(t *testing.T) {
	var want []int
	for racks := 1; racks <= 8; racks++ {
		want = append(want, racks-1)
		for pods := 1; pods <= racks; pods++ {
			for _, shape := range Shapes() {
				top := Topology{Shape: shape, Racks: racks, Pods: pods}
				if top.Check() != nil {
					continue
				}
				for _, owner := range top.Owners() {
					if got := sumAt(top, owner, owner); !slices.Equal(got, want) {
						t.Errorf("%v, %d racks, %d pods, owner %d: adds %v", shape, racks, pods, owner, got)
					}
				}
			}
		}
	}
}

// sumAt is the racks whose sums are added at a rack, in order.
func sumAt(t Topology, rack, owner int) (sum []int) {
	r := t.Route(rack, owner)
	for _, g := range r.Groups {
		for _, in := range g {
			if in == rack {
				sum = append(sum, rack)
				continue
			}
			if !slices.Contains(r.Children, in) || t.Route(in, owner).Parent != rack {
				return nil // its parent is another
			}
			sum = append(sum, sumAt(t, in, owner)...)
		}
	}
	return sum
}

// wire is a message under way between two reducers.
type wire struct {
	kind      ActionKind
	index     uint32
	epoch     uint8
	broadcast bool
}

// net is reducers with the queues between them; sums are counted, not added.
type net struct {
	t        interface{ Fatalf(string, ...any) }
	machines []*Reducer
	queues   map[[2]int][]wire
	ready    []map[uint32]bool // by rack: the rack's workers wait for the chunk's result
	finished map[uint32]int
	held     map[[2]int]map[int]bool // by child and parent, the slots in use
}

// newNet makes the reducers of all racks.
func newNet(t interface{ Fatalf(string, ...any) }, top Topology, chunks, window, open, sends int) net {
	n := net{t: t, queues: map[[2]int][]wire{}, finished: map[uint32]int{}, held: map[[2]int]map[int]bool{}}
	spread := top.NewDealer(0)
	var owners []int
	for range chunks {
		owners = append(owners, spread.Next(1))
	}
	for rack := range top.Racks {
		m := NewReducer(ReducerConfig{Topology: top, Rack: rack, Window: window, Sums: open, Sends: sends})
		m.Add(owners)
		n.machines, n.ready = append(n.machines, m), append(n.ready, map[uint32]bool{})
	}
	return n
}

func (n *net) carry(rack int) {
	m := n.machines[rack]
	for _, a := range slices.Clone(m.Actions()) {
		to := [2]int{rack, a.Peer}
		switch a.Kind {
		case Finish:
			n.finished[a.Index]++
		case Return:
			if !n.ready[rack][a.Index] {
				n.t.Fatalf("rack %d gets a result of chunk %d that it does not wait for", rack, a.Index)
			}
			delete(n.ready[rack], a.Index)
		case Discard:
			delete(n.ready[rack], a.Index)
		case SendSum:
			n.slot(to, a.Slot, true)
			n.queues[to] = append(n.queues[to], wire{a.Kind, a.Index, a.Epoch, a.Broadcast})
		case SendResult, SendNACK, SendTaken:
			if a.Slot >= 0 {
				n.slot([2]int{a.Peer, rack}, a.Slot, false)
			}
			n.queues[to] = append(n.queues[to], wire{a.Kind, a.Index, a.Epoch, a.Broadcast})
		case SendRequest, SendRecall:
			n.queues[to] = append(n.queues[to], wire{a.Kind, a.Index, a.Epoch, a.Broadcast})
		case Violate:
			n.t.Fatalf("rack %d: %v", rack, a.Err)
		}
	}
}

// slot checks that a slot is used by one sum at a time.
func (n *net) slot(from [2]int, slot int, take bool) {
	if n.held[from] == nil {
		n.held[from] = map[int]bool{}
	}
	if n.held[from][slot] == take {
		n.t.Fatalf("rack %d's slot %d at rack %d: taken %v, and so it was", from[0], slot, from[1], take)
	}
	n.held[from][slot] = take
}

// receive lets the oldest message of a link arrive; react does what a rack's reducer then asks for.
func (n *net) receive(link [2]int, react func(rack int)) {
	q := n.queues[link]
	w := q[0]
	n.queues[link] = q[1:]
	from, to := link[0], link[1]
	m := n.machines[to]
	switch w.kind {
	case SendSum:
		m.Sum(from, w.index, w.epoch, w.broadcast)
	case SendResult:
		m.Result(from, w.index, w.epoch, w.broadcast)
	case SendNACK:
		m.NACKed(from, w.index)
	case SendTaken:
		m.Taken(from, w.index)
	case SendRequest:
		m.Requested(from, w.index)
	case SendRecall:
		m.Recall(from, w.index)
	}
	react(to)
	n.machines[from].Delivered(to, 1)
	react(from)
}

// In any order of arrival every chunk is finished once a step, at its owner, and every rack gets its result once.
func TestEveryChunkIsFinishedOnceInAnyOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		top := Topology{Racks: rapid.IntRange(1, 8).Draw(t, "racks"), Pods: 1}
		if top.Racks%2 == 0 && top.Racks > 2 && rapid.Bool().Draw(t, "in pods") {
			top.Pods = 2
		}
		top.Shape = rapid.SampledFrom(slices.DeleteFunc(Shapes(), func(s Shape) bool {
			return Topology{Shape: s, Racks: top.Racks, Pods: top.Pods}.Check() != nil
		})).Draw(t, "shape")
		chunks := rapid.IntRange(1, 6).Draw(t, "chunks")
		window, sends := rapid.IntRange(chunks, chunks+1).Draw(t, "window"), rapid.IntRange(1, 20).Draw(t, "sends")
		n := newNet(t, top, chunks, window, chunks, sends)
		for step := 1; step <= 3; step++ {
			broadcast := step == 1
			left := make([][]uint32, top.Racks)
			for rack := range left {
				for c := range chunks {
					left[rack] = append(left[rack], uint32(c))
				}
			}
			for {
				var moves []func()
				for rack := range left {
					if len(left[rack]) > 0 {
						moves = append(moves, func() {
							i := rapid.IntRange(0, len(left[rack])-1).Draw(t, "chunk")
							index := left[rack][i]
							left[rack] = slices.Delete(left[rack], i, i+1)
							n.ready[rack][index] = true
							n.machines[rack].Ready(index, broadcast)
							n.carry(rack)
						})
					}
				}
				for a := range top.Racks {
					for b := range top.Racks {
						if link := [2]int{a, b}; len(n.queues[link]) > 0 {
							moves = append(moves, func() { n.receive(link, n.carry) })
						}
					}
				}
				if len(moves) == 0 {
					break
				}
				moves[rapid.IntRange(0, len(moves)-1).Draw(t, "move")]()
			}
			for c := range uint32(chunks) {
				if n.finished[c] != step {
					t.Fatalf("step %d: chunk %d was finished %d times", step, c, n.finished[c])
				}
			}
			for rack := range top.Racks {
				if len(n.ready[rack]) > 0 {
					t.Fatalf("step %d: rack %d waits for %v", step, rack, n.ready[rack])
				}
			}
		}
	})
}

func TestAPeerThatBreaksTheProtocolIsNamed(t *testing.T) {
	fresh := func() *Reducer {
		m := NewReducer(ReducerConfig{Topology: Topology{Shape: Root, Racks: 3}, Window: 2, Sums: 4, Sends: 8})
		m.Add([]int{0, 0, 0})
		return m
	}
	for name, f := range map[string]func(m *Reducer){
		"an unknown chunk": func(m *Reducer) { m.Sum(1, 3, 1, false) },
		"another epoch":    func(m *Reducer) { m.Sum(1, 0, 2, false) },
		"beyond the window": func(m *Reducer) {
			for index := range uint32(3) {
				m.Sum(1, index, 1, false)
			}
		},
		"a sum twice":                       func(m *Reducer) { m.Sum(1, 0, 1, false); m.Sum(1, 0, 1, false) },
		"a broadcast among sums":            func(m *Reducer) { m.Sum(2, 0, 1, false); m.Sum(1, 0, 0, true) },
		"a result to the owner":             func(m *Reducer) { m.Result(1, 0, 1, false) },
		"a request to the owner":            func(m *Reducer) { m.Requested(1, 0) },
		"a NACK of a sum that was not sent": func(m *Reducer) { m.NACKed(1, 0) },
		"a sum taken unsent":                func(m *Reducer) { m.Taken(1, 0) },
	} {
		m := fresh()
		f(m)
		a := m.Actions()
		if len(a) == 0 || a[len(a)-1].Kind != Violate || a[len(a)-1].Peer != 1 {
			t.Errorf("%s: actions %v", name, a)
		}
	}
}

// A sum that comes again when it is part of the rack's own would be added twice.
func TestAPeerThatBreaksTheProtocolByASumAfterItWasTakenIsNamed(t *testing.T) {
	m := NewReducer(ReducerConfig{Topology: Topology{Shape: Chain, Racks: 3}, Rack: 1, Window: 2, Sums: 4, Sends: 8})
	m.Add([]int{2})
	m.Ready(0, false)
	m.Sum(0, 0, 1, false)
	m.Sum(0, 0, 1, false)
	if a := m.Actions(); len(a) != 1 || a[0].Kind != Violate || a[0].Peer != 0 {
		t.Errorf("actions %v", a)
	}
}

// A lane's own words to a rack take room of its send queue, as sums do, and no more of them are on their way than find receives.
func TestALanesOwnWordsTakeRoom(t *testing.T) {
	for _, tc := range []struct{ sends, want int }{{3, 3}, {100, mostNotices}} {
		m := NewReducer(ReducerConfig{Topology: Topology{Shape: Root, Racks: 2}, Window: 2, Sums: 4, Sends: tc.sends})
		said := 0
		for m.TakeSend(1) {
			said++
		}
		if said != tc.want {
			t.Errorf("with %d entries there was room for %d, want %d", tc.sends, said, tc.want)
		}
		if m.Delivered(1, 1); !m.TakeSend(1) || m.TakeSend(1) {
			t.Errorf("with %d entries, one that has arrived does not make room for one", tc.sends)
		}
	}
}

// Where sums are rounded between racks, no shape may round them twice: its bits would differ from another's.
func TestSumsAreRoundedOnceOrRefused(t *testing.T) {
	for racks := 1; racks <= 8; racks++ {
		for pods := 1; pods <= racks; pods++ {
			for _, shape := range Shapes() {
				top := Topology{Shape: shape, Racks: racks, Pods: pods}
				if top.Check() != nil {
					continue
				}
				once := true
				for _, owner := range top.Owners() {
					for rack := range racks {
						r := top.Route(rack, owner)
						once = once && len(r.Groups) == 1 && (r.Parent < 0 || len(r.Children) == 0)
					}
				}
				if refused := top.CheckOnce() != nil; refused == once && racks > 1 {
					t.Errorf("%v, %d racks in %d pods: refused is %v, and sums are rounded once: %v", shape, racks, pods, refused, once)
				}
			}
		}
	}
}
