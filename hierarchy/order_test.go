package hierarchy

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// pusher is the workers of a rack as the reducer above them sees them: they push chunks in an order of their own, and have room
// for a few.
type pusher struct {
	order []uint32 // yet to push
	under int      // pushed, without a result
	room  int
}

// orderNet is racks whose workers push in orders of their own.
type orderNet struct {
	net
	rng     *rand.Rand
	pushers []pusher
}

// push pushes chunks while there is room.
func (n *orderNet) push(rack int) {
	p := &n.pushers[rack]
	for p.under < p.room && len(p.order) > 0 {
		index := p.order[0]
		p.order = p.order[1:]
		p.under++
		n.ready[rack][index] = true
		n.machines[rack].Ready(index, false)
		n.react(rack)
	}
}

// react does what a rack's reducer asked for, and what follows for its workers.
func (n *orderNet) react(rack int) {
	p, m := &n.pushers[rack], n.machines[rack]
	var wanted []uint32
	for _, a := range m.Actions() {
		switch a.Kind {
		case Return:
			p.under--
		case Discard:
			p.under--
			p.order = append(p.order, a.Index)
		case Follow:
			wanted = append(wanted, a.Index)
		}
	}
	n.carry(rack)
	for _, index := range wanted {
		i := slices.Index(p.order, index)
		if i < 0 {
			continue
		}
		p.order = slices.Insert(slices.Delete(p.order, i, i+1), 0, index)
		if p.under == p.room {
			m.Yield()
			n.react(rack)
		}
	}
}

// deliver lets one message arrive, and reports whether there was any.
func (n *orderNet) deliver() bool {
	var links [][2]int
	for a := range n.machines {
		for b := range n.machines {
			if link := [2]int{a, b}; len(n.queues[link]) > 0 {
				links = append(links, link)
			}
		}
	}
	if len(links) == 0 {
		return false
	}
	link := links[n.rng.IntN(len(links))]
	n.receive(link, n.react)
	return true
}

// Racks whose workers push in different orders, with room for a few chunks in workers and windows, finish all of them.
func TestRacksInOrdersOfTheirOwnFinish(t *testing.T) {
	for seed := range uint64(2000) {
		rng := rand.New(rand.NewPCG(seed, 3))
		top := Topology{Racks: 2 + rng.IntN(7), Pods: 1}
		if top.Racks%2 == 0 && top.Racks > 2 && rng.IntN(2) == 0 {
			top.Pods = 2
		}
		shapes := slices.DeleteFunc(Shapes(), func(s Shape) bool {
			return Topology{Shape: s, Racks: top.Racks, Pods: top.Pods}.Check() != nil
		})
		top.Shape = shapes[rng.IntN(len(shapes))]
		room := 2 + rng.IntN(6)
		chunks := room + 1 + rng.IntN(16)
		var order []int
		n := &orderNet{net: newNet(t, top, chunks, max(1, room/2), chunks, 40), rng: rng}
		for rack := range top.Racks {
			if order == nil || rng.IntN(2) == 0 { // a rack has an order of its own, or that of the one before it
				order = rng.Perm(chunks)
			}
			p := pusher{room: room}
			if rack != leader {
				p.room += rng.IntN(4) // workers with less room than the leader's could not follow it
			}
			for _, c := range order {
				p.order = append(p.order, uint32(c))
			}
			n.pushers = append(n.pushers, p)
		}
		for round := 0; len(n.finished) < chunks || n.busy(); round++ {
			if round == 20000 {
				t.Fatalf("seed %d: %v, %d racks, %d pods, room for %d: %d of %d chunks are finished", seed, top.Shape, top.Racks, top.Pods,
					room, len(n.finished), chunks)
			}
			for rack := range n.machines {
				n.push(rack)
			}
			for n.deliver() && rng.IntN(4) > 0 {
			}
			if round%8 == 7 {
				for rack, m := range n.machines {
					m.Tick(true)
					n.react(rack)
				}
			}
		}
		for c := range uint32(chunks) {
			if n.finished[c] != 1 {
				t.Fatalf("seed %d: chunk %d was finished %d times", seed, c, n.finished[c])
			}
		}
	}
}

// busy reports whether a rack waits for a result.
func (n *orderNet) busy() bool {
	for rack := range n.pushers {
		if n.pushers[rack].under > 0 || len(n.pushers[rack].order) > 0 {
			return true
		}
	}
	return false
}
