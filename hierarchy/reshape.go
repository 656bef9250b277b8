package hierarchy

import (
	"fmt"
	"slices"
)

// A job changes its shape between two epochs of each chunk, the same two in all racks. First every rack holds: it begins no
// further epoch of any chunk, and says which it has begun last. Then each chunk turns at the epoch after the last that any rack
// has begun. Only when all racks know that, they go on. So a rack never hears of an epoch in a shape that it does not expect.
// Epochs that some racks have begun are finished as they began.

// Follows returns why chunks that travel in one shape cannot travel in another from some epoch on: their owners, who have the
// parameters and optimizer state, stay.
func (t Topology) Follows(now Shape) error {
	was := t
	was.Shape = now
	if err := t.Check(); err != nil {
		return err
	}
	if !slices.Equal(was.Owners(), t.Owners()) {
		return fmt.Errorf("%w: racks %v own chunks in shape %v and racks %v in shape %v: a job that runs keeps its owners", ErrCluster,
			was.Owners(), now, t.Owners(), t.Shape)
	}
	return nil
}

// Began returns the last epoch of each chunk that this rack has begun. It fails where chunks cannot turn now: what they broadcast
// has no epoch of its own, and a chunk that was not exchanged since it was to turn the last time cannot turn again.
func (m *Reducer) Began() ([]uint8, error) {
	began := make([]uint8, len(m.chunks))
	for i := range m.chunks {
		c := m.at(uint32(i))
		switch {
		case c.broadcast && (c.own || c.have > 0):
			return nil, fmt.Errorf("chunk %d of lane %d is being broadcast: try again after that", i, m.cfg.Lane)
		case c.shape != c.to:
			return nil, fmt.Errorf("chunk %d of lane %d has not gone over to shape %v yet: try again after its next exchange", i, m.cfg.Lane,
				c.to)
		}
		began[i] = c.epoch
		if c.own {
			began[i] = after(c.epoch)
		}
	}
	return began, nil
}

// Begins reports whether this rack's sum of a chunk would be the first of an epoch after one that was begun.
func (m *Reducer) Begins(index uint32, began uint8) bool { return m.chunks[index].epoch == began }

// TurnAt returns the epochs from which on chunks turn, given the last that were begun, by rack. Racks are at most one apart.
func TurnAt(began [][]uint8) ([]uint8, error) {
	turns := slices.Clone(began[0])
	for rack, epochs := range began {
		if len(epochs) != len(turns) {
			return nil, fmt.Errorf("rack %d has %d chunks, rack 0 %d: try again when all have registered them", rack, len(epochs), len(turns))
		}
		for i, e := range epochs {
			if e == after(turns[i]) {
				turns[i] = e
			}
		}
	}
	for i := range turns {
		for rack, epochs := range began {
			if after(epochs[i]) != turns[i] && epochs[i] != turns[i] {
				return nil, fmt.Errorf("rack %d has begun epoch %d of chunk %d, another %d: they are too far apart", rack, epochs[i], i, turns[i])
			}
		}
		turns[i] = after(turns[i])
	}
	return turns, nil
}

// Turn has each chunk take another shape from an epoch on.
func (m *Reducer) Turn(s Shape, turns []uint8) error {
	to := m.cfg.Topology
	to.Shape = s
	if err := to.Follows(m.cfg.Shape); err != nil {
		return err
	}
	if len(turns) != len(m.chunks) {
		return fmt.Errorf("%d chunks to turn of %d in lane %d", len(turns), len(m.chunks), m.cfg.Lane)
	}
	m.plan(s)
	m.cfg.Shape = s
	for i := range m.chunks {
		m.chunks[i].to, m.chunks[i].turn = s, turns[i]
	}
	return nil
}
