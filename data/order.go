package data

import (
	"container/heap"
	"fmt"
	"math"
	"math/bits"
)

// MaxRows bounds the rows of a data set, and the rows that an epoch deals.
const MaxRows = 1 << 40

// Sizes are the numbers of rows of the groups that a data set is divided into. One group is the whole.
type Sizes []uint64

// Total returns the number of rows.
func (s Sizes) Total() (n uint64) {
	for _, size := range s {
		n += size
	}
	return n
}

// Check returns an error if the groups have too many rows, or none.
func (s Sizes) Check() error {
	left := uint64(MaxRows)
	for g, size := range s {
		if size > left {
			return fmt.Errorf("group %d has %d rows: a data set has at most 2^40", g, size)
		}
		left -= size
	}
	if left == MaxRows {
		return fmt.Errorf("%d groups without a row: there is nothing to train on", len(s))
	}
	return nil
}

// Place is a row of a group: its number among the group's rows in ascending order.
type Place struct {
	Group int
	Index uint64
}

// Order is the sequence of an epoch. Each group is permuted. The place j of n of a group comes at (j + u) / n of the epoch, with u
// drawn from [0, 1), so that every stretch of the epoch has each group in proportion to its size. One group is a plain permutation.
//
// All is computed from the seed and the number of the epoch, in integers: every machine has the same sequence.
type Order struct {
	seed, epoch uint64
	groups      []group
	heads       []head // a heap: the next place of each group
	position    uint64 // the next one
	total       uint64
}

type group struct {
	number      int
	size, draws uint64
	cycle       uint64 // of permuted
	permuted    permutation
	begun       bool
}

// head is a group's place that comes next, by key over draws of the epoch.
type head struct {
	key, draws uint64
	group      int // in groups
}

// NewOrder returns the order of an epoch. draws are the numbers of rows that the epoch takes of each group: if nil, each row once.
// A group of fewer rows than draws is permuted several times.
func NewOrder(sizes, draws Sizes, seed, epoch uint64) *Order {
	if draws == nil {
		draws = sizes
	}
	o := &Order{seed: seed, epoch: epoch, total: draws.Total()}
	for g, n := range draws {
		if n > 0 && sizes[g] == 0 {
			panic(fmt.Sprintf("data: an order of %d rows from group %d, which has none", n, g))
		}
		if n > 0 {
			o.groups = append(o.groups, group{number: g, size: sizes[g], draws: n})
		}
	}
	o.Seek(0)
	return o
}

// Len returns the number of positions.
func (o *Order) Len() uint64 { return o.total }

// jitterBits is the resolution of u.
const jitterBits = 24

// key returns j + u, in units of 2^-24.
func (o *Order) key(g *group, j uint64) uint64 {
	return j<<jitterBits | hash(o.seed, o.epoch, uint64(g.number), j)>>(64-jitterBits)
}

// before returns how many places of a group come before x / 2^64 of the epoch.
func (o *Order) before(g *group, x uint64) uint64 {
	hi, lo := bits.Mul64(x, g.draws)
	end := hi<<jitterBits | lo>>(64-jitterBits) // keys below end + 1, or end if the rest is 0, come before x
	j := end >> jitterBits
	if j < g.draws {
		k := o.key(g, j)
		if k < end || k == end && lo<<jitterBits != 0 {
			j++
		}
	}
	return j
}

// Seek makes a position the next one. It takes a time that grows with the number of groups alone, and less if the position is a
// little further on.
func (o *Order) Seek(position uint64) {
	if position > o.total {
		panic(fmt.Sprintf("data: position %d of an order of %d", position, o.total))
	}
	if o.heads == nil || position < o.position || position-o.position > uint64(len(o.groups)) {
		o.jump(position)
	}
	for ; o.position < position; o.position++ {
		o.pop()
	}
}

// few is the number of places that cost less to pass one by one than another look at all groups, in groups.
const few = 8

// jump makes the next position one that is at most a few places before another.
func (o *Order) jump(position uint64) {
	groups := uint64(len(o.groups))
	// Before a moment come as many places as its share of all, and at most one of each group more or less.
	low, high, passed := uint64(0), uint64(math.MaxUint64), uint64(0)
	if position > groups {
		low, _ = bits.Div64(position-groups, 0, o.total)
		passed = o.passed(low)
	}
	if position+groups < o.total {
		high, _ = bits.Div64(position+groups, 0, o.total)
	}
	for high-low > 1 && position-passed > few+groups/few {
		moment := low + (high-low)/2
		if n := o.passed(moment); n <= position {
			low, passed = moment, n
		} else {
			high = moment
		}
	}
	o.heads = make([]head, 0, groups)
	for i := range o.groups {
		g := &o.groups[i]
		if j := o.before(g, low); j < g.draws {
			o.heads = append(o.heads, head{o.key(g, j), g.draws, i})
		}
	}
	heap.Init((*headHeap)(o))
	o.position = passed
}

// passed returns how many places come before x / 2^64 of the epoch.
func (o *Order) passed(x uint64) (n uint64) {
	for i := range o.groups {
		n += o.before(&o.groups[i], x)
	}
	return n
}

// pop takes the next place, as a group and a number among its draws.
func (o *Order) pop() (g *group, j uint64) {
	h := &o.heads[0]
	g, j = &o.groups[h.group], h.key>>jitterBits
	if j+1 < g.draws {
		h.key = o.key(g, j+1)
		heap.Fix((*headHeap)(o), 0)
	} else {
		heap.Pop((*headHeap)(o))
	}
	return g, j
}

// Next returns the place at the next position. It reports false at the end.
func (o *Order) Next() (p Place, ok bool) {
	if len(o.heads) == 0 {
		return Place{}, false
	}
	g, j := o.pop()
	o.position++
	if cycle := j / g.size; !g.begun || cycle != g.cycle {
		g.begun, g.cycle = true, cycle
		g.permuted = newPermutation(g.size, hash(o.seed, o.epoch, uint64(g.number), cycle, ^uint64(0)))
	}
	return Place{g.number, g.permuted.at(j % g.size)}, true
}

// headHeap is the heap of an order's heads, by the moments of their places.
type headHeap Order

func (h *headHeap) Len() int      { return len(h.heads) }
func (h *headHeap) Swap(i, k int) { h.heads[i], h.heads[k] = h.heads[k], h.heads[i] }
func (h *headHeap) Push(any)      { panic("data: an order has a head for each group") }

func (h *headHeap) Pop() any {
	h.heads = h.heads[:len(h.heads)-1]
	return nil
}

func (h *headHeap) Less(i, k int) bool {
	a, b := &h.heads[i], &h.heads[k]
	ahi, alo := bits.Mul64(a.key, b.draws)
	bhi, blo := bits.Mul64(b.key, a.draws)
	return ahi < bhi || ahi == bhi && (alo < blo || alo == blo && a.group < b.group)
}
