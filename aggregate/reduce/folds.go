package reduce

// none stands for no fold.
const none = -1

// FoldState is the state of a fold.
type FoldState uint8

const (
	Free      FoldState = iota // not in use
	Gathering                  // some gradients are missing
	Complete                   // all gradients have arrived, and it waits for room to answer
	Above                      // handed to the reducer above the rack
	Returned                   // the reducer above has its result, and it waits for room to answer
	Recalled                   // the reducer above gave it back, and its gradients must be sent again
	Waiting                    // gradients wait for their sets
)

func (s FoldState) String() string {
	return [...]string{"free", "gathering", "complete", "above", "returned", "recalled", "waiting"}[s]
}

type fold struct {
	since     int64 // ns, the first arrival
	chunk     uint32
	arrived   int    // number of gradients that have arrived
	rotation  uint32 // the rotation that last chose the fold (stall.go)
	state     FoldState
	broadcast bool

	prev, next int32 // open folds in the order in which they began, or none
}

type arrival struct {
	Held
	present bool
}

// folds holds as many folds as can be in progress at once. It owns the relation between workers and the folds that have their
// gradients, so that its counts cannot disagree.
type folds struct {
	all         []fold
	arrivals    []arrival // a row of workers per fold
	unused      []int32
	first, last int32 // ends of the list of open folds
	of          []int // by worker: the number of folds with its gradient
}

func newFolds(workers int) folds {
	return folds{first: none, last: none, of: make([]int, workers)}
}

func (p *folds) grow(n int) {
	for i := len(p.all); i < n; i++ {
		p.all = append(p.all, fold{})
		p.unused = append(p.unused, int32(i))
	}
	p.arrivals = append(p.arrivals, make([]arrival, max(0, n*len(p.of)-len(p.arrivals)))...)
}

func (p *folds) open() int { return len(p.all) - len(p.unused) }

func (p *folds) at(i int32) *fold { return &p.all[i] }

func (p *folds) row(i int32) []arrival {
	n := len(p.of)
	return p.arrivals[int(i)*n : (int(i)+1)*n]
}

func (p *folds) has(i int32, worker int) bool { return p.arrivals[int(i)*len(p.of)+worker].present }

// begin opens a fold. An unused fold always exists, because every open fold holds a slot of some worker.
func (p *folds) begin(chunk uint32, now int64) int32 {
	i := p.unused[len(p.unused)-1]
	p.unused = p.unused[:len(p.unused)-1]
	p.all[i] = fold{since: now, chunk: chunk, state: Gathering, prev: p.last, next: none}
	*p.link(p.last) = i
	p.last = i
	return i
}

func (p *folds) join(i int32, worker int, h Held) {
	p.row(i)[worker] = arrival{h, true}
	p.all[i].arrived++
	p.of[worker]++
}

func (p *folds) leave(i int32, worker int) Held {
	a := &p.row(i)[worker]
	a.present = false
	p.all[i].arrived--
	p.of[worker]--
	return a.Held
}

// end closes a fold. Its arrivals stay readable until another fold replaces it.
func (p *folds) end(i int32) {
	f := &p.all[i]
	f.state, f.arrived = Free, 0
	for worker, row := 0, p.row(i); worker < len(row); worker++ {
		if row[worker].present {
			row[worker].present = false
			p.of[worker]--
		}
	}
	*p.link(f.prev) = f.next
	if f.next == none {
		p.last = f.prev
	} else {
		p.all[f.next].prev = f.prev
	}
	p.unused = append(p.unused, i)
}

// link returns the link to the fold after i, or to the first fold without one before.
func (p *folds) link(i int32) *int32 {
	if i == none {
		return &p.first
	}
	return &p.all[i].next
}
