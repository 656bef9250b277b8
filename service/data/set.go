package data

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"

	deal "github.com/rackweave/rackweave/data"
	"github.com/rackweave/rackweave/data/manifest"
	"github.com/rackweave/rackweave/service/api"
)

// Errors, wrapped.
var (
	ErrReopen  = errors.New("open the set again")
	ErrUnknown = errors.New("no such set is open")
	ErrFull    = errors.New("too many")
	errBusy    = errors.New("no memory for the batch at present")
)

// set is a training set of a job.
type set struct {
	mu       sync.Mutex
	s        *Server
	name     string
	closed   bool
	terms    *api.OpenDataRequest // on which all workers agree. If nil, nobody has opened the set
	first    int                  // the worker that set the terms
	manifest *manifest.Manifest   // if nil, rows are known by number alone
	giveBack func()               // what was charged
	dealer   deal.Dealer
	plan     *deal.Plan // if nil, batch sizes stay
	epoch    uint64     // the last that was dealt from
	draws    []*api.GroupDraws
	cursor   cursor
	restored *api.DataState // with which the workers have yet to begin. Without a name it is the beginning
	sessions []session      // by rank
}

// session is a worker's use of a set.
type session struct {
	Caller
	open  bool
	begun bool   // has had a batch since the workers began together
	why   error  // it ended
	seq   uint64 // of the last batch
	told  uint64 // up to which the worker has reported batches
	done  uint64 // the batches up to it were applied
	dealt uint64 // rows
}

// open opens the set for a worker.
func (st *set) open(c *Caller, terms *api.OpenDataRequest, from *api.DataState) error {
	if st.closed {
		return fmt.Errorf("%w: the job is over", ErrUnknown)
	}
	others, w := false, session{}
	for rank := range st.sessions {
		others = others || rank != c.Rank && st.sessions[rank].open
	}
	if c.Rank < len(st.sessions) {
		w = st.sessions[c.Rank]
	}
	err := st.differs(c, terms)
	switch {
	case err != nil && others:
		return err
	case err == nil && w.open && w.Incarnation == c.Incarnation && w.seq == 0: // asks twice
		return nil
	case err != nil || !others || !terms.Asynchronous && (w.begun || w.seq > 0):
		if err := st.begin(c, terms, from); err != nil {
			return err
		}
	default:
		st.end(c.Rank, nil)
	}
	st.sessions[c.Rank] = session{Caller: *c, open: true}
	return nil
}

// differs returns why a worker cannot open the set as it is.
func (st *set) differs(c *Caller, terms *api.OpenDataRequest) error {
	if st.terms == nil {
		return ErrUnknown
	}
	names := slices.DeleteFunc(slices.Clone(agreed), func(n string) bool {
		return n == "rows" && terms.Manifest != "" || n == "digest" && len(terms.Digest) == 0
	})
	if name, have, mine := differ(st.terms, terms, names...); name != "" {
		return fmt.Errorf("worker %d opens it with %s %v, and worker %d has opened it with %v: all open it alike", c.Rank, name, mine, st.first, have)
	}
	return nil
}

// begin lets all workers begin, as one of them asks. What others hold is dealt again, and they must open the set again.
func (st *set) begin(c *Caller, terms *api.OpenDataRequest, from *api.DataState) (err error) {
	given := from
	if from == nil && (st.restored != nil || st.terms != nil) {
		if from, err = st.state(); err != nil {
			return fmt.Errorf("%w, or give a state to go on from", err)
		}
	}
	next := &set{terms: terms, first: c.Rank, manifest: st.manifest, giveBack: st.giveBack}
	fresh := st.differs(c, terms) != nil
	if fresh {
		if err = next.acquire(st.s, c); err != nil {
			return err
		}
	}
	err = next.complete(from)
	if err == nil && st.s.dealer != nil {
		next.dealer, err = st.s.dealer(c.Job, terms, given, next.dealer)
	}
	if err != nil {
		if fresh {
			next.release()
		}
		return err
	}
	if fresh && st.terms != nil {
		st.release()
	}
	st.fence(int(terms.Workers), fmt.Errorf("worker %d begins again, and all workers with it: %w", c.Rank, ErrReopen))
	st.terms, st.first, st.manifest, st.giveBack, st.restored, st.cursor = terms, c.Rank, next.manifest, next.giveBack, nil, cursor{}
	st.dealer, st.plan, st.epoch, st.draws = next.dealer, next.plan, next.epoch, next.draws
	return nil
}

// complete makes the dealer of a set with terms, which goes on from a state.
func (st *set) complete(from *api.DataState) error {
	t := st.terms
	if t.Manifest != "" {
		if err := st.fits(); err != nil {
			return err
		}
	}
	if from.GetSet() == "" {
		from = nil // the beginning, whatever else it holds
	}
	s, err := st.goOn(from)
	if err != nil {
		return err
	}
	st.epoch, st.draws = s.Epoch, from.GetDraws()
	if t.Balance {
		if st.plan, err = deal.NewPlan(int(t.Batch*t.Workers), int(t.Workers)); err != nil {
			return err
		}
	}
	if t.Deal == dealQueue {
		st.dealer, err = deal.NewLedger(t.Rows, int(t.Workers), !t.Asynchronous, s)
	} else {
		batches := slices.Repeat([]uint64{uint64(t.Batch)}, int(t.Workers))
		st.dealer, err = deal.NewFixed(t.Rows, batches, t.Deal == dealShards, s)
	}
	return err
}

// close drops the set of a job that is over.
func (st *set) close() {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.closed = true
	if st.terms != nil {
		st.release()
	}
}

