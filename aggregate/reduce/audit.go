package reduce

import (
	"fmt"
	"slices"
)

// Audit returns an error if the machine's state contradicts itself, for tests. Every slot of a worker must be free or held by
// exactly one message.
func (m *Machine) Audit() error {
	if m.State != Running {
		return nil // its messages stay unhandled
	}
	held := make([][]Held, len(m.workers))
	open := 0
	for i := m.folds.first; i != none && open <= len(m.folds.all); i = m.folds.at(i).next {
		open++
		f := m.folds.at(i)
		if c := &m.chunks[f.chunk]; f.arrived == 0 || f.state == Free || c.fold != i {
			return fmt.Errorf("fold %d is %+v, and its chunk is %+v", i, *f, *c)
		}
		for rank, a := range m.folds.row(i) {
			switch {
			case !a.present:
			case m.workers[rank].requested.has(int(f.chunk)):
				return fmt.Errorf("chunk %d is requested from worker %d, which has sent it", f.chunk, rank)
			default:
				held[rank] = append(held[rank], a.Held)
			}
		}
	}
	if open != m.folds.open() {
		return fmt.Errorf("%d folds are listed of %d", open, m.folds.open())
	}
	for rank := range m.workers {
		w := &m.workers[rank]
		for i := range w.replies.Len() {
			held[rank] = append(held[rank], w.replies.at(i).Message)
		}
	}
	for rank, a := range m.commit.from {
		if a.present {
			held[rank] = append(held[rank], a.Held)
		}
	}
	kept := make([]int, len(m.workers))
	m.rows.audit(held, kept)
	if used, known := m.Blocks(), m.rows.reachable(); !slices.Equal(used, known) {
		return fmt.Errorf("blocks %v are in use, and streams have blocks %v", used, known)
	}
	for rank := range m.workers {
		if w := &m.workers[rank]; w.state == Attached {
			if w.kept != kept[rank] {
				return fmt.Errorf("worker %d keeps %d slots for %d lists", rank, w.kept, kept[rank])
			}
			if err := w.audit(held[rank]); err != nil {
				return fmt.Errorf("worker %d: %w", rank, err)
			}
		}
	}
	return nil
}

// audit appends the messages that streams hold to held, and counts the lists without messages by worker.
func (p *rowStreams) audit(held [][]Held, kept []int) {
	for i := range p.all {
		for rank := range held {
			r := &p.all[i].of[rank]
			for _, l := range []slots{r.gradients, r.fetches} {
				if l.first == none {
					kept[rank]++
				}
				for slot := l.first; slot != none; slot = p.at(rank, slot).next {
					held[rank] = append(held[rank], p.at(rank, slot).Held)
				}
			}
		}
	}
}

// Blocks returns the places of the blocks of rows that hold a result buffer, for tests.
func (m *Machine) Blocks() (used []int32) {
	for i := range int32(len(m.rows.blocks)) {
		if !slices.Contains(m.rows.unused, i) {
			used = append(used, i)
		}
	}
	return used
}

// reachable returns the places of the blocks that streams fill, or that workers will take, in order.
func (p *rowStreams) reachable() (places []int32) {
	for i := range p.all {
		s := &p.all[i]
		if s.block != none {
			places = append(places, s.block)
		}
		for rank := range s.of {
			for b := s.of[rank].next; b != none; b = p.blocks[b].next {
				places = append(places, b)
			}
		}
	}
	slices.Sort(places)
	return slices.Compact(places)
}

func (w *worker) audit(held []Held) error {
	if len(held) != w.held() {
		return fmt.Errorf("holds %d slots for %d messages", w.held(), len(held))
	}
	staged := 0
	var slots []uint16
	for i := range w.slots.Len() {
		slots = append(slots, *w.slots.at(i))
	}
	for _, h := range held {
		slots = append(slots, h.Slot)
		if h.Staged {
			staged++
		}
	}
	slices.Sort(slots)
	for i, slot := range slots {
		if int(slot) != i {
			return fmt.Errorf("slots %v are free or held, one of them twice", slots)
		}
	}
	if staged != w.staged {
		return fmt.Errorf("%d messages lie in staging buffers, counted %d", staged, w.staged)
	}
	if w.unanswered > requestsAtOnce {
		return fmt.Errorf("was sent %d requests without a sign of life", w.unanswered)
	}
	return nil
}
