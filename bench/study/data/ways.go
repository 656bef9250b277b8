package data

import (
	"fmt"
	"slices"

	"github.com/rackweave/rackweave/bench/study/task"
	"github.com/rackweave/rackweave/data"
	"github.com/rackweave/rackweave/data/cluster"
)

const (
	workers = 4
	batch   = 8 // rows of a worker
)

// way deals rows to workers.
type way struct {
	name string
	// groups divides the rows. If nil, they are one group.
	groups func(p *problem, seed uint64) ([][]int, error)
	// divide returns the workers' shards. If nil, workers share a queue of all rows, spread by group.
	divide func(groups [][]int, seed uint64) ([][]int, error)
}

func byDigit(p *problem, _ uint64) ([][]int, error) {
	groups := make([][]int, task.Classes)
	for i := range p.train {
		digit := p.train[i].Digit
		groups[digit] = append(groups[digit], i)
	}
	return groups, nil
}

// alike divides the rows into k clusters by what they look like.
func alike(k int) func(*problem, uint64) ([][]int, error) {
	return func(p *problem, seed uint64) ([][]int, error) {
		var x []float64
		for i := range p.train {
			for _, ink := range p.train[i].Ink {
				x = append(x, float64(ink))
			}
		}
		groups, row := make([][]int, k), 0
		all := func(f func([]float64) error) error { return f(x) }
		_, err := cluster.Divide(all, task.Pixels, cluster.Config{K: k, Seed: seed}, func(g int) error {
			groups[g] = append(groups[g], row)
			row++
			return nil
		})
		return groups, err
	}
}

// dealt divides the rows with package data.
func dealt(start data.Start, broadcast bool) func([][]int, uint64) ([][]int, error) {
	return func(groups [][]int, seed uint64) ([][]int, error) {
		d, err := data.NewDeal(sizes(groups), workers, start, broadcast, seed)
		if err != nil {
			return nil, err
		}
		shards := make([][]int, workers)
		for g, rows := range groups {
			for i, row := range rows {
				w := d.Worker(data.Place{Group: g, Index: uint64(i)})
				for to := range shards {
					if w == to || w == data.Everyone {
						shards[to] = append(shards[to], row)
					}
				}
			}
		}
		return shards, nil
	}
}

// inTurn gives worker w every row i with i mod workers = w, as tf.data's shard does.
func inTurn(groups [][]int, _ uint64) ([][]int, error) {
	shards := make([][]int, workers)
	for i, row := range slices.Concat(groups...) {
		shards[i%workers] = append(shards[i%workers], row)
	}
	return shards, nil
}

// skewed gives each worker the rows of two or three digits.
func skewed(groups [][]int, _ uint64) (shards [][]int, err error) {
	rows := slices.Concat(groups...)
	for w := range workers {
		shards = append(shards, rows[w*len(rows)/workers:(w+1)*len(rows)/workers])
	}
	return shards, nil
}

// Other ways are compared with the first one.
var ways = []way{
	{"random", nil, dealt(data.Rotate, false)},
	{"mod", nil, inTurn},
	{"stratified", byDigit, dealt(data.First, false)},
	{"stratified, rotate", byDigit, dealt(data.Rotate, false)},
	{"aware, k=10", alike(10), dealt(data.First, true)},
	{"aware, k=20", alike(20), dealt(data.First, true)},
	{"aware, k=30", alike(30), dealt(data.First, true)},
	{"aware, k=40", alike(40), dealt(data.First, true)},
	{"label-skewed", byDigit, skewed},
	{"queue", nil, nil},
	{"sbatch", byDigit, nil},
	{"sbatch, k=20", alike(20), nil},
}

func sizes(groups [][]int) (s data.Sizes) {
	for _, rows := range groups {
		s = append(s, uint64(len(rows)))
	}
	return s
}

// sequence is orders of rows, one for each epoch.
type sequence struct {
	groups [][]int
	seed   uint64
	number uint64 // of the epoch that rows has
	rows   []int
}

// at returns the row at a position of an epoch.
func (s *sequence) at(epoch, position uint64) int {
	if s.rows == nil || epoch != s.number {
		o := data.NewOrder(sizes(s.groups), nil, s.seed, epoch)
		s.number, s.rows = epoch, s.rows[:0]
		for p, ok := o.Next(); ok; p, ok = o.Next() {
			s.rows = append(s.rows, s.groups[p.Group][p.Index])
		}
	}
	return s.rows[position]
}

// supply deals the rows of a training, as a job's data service does.
type supply struct {
	dealer data.Dealer
	shards []sequence // of the workers, or one of all
	next   [workers]struct {
		seq, epoch uint64
		rows       []int
	}
	sizes  *data.Batches // by the workers' speeds. If nil, all have batches of one size
	counts []int         // of each row: how often it was applied
	short  int           // rows that were applied less often than there are epochs
	rows   int           // that were applied
	pushes int
}

// open prepares a way's dealing.
func (w *way) open(p *problem, c condition, seed uint64) (s *supply, err error) {
	n := len(p.train)
	groups := [][]int{nil}
	for i := range n {
		groups[0] = append(groups[0], i)
	}
	if w.groups != nil {
		if groups, err = w.groups(p, seed); err != nil {
			return nil, err
		}
	}
	s = &supply{shards: []sequence{{groups: groups, seed: seed}}, counts: make([]int, n), short: n}
	if c.balanced {
		if s.sizes, err = data.NewBatches(workers*batch, workers); err != nil {
			return nil, err
		}
	}
	if w.divide == nil {
		s.dealer, err = data.NewLedger(uint64(n), workers, c.synchronous, data.State{})
		return s, err
	}
	shards, err := w.divide(groups, seed)
	if err != nil {
		return nil, err
	}
	s.shards = nil
	for rank, rows := range shards {
		s.shards = append(s.shards, sequence{groups: [][]int{rows}, seed: seed<<8 + uint64(rank) + 1})
	}
	s.dealer, err = data.NewFixed(uint64(n), slices.Repeat([]uint64{batch}, workers), true, data.State{})
	return s, err
}

// Next leases a worker's next batch, in the next epoch if this one is over.
func (s *supply) Next(worker int) ([]int, error) {
	n, count := &s.next[worker], batch
	if s.sizes != nil {
		count = s.sizes.Sizes()[worker]
	}
	for {
		n.seq++
		l, err := s.dealer.Next(worker, n.seq, n.epoch, uint64(count))
		if err != nil {
			return nil, fmt.Errorf("batch %d of worker %d: %w", n.seq, worker, err)
		}
		if l.End {
			n.epoch++
			continue
		}
		n.rows = nil
		for _, r := range l.Ranges {
			for at := r.From; at < r.To; at++ {
				if len(s.shards) == 1 {
					n.rows = append(n.rows, s.shards[0].at(r.Epoch, at))
					continue
				}
				own := &s.shards[worker]
				size := uint64(len(own.groups[0]))
				n.rows = append(n.rows, own.at(at/size, at%size))
			}
		}
		return n.rows, nil
	}
}

// Done counts the rows of a worker's batch.
func (s *supply) Done(worker int, took float64) error {
	n := &s.next[worker]
	if s.sizes != nil {
		s.sizes.Took(worker, len(n.rows), took)
	}
	s.rows, s.pushes = s.rows+len(n.rows), s.pushes+1
	for _, row := range n.rows {
		if s.counts[row]++; s.counts[row] == epochs {
			s.short--
		}
	}
	return s.dealer.Done(worker, n.seq)
}
