package racktest

import (
	"slices"

	"github.com/rackweave/rackweave/aggregate/optim"
)

// Table is a sparse tensor in plain Go. It holds the parameters and state of every row.
type Table struct {
	Width    int
	Standard bool // rows without a gradient take the rule, too
	W        []float32
	states   [optim.MaxStates][]float32
	steps    uint32
	acc      map[int64][]float32 // two-phase: the rows pushed since the last commit, or nil
}

// NewTable returns a table of zeros.
func NewTable(rows, width int, standard bool) *Table {
	k := &Table{Width: width, Standard: standard, W: make([]float32, rows*width)}
	for i := range k.states {
		k.states[i] = make([]float32, rows*width)
	}
	return k
}

// Rows returns the number of rows.
func (k *Table) Rows() int { return len(k.W) / k.Width }

// Row returns a row of values as long as the table.
func (k *Table) Row(of []float32, id int64) []float32 { return of[int(id)*k.Width:][:k.Width] }

// Union returns the rows that workers list, each summed in the order of ranks. values holds every worker's rows, in the order of
// its ids.
func (k *Table) Union(ids [][]int64, values [][]float32) map[int64][]float32 {
	sum := make(map[int64][]float32)
	k.add(sum, ids, values)
	return sum
}

func (k *Table) add(to map[int64][]float32, ids [][]int64, values [][]float32) {
	for rank := range ids {
		for i, id := range ids[rank] {
			row := values[rank][i*k.Width:][:k.Width]
			if to[id] == nil {
				to[id] = slices.Clone(row)
				continue
			}
			for e := range row {
				to[id][e] += row[e]
			}
		}
	}
}

// Step updates the table with summed rows.
func (k *Table) Step(rule optim.Rule, h optim.Hyper, union map[int64][]float32) {
	k.steps++
	scalars, zeros := optim.Derive(rule, h, k.steps), make([]float32, k.Width)
	for id := range int64(k.Rows()) {
		g := union[id]
		if g == nil {
			if g = zeros; !k.Standard {
				continue
			}
		}
		k.Update(rule, &scalars, id, g)
	}
}

// Update updates a row with a gradient.
func (k *Table) Update(rule optim.Rule, scalars *optim.Scalars, id int64, gradient []float32) {
	var states [optim.MaxStates][]float32
	for i := range states {
		states[i] = k.Row(k.states[i], id)
	}
	optim.Update(rule, scalars, k.Row(k.W, id), states, [][]float32{gradient}, nil)
}

// Accumulate adds rows to the gradients that the next commit applies.
func (k *Table) Accumulate(ids [][]int64, values [][]float32) {
	if k.acc == nil {
		k.acc = make(map[int64][]float32)
	}
	k.add(k.acc, ids, values)
}

// sumSq returns the squared norm of the accumulated rows among these, in their order.
func (k *Table) sumSq(rows []int64) (sum float64) {
	for _, id := range rows {
		if row := k.acc[id]; row != nil {
			sum += optim.SumSq(row)
		}
	}
	return sum
}

// Commit ends a two-phase step.
func (k *Table) Commit(rule optim.Rule, h optim.Hyper, skip bool) {
	if k.acc != nil && !skip {
		k.Step(rule, h, k.acc)
	}
	k.acc = nil
}
