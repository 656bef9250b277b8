package aggregate

import (
	"cmp"
	"slices"
	"sync"

	"github.com/rackweave/rackweave/chunk"
)

// Chunks move between a job's lanes while the job runs, without a halt. A chunk that is to move does so when every worker's
// gradient is there (package reduce): its lane does the arithmetic, hands the chunk to the other lane, and tells each worker ahead
// of its answer. A worker sends the chunk to the other lane from its next operation on, so that lane has it before the first
// message about it. Where the plan has placed a chunk stays its home, which a guest's index names: no two ends have to agree on a
// table.

// place is a chunk's place: a lane, and the index there.
type place struct {
	lane  int
	index uint32
}

// location is where a chunk is that is not at home, or is about to move.
type location struct {
	lane int
	to   int // stays: none
}

const stays = -1

// moves is where a job's chunks are. A job that moves none has its plan alone.
type moves struct {
	mu      sync.Mutex
	homes   []int              // by lane: chunks that the plan has placed there
	has     []int              // by lane: chunks that are there
	tensors int                // of the plan
	at      map[place]location // by home
	bytes   []int64            // by lane: what it has more than the plan says
}

func (m *moves) open(lanes int) {
	m.homes, m.has, m.bytes, m.at = make([]int, lanes), make([]int, lanes), make([]int64, lanes), map[place]location{}
}

// grow takes note of what the plan has placed in the job's lanes, from lane first on.
func (m *moves) grow(plan *chunk.Plan, first int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for i := range m.homes {
		n := len(plan.LaneChunks(first + i))
		m.has[i] += n - m.homes[i]
		m.homes[i] = n
	}
	m.tensors = plan.NumTensors()
}

// find returns where a chunk is, by its home.
func (m *moves) find(home place) place {
	m.mu.Lock()
	defer m.mu.Unlock()
	at, ok := m.at[home]
	if !ok {
		return home
	}
	index, _ := chunk.Moved(home.index, home.lane, at.lane, len(m.homes))
	return place{at.lane, index}
}

// mostMoves bounds the chunks that are chosen at once: lanes wait meanwhile.
const mostMoves = 1024

// choose takes note that up to n chunks of a lane are to move to another, mostMoves at most, and returns their indexes there:
// guests first, then the plan's last.
func (m *moves) choose(from, to, n int) (indexes []uint32) {
	n = min(n, mostMoves)
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.tensors >= chunk.GuestBit {
		return nil // more than a guest's control record can name
	}
	var homes []place
	for home, at := range m.at {
		if at.lane == from && at.to == stays {
			homes = append(homes, home)
		}
	}
	slices.SortFunc(homes, func(a, b place) int { return cmp.Or(a.lane-b.lane, cmp.Compare(a.index, b.index)) })
	homes = homes[:min(n, len(homes))]
	for i := m.homes[from] - 1; i >= 0 && len(homes) < n; i-- {
		home := place{from, uint32(i)}
		_, known := m.at[home]
		if _, ok := chunk.Moved(home.index, from, to, len(m.homes)); ok && !known {
			homes = append(homes, home)
		}
	}
	for _, home := range homes {
		m.at[home] = location{lane: from, to: to}
		index, _ := chunk.Moved(home.index, home.lane, from, len(m.homes))
		indexes = append(indexes, index)
	}
	return indexes
}

// arrived takes note of a move, and returns the chunk's index in its lane.
func (m *moves) arrived(from place, to int, bytes int64) uint32 {
	m.mu.Lock()
	defer m.mu.Unlock()
	home := from
	if from.index&chunk.GuestBit != 0 {
		home.lane, home.index = chunk.Home(from.index, len(m.homes))
	}
	index, _ := chunk.Moved(from.index, from.lane, to, len(m.homes))
	if m.at[home] = (location{lane: to, to: stays}); home.lane == to {
		delete(m.at, home)
	}
	m.has[from.lane]--
	m.has[to]++
	m.bytes[from.lane] -= bytes
	m.bytes[to] += bytes
	return index
}

// count is how many chunks a lane has.
func (m *moves) count(lane int) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.has[lane]
}

// close takes what lanes have more than the plan says off their counts.
func (m *moves) close(lanes []*Lane) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for i, l := range lanes {
		l.placed.Add(-m.bytes[i])
		m.bytes[i] = 0
	}
}
