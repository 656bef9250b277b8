package chunk

import (
	"cmp"
	"math/bits"
	"slices"
)

// nicState holds a NIC's weight, its load in wire bytes, including other plans', the sum of its lanes' touched bytes, and their
// numbers.
type nicState struct {
	weight, bytes uint64
	touched       float64
	lanes         []int
}

// groupByNIC checks the lanes and groups them by NIC, in the order in which the NICs first appear.
func groupByNIC(lanes []Lane) ([]nicState, error) {
	if len(lanes) == 0 || len(lanes) > MaxLanes {
		return nil, invalid("%d lanes: use 1 to %d", len(lanes), MaxLanes)
	}
	var nics []nicState
	byNIC := map[int]int{}
	seen := map[[2]int]bool{}
	for i, l := range lanes {
		if l.NIC < 0 || l.Core < 0 {
			return nil, invalid("lane %d: NIC %d, core %d: neither may be negative", i, l.NIC, l.Core)
		}
		if seen[[2]int{l.NIC, l.Core}] {
			return nil, invalid("lane %d: NIC %d, core %d is there twice: one lane for each pair", i, l.NIC, l.Core)
		}
		seen[[2]int{l.NIC, l.Core}] = true
		if (l.Weight == 0) != (lanes[0].Weight == 0) {
			return nil, invalid("lane %d: weight %d beside weight %d: give every lane its NIC's link speed, or none", i, l.Weight,
				lanes[0].Weight)
		}
		n, known := byNIC[l.NIC]
		if !known {
			n = len(nics)
			byNIC[l.NIC] = n
			nics = append(nics, nicState{weight: max(uint64(l.Weight), 1)})
		}
		if w := max(uint64(l.Weight), 1); w != nics[n].weight {
			return nil, invalid("lane %d: NIC %d has weight %d, and %d on another lane: a NIC has one link speed", i, l.NIC, w,
				nics[n].weight)
		}
		nics[n].lanes = append(nics[n].lanes, i)
		nics[n].bytes += l.Load
	}
	return nics, nil
}

// lightest charges the next chunk to the NIC that would finish it first at its link speed, and among the NIC's lanes to the one
// with the fewest bytes, including other plans'. The first wins a tie. It returns the lane's number.
//
// Any two NICs i and j that no other plan uses thus stay within one chunk of each other: load[i]/weight[i] <=
// (load[j]+chunk)/weight[j].
func (p *Plan) lightest(bytes uint64) int {
	nic := &p.nics[0]
	for i := 1; i < len(p.nics); i++ {
		n := &p.nics[i]
		// The comparison multiplies crosswise in 128 bits, which is exact where a quotient would round.
		ahi, alo := bits.Mul64(n.bytes+bytes, nic.weight)
		bhi, blo := bits.Mul64(nic.bytes+bytes, n.weight)
		if ahi < bhi || ahi == bhi && alo < blo {
			nic = n
		}
	}
	best := nic.lanes[0]
	for _, l := range nic.lanes[1:] {
		if p.lanes[l].bytes+p.lanes[l].Load < p.lanes[best].bytes+p.lanes[best].Load {
			best = l
		}
	}
	p.charge(best, bytes)
	return best
}

// leastTouched returns the lanes of a sparse tensor's chunks, and charges their touches. The most touched chunk goes first, each
// one to the NIC that would finish it first at its link speed, and there to the lane with the fewest touched bytes, and then with
// the fewest bytes. Only touched bytes travel, so that the bytes of these chunks do not count where others are placed. As they fill
// memory all the same, no lane gets more than twice its even share of the tensor's chunks.
func (p *Plan) leastTouched(t *Tensor) []int {
	order, lanes := make([]int, len(t.Touches)), make([]int, len(t.Touches))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(t.Touches[b], t.Touches[a]) })
	room := slices.Repeat([]int{2 * ((len(order)-1)/len(p.lanes) + 1)}, len(p.lanes))
	perChunk, size := t.PerChunk(p.chunkBytes), uint64(t.DType.Size())
	for _, c := range order {
		// The conversion keeps a processor from rounding the product and a sum together, so that all place alike.
		touched := float64(float64(t.Touches[c]) * float64(uint64(t.Width)*size))
		done := func(l int) float64 {
			nic := &p.nics[p.lanes[l].nic]
			return (nic.touched + touched) / float64(nic.weight)
		}
		best := -1
		for l := range p.lanes {
			if room[l] > 0 && (best < 0 || cmp.Or(cmp.Compare(done(l), done(best)), cmp.Compare(p.lanes[l].touched, p.lanes[best].touched),
				cmp.Compare(p.lanes[l].bytes+p.lanes[l].apart, p.lanes[best].bytes+p.lanes[best].apart)) < 0) {
				best = l
			}
		}
		lane := &p.lanes[best]
		room[best]--
		lanes[c] = best
		lane.touched += touched
		p.nics[lane.nic].touched += touched
		lane.apart += min(perChunk, t.Elems-uint64(c)*perChunk) * size
	}
	return lanes
}

func (p *Plan) charge(lane int, bytes uint64) {
	p.lanes[lane].bytes += bytes
	p.nics[p.lanes[lane].nic].bytes += bytes
}

// NICs returns the number of NICs of lanes, counted from 0.
func NICs(lanes []Lane) (n int) {
	for _, l := range lanes {
		n = max(n, l.NIC+1)
	}
	return n
}

// Spread returns the lanes of so many aggregators that each have these lanes. The lanes of the first aggregator come first, and
// NICs are numbered consecutively. Numbers of cores differ between machines, so lanes' positions replace them. Loads of other plans
// are dropped, because each aggregator knows only its own.
func Spread(lanes []Lane, aggregators int) []Lane {
	nics := NICs(lanes)
	var out []Lane
	for a := range aggregators {
		own := slices.Clone(lanes)
		for i := range own {
			own[i].NIC += a * nics
			own[i].Core, own[i].Load = i, 0
		}
		out = append(out, own...)
	}
	return out
}
