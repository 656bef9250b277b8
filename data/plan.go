package data

import "slices"

// Plan has the batch sizes of synchronous workers by step: all batches of a step are of one division of its rows.
type Plan struct {
	batches *Batches
	changes []change       // ascending
	steps   []uint64       // the last that each worker has asked for
	recent  [][recent]took // by worker, and step
}

// recent bounds the steps that a worker is ahead of the batch whose time counts.
const recent = 64

// change is sizes from a step on.
type change struct {
	from  uint64
	sizes []int
}

type took struct{ step, rows uint64 }

// NewPlan returns sizes with a sum. They begin even.
func NewPlan(sum, workers int) (*Plan, error) {
	b, err := NewBatches(sum, workers)
	if err != nil {
		return nil, err
	}
	return &Plan{batches: b, changes: []change{{0, slices.Clone(b.Sizes())}}, steps: make([]uint64, workers),
		recent: make([][recent]took, workers)}, nil
}

// Size returns the rows of a worker's batch in a step.
func (p *Plan) Size(worker int, step uint64) (rows int) {
	for _, c := range p.changes {
		if c.from <= step {
			rows = c.sizes[worker]
		}
	}
	return rows
}

// Dealt records that a worker got so many rows for a step.
func (p *Plan) Dealt(worker int, step, rows uint64) {
	p.steps[worker] = step
	p.recent[worker][step%recent] = took{step, rows}
}

// Took records how long a worker computed its batch of a step. New sizes begin with the first step that nobody has asked for.
func (p *Plan) Took(worker int, step uint64, seconds float64) {
	t := p.recent[worker][step%recent]
	if t.step != step || !p.batches.Took(worker, int(t.rows), seconds) {
		return
	}
	oldest := slices.Min(p.steps)
	for len(p.changes) > 1 && p.changes[1].from <= oldest {
		p.changes = p.changes[1:]
	}
	from := slices.Max(p.steps) + 1
	if last := len(p.changes) - 1; p.changes[last].from == from { // no worker has had a batch of it
		p.changes = p.changes[:last]
	}
	p.changes = append(p.changes, change{from, slices.Clone(p.batches.Sizes())})
}
