package reduce

import "fmt"

// Check returns an error if the machine's state contradicts itself, for tests. Every slot of a worker must be free or held by
// exactly one message.
func (m *Machine) Check() error {
	if m.State != Running {
		return nil // its messages stay unhandled
	}
	held := make([][]Held, len(m.workers))
	open := 0
	for i := m.folds.first; i != none && open <= len(m.folds.all); i = m.folds.at(i).next {
		open++
		f := m.folds.at(i)
		if f.arrived == 0 {
			return fmt.Errorf("fold %d of chunk %d is open and has no gradient", i, f.chunk)
		}
		if c := m.chunk(f.chunk); f.state == Free || c == nil || c.fold != i {
			return fmt.Errorf("fold %d is %v, and its chunk %d is %+v", i, f.state, f.chunk, c)
		}
		for rank, a := range m.folds.row(i) {
			if a.present {
				held[rank] = append(held[rank], a.Held)
			}
			if a.present && m.workers[rank].requested.has(m.bit(f.chunk)) {
				return fmt.Errorf("chunk %d is requested from worker %d, which has sent it", f.chunk, rank)
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
			if err := w.check(held[rank]); err != nil {
				return fmt.Errorf("worker %d: %w", rank, err)
			}
		}
	}
	return nil
}

func (w *worker) check(held []Held) error {
	if len(held) != w.held() {
		return fmt.Errorf("holds %d slots for %d messages", w.held(), len(held))
	}
	seen := make([]bool, len(w.slots.ring))
	mark := func(slot uint16) error {
		if seen[slot] {
			return fmt.Errorf("slot %d is in use twice", slot)
		}
		seen[slot] = true
		return nil
	}
	staged := 0
	for _, h := range held {
		if h.Staged {
			staged++
		}
		if err := mark(h.Slot); err != nil {
			return err
		}
	}
	for i := range w.slots.Len() {
		if err := mark(*w.slots.at(i)); err != nil {
			return err
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
