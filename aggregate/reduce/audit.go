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
		if c := m.chunk(f.chunk); f.arrived == 0 || f.state == Free || c == nil || c.fold != i {
			return fmt.Errorf("fold %d is %+v, and its chunk is %+v", i, *f, c)
		}
		for rank, a := range m.folds.row(i) {
			switch {
			case !a.present:
			case m.workers[rank].requested.has(m.bit(f.chunk)):
				return fmt.Errorf("chunk %d is requested from worker %d, which has sent it", f.chunk, rank)
			default:
				held[rank] = append(held[rank], a.Held)
			}
		}
	}
	if open != m.folds.open() {
		return fmt.Errorf("%d folds are listed of %d", open, m.folds.open())
	}
	for i := range m.replies.Len() {
		r := m.replies.at(i)
		held[r.Worker] = append(held[r.Worker], r.Message)
	}
	for rank, a := range m.commit.from {
		if a.present {
			held[rank] = append(held[rank], a.Held)
		}
	}
	for rank := range m.workers {
		if w := &m.workers[rank]; w.state == Attached {
			if err := w.audit(held[rank]); err != nil {
				return fmt.Errorf("worker %d: %w", rank, err)
			}
		}
	}
	return nil
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
