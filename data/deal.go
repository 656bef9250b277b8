package data

import "fmt"

// Start is the worker with which the dealing of a group begins.
type Start int

const (
	// Rotate begins a group where the one before ended, so that shards differ by a row at most.
	Rotate Start = iota
	// First begins each group with worker 0, as the thesis does. With many groups the first workers have more rows.
	First
)

// Everyone is the worker of a row that all workers have.
const Everyone = -1

// Deal is a division of the rows into shards, one for each worker. Each group is permuted and dealt in turns, so that the workers'
// shares of it differ by a row at most. With one group the division is random. Figures 6.5 and 6.7 of the thesis.
type Deal struct {
	workers   int
	broadcast bool
	first     []int // by group
	permuted  []permutation
}

// NewDeal returns a division. With broadcast, groups with fewer rows than workers go to everyone. That is the thesis' text; its
// figure 6.7 also gives everyone a group with exactly as many rows.
func NewDeal(sizes Sizes, workers int, start Start, broadcast bool, seed uint64) (*Deal, error) {
	if err := sizes.Check(); err != nil {
		return nil, err
	}
	if n := sizes.Total(); workers < 1 || uint64(workers) > n {
		return nil, fmt.Errorf("%d workers for %d rows: each needs at least one, so use 1 to %d", workers, n, n)
	}
	d := &Deal{workers: workers, broadcast: broadcast}
	next := uint64(0)
	for g, n := range sizes {
		d.first = append(d.first, int(next))
		d.permuted = append(d.permuted, newPermutation(n, hash(seed, uint64(g))))
		if start == Rotate && !d.sparse(g) {
			next = (next + n) % uint64(workers)
		}
	}
	return d, nil
}

// sparse reports whether a group goes to everyone.
func (d *Deal) sparse(g int) bool { return d.broadcast && d.permuted[g].n < uint64(d.workers) }

// Worker returns the worker of a row, or Everyone.
func (d *Deal) Worker(p Place) int {
	if d.sparse(p.Group) {
		return Everyone
	}
	return int((uint64(d.first[p.Group]) + d.permuted[p.Group].at(p.Index)) % uint64(d.workers))
}
