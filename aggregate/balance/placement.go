package balance

import (
	"cmp"
	"slices"

	"github.com/rackweave/rackweave/chunk"
)

// Place is a chunk's lane and its index there.
type Place struct {
	Lane  int
	Index uint32
}

// location is the lane of a chunk that has moved or is moving.
type location struct {
	lane int
	to   int // or at, while the chunk does not move
}

const stays = -1

// Placement records the places of a job's chunks.
type Placement struct {
	homes   []int              // by lane: the number of chunks that the plan has placed there
	has     []int              // by lane: the number of chunks now there
	tensors int                // of the plan
	at      map[Place]location // by home
}

// NewPlacement returns the placement of a job without chunks.
func NewPlacement(lanes int) *Placement {
	return &Placement{homes: make([]int, lanes), has: make([]int, lanes), at: map[Place]location{}}
}

// Grow records the chunks that the plan has placed in the job's lanes, from lane first on.
func (m *Placement) Grow(plan *chunk.Plan, first int) {
	for i := range m.homes {
		n := len(plan.LaneChunks(first + i))
		m.has[i] += n - m.homes[i]
		m.homes[i] = n
	}
	m.tensors = plan.NumTensors()
}

// Find returns the place of a chunk, by its home.
func (m *Placement) Find(home Place) Place {
	at, ok := m.at[home]
	if !ok {
		return home
	}
	index, _ := chunk.Moved(home.Index, home.Lane, at.lane, len(m.homes))
	return Place{at.lane, index}
}

// mostMoves bounds the chunks of one choice, because lanes wait for the caller meanwhile.
const mostMoves = 1024

// Choose chooses up to n chunks of a lane for a move to another, at most mostMoves, and returns their indexes there: moved ones
// first, then the plan's last.
func (m *Placement) Choose(from, to, n int) (indexes []uint32) {
	n = min(n, mostMoves)
	if m.tensors >= chunk.MovedBit {
		return nil // beyond the indexes of a moved chunk's control record
	}
	var homes []Place
	for home, at := range m.at {
		if at.lane == from && at.to == stays {
			homes = append(homes, home)
		}
	}
	slices.SortFunc(homes, func(a, b Place) int { return cmp.Or(a.Lane-b.Lane, cmp.Compare(a.Index, b.Index)) })
	homes = homes[:min(n, len(homes))]
	for i := m.homes[from] - 1; i >= 0 && len(homes) < n; i-- {
		home := Place{from, uint32(i)}
		_, known := m.at[home]
		if _, ok := chunk.Moved(home.Index, from, to, len(m.homes)); ok && !known {
			homes = append(homes, home)
		}
	}
	for _, home := range homes {
		m.at[home] = location{lane: from, to: to}
		index, _ := chunk.Moved(home.Index, home.Lane, from, len(m.homes))
		indexes = append(indexes, index)
	}
	return indexes
}

// Arrived records a move, and returns the chunk's index in its new lane.
func (m *Placement) Arrived(from Place, to int) uint32 {
	home := from
	if from.Index&chunk.MovedBit != 0 {
		home.Lane, home.Index = chunk.Home(from.Index, len(m.homes))
	}
	index, _ := chunk.Moved(from.Index, from.Lane, to, len(m.homes))
	if m.at[home] = (location{lane: to, to: stays}); home.Lane == to {
		delete(m.at, home)
	}
	m.has[from.Lane]--
	m.has[to]++
	return index
}

// Count returns the number of chunks in a lane.
func (m *Placement) Count(lane int) int {
	return m.has[lane]
}