// fence ends all sessions, and makes room for those of so many workers.
func (st *set) fence(workers int, why error) {
	old := st.sessions
	st.sessions = make([]session, workers)
	for rank := range min(workers, len(old)) {
		if old[rank].open || old[rank].why != nil {
			st.sessions[rank].why = why
		}
	}
}

// end takes a session's leases back.
func (st *set) end(rank int, why error) {
	if w := &st.sessions[rank]; w.open {
		st.dealer.Lose(rank)
		*w = session{begun: w.begun || w.seq > 0, why: why}
	}
}

// of returns the caller's session.
func (st *set) of(c *Caller) (*session, error) {
	if st.closed || c.Rank >= len(st.sessions) {
		return nil, fmt.Errorf("set %q of job %q: %w: open it first", st.name, c.Job, ErrUnknown)
	}
	w, why := &st.sessions[c.Rank], ErrReopen
	switch {
	case w.open && w.Incarnation == c.Incarnation:
		return w, nil
	case w.open:
		why = fmt.Errorf("another run of worker %d has opened it: %w", c.Rank, ErrReopen)
	case w.why != nil:
		why = w.why
	}
	return nil, fmt.Errorf("set %q of job %q: %w", st.name, c.Job, why)
}

// batch returns the size of a worker's batch.
func (st *set) batch(rank int, seq uint64) int {
	if st.plan != nil {
		return st.plan.Size(rank, seq)
	}
	return int(st.terms.GetBatch())
}

// next settles a worker's batches, and leases the next to it.
func (st *set) next(c *Caller, w *session, r *api.NextRowsRequest) (*api.NextRowsResponse, error) {
	if err := st.settle(w, r.Done, r.Seconds); err != nil || r.Seq == 0 {
		return &api.NextRowsResponse{}, err
	}
	count := st.batch(w.Rank, r.Seq)
	if c.Account != nil {
		if err := c.Call(answerCost * int64(count)); err != nil {
			return nil, fmt.Errorf("%w: %w", errBusy, err)
		}
	}
	l, err := st.dealer.Next(w.Rank, r.Seq, r.Epoch, uint64(count))
	if err != nil {
		return nil, err
	}
	rows := l.Rows()
	if r.Seq > w.seq {
		w.seq, w.dealt = r.Seq, w.dealt+rows
		if st.plan != nil {
			st.plan.Dealt(w.Rank, r.Seq, rows)
		}
		for _, at := range l.Ranges {
			st.epoch = max(st.epoch, at.Epoch)
		}
	}
	out := &api.NextRowsResponse{End: l.End, Weight: float64(rows) / float64(st.terms.Batch)}
	out.Rows, err = st.ids(w.Rank, l)
	return out, err
}

// settle records that a worker's batches up to a number were applied. A step of synchronous workers is applied for all at once.
func (st *set) settle(w *session, done uint64, seconds float64) error {
	switch {
	case done <= w.told:
		return nil
	case done > w.seq:
		return fmt.Errorf("done with batch %d: %w: the last is %d", done, deal.ErrNotHeld, w.seq)
	}
	w.told = done
	for rank := range st.sessions {
		o := &st.sessions[rank]
		if rank != w.Rank && st.terms.Asynchronous {
			continue
		}
		for ; o.done < min(done, o.seq); o.done++ {
			if err := st.dealer.Done(rank, o.done+1); err != nil {
				return err
			}
		}
	}
	if st.plan != nil && seconds > 0 {
		st.plan.Took(w.Rank, done, seconds)
	}
	return nil
}

// cursor holds an order, at the position where the last batch ended.
type cursor struct {
	worker    int // of the shard. If -1, of the whole set
	epoch, at uint64
	order     *deal.Order
}

// place returns the place at a position of an epoch, of a shard or of the whole set.
func (st *set) place(worker int, epoch, at uint64) deal.Place {
	c := &st.cursor
	if c.order == nil || c.worker != worker || c.epoch != epoch {
		var draws deal.Sizes
		for _, d := range st.draws {
			if d.Epoch <= epoch {
				draws = d.Rows
			}
		}
		seed := st.terms.Seed + uint64(worker+1)*0x9e3779b97f4a7c15 // shards do not repeat each other
		*c = cursor{worker, epoch, 0, deal.NewOrder(st.sizes(worker), draws, seed, epoch)}
	}
	if c.at != at {
		c.order.Seek(at)
	}
	p, _ := c.order.Next()
	c.at = at + 1
	return p
}

// ids returns the numbers of a batch's rows, little-endian.
func (st *set) ids(rank int, l deal.Lease) ([]byte, error) {
	out := make([]byte, 0, 8*l.Rows())
	worker, total := -1, uint64(0)
	if st.terms.Deal == dealShards {
		worker, total = rank, st.sizes(rank).Total()
	}
	for _, r := range l.Ranges {
		for p := r.From; p < r.To; p++ {
			epoch, at := r.Epoch, p
			if worker >= 0 { // a shard's order goes on without end
				epoch, at = p/total, p%total
			}
			row, err := st.row(worker, st.place(worker, epoch, at))
			if err != nil {
				return nil, fmt.Errorf("set %q: %w", st.name, err)
			}
			out = binary.LittleEndian.AppendUint64(out, row)
		}
	}
	return out, nil
}

// favour lets epochs that have not begun take more rows of groups with high losses.
func (st *set) favour(losses []float64) error {
	rows, err := deal.Favour(st.sizes(-1), losses, st.terms.Favour)
	if err != nil {
		return fmt.Errorf("set %q: %w", st.name, err)
	}
	state, err := st.state() // without the draws of epochs that are over
	if err != nil {
		return err
	}
	from := st.epoch + 1
	st.draws = append(slices.DeleteFunc(state.Draws, func(d *api.GroupDraws) bool { return d.Epoch == from }),
		&api.GroupDraws{Epoch: from, Rows: rows})
	return nil
}
