package data

import (
	"errors"
	"fmt"
	"math"
	"sync"

	deal "github.com/rackweave/rackweave/data"
	"github.com/rackweave/rackweave/service/api"
)

// set is a training set of a job.
type set struct {
	place
	job      string
	s        *Server
	mu       sync.Mutex // of what follows. It comes before the server's, and the journal's
	closed   bool
	*dealing                // since the workers began together. If nil, nobody has opened the set
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
	done  uint64 // up to which the worker has reported batches
	dealt uint64 // rows
}

// asksTwice reports whether a caller has opened the set, and done nothing since.
func (st *set) asksTwice(c *Caller) bool {
	if c.Rank >= len(st.sessions) {
		return false
	}
	w := &st.sessions[c.Rank]
	return w.open && w.Incarnation == c.Incarnation && w.seq == 0
}

// open opens the set for a worker.
func (st *set) open(c *Caller, terms *api.OpenDataRequest) error {
	others, begun := false, false
	for rank := range st.sessions {
		w := &st.sessions[rank]
		others = others || rank != c.Rank && w.open
		begun = begun || rank == c.Rank && (w.begun || w.seq > 0)
	}
	err := st.differs(c, terms)
	switch {
	case err != nil && others:
		return err
	case err == nil && st.asksTwice(c):
		return nil
	case err != nil || !others || !terms.Asynchronous && begun:
		if err := st.begin(c, terms, err == nil); err != nil {
			return err
		}
	default:
		st.end(c.Rank, nil)
	}
	st.sessions[c.Rank] = session{Caller: *c, open: true}
	return nil
}

// begin lets all workers begin, as one of them asks, with the terms as before or with others. What others hold is dealt again, and
// they must open the set again.
func (st *set) begin(c *Caller, terms *api.OpenDataRequest, alike bool) (err error) {
	from, earlier := terms.State, st.dealing
	if !alike || from != nil || st.restored != nil {
		earlier = nil
	}
	if from == nil && (st.restored != nil || st.dealing != nil) {
		if from, err = st.state(nil); err != nil {
			return fmt.Errorf("%w, or give a state to go on from", err)
		}
	}
	next, err := newDealing(st.s, c, terms, from, earlier)
	if err != nil {
		return err
	}
	if earlier == nil {
		st.release()
	}
	st.fence(int(terms.Workers), fmt.Errorf("worker %d begins again, and all workers with it: %w", c.Rank, ErrReopen))
	st.dealing, st.restored = next, nil
	return nil
}

// state returns the set's progress. A caller is charged for it.
func (st *set) state(c *Caller) (*api.DataState, error) {
	if st.restored != nil {
		return st.restored, nil
	}
	return st.progress(c)
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
	if c.Rank >= len(st.sessions) {
		return nil, fmt.Errorf("%w: open it first", ErrUnknown)
	}
	switch w := &st.sessions[c.Rank]; {
	case w.open && w.Incarnation == c.Incarnation:
		return w, nil
	case w.open:
		return nil, fmt.Errorf("another run or reader of worker %d has opened it since: give each reader a set of its own, or %w", c.Rank, ErrReopen)
	case w.why != nil:
		return nil, w.why
	}
	return nil, ErrReopen
}

// batch returns the size of a worker's batch.
func (st *set) batch(rank int, seq uint64) int {
	switch {
	case st.dealing == nil:
		return 0
	case st.plan != nil:
		return st.plan.Size(rank, seq)
	}
	return int(st.terms.Batch)
}

// lease settles batches that a worker has applied, and leases the next to it. The journal has what changes.
func (st *set) lease(w *session, r *api.NextRowsRequest) (l deal.Lease, err error) {
	if !(r.Seconds >= 0) || math.IsInf(r.Seconds, 1) { // which a journal cannot hold
		return l, fmt.Errorf("done with batch %d after %v seconds: use a finite number, or 0 if it is unknown", r.Done, r.Seconds)
	}
	if err := st.s.journal.room(); err != nil {
		return l, err
	}
	e := &event{Op: opNext, Session: w.Session}
	if r.Done > w.done {
		if err := st.settle(w, r.Done, r.Seconds); err != nil {
			return l, err
		}
		e.Done, e.Seconds = r.Done, r.Seconds
	}
	if r.Seq > 0 {
		l, err = st.dealer.Next(w.Rank, r.Seq, r.Epoch, uint64(st.batch(w.Rank, r.Seq)))
	}
	if err == nil && r.Seq > w.seq {
		rows := l.Rows()
		w.seq, w.dealt = r.Seq, w.dealt+rows
		if st.plan != nil {
			st.plan.Dealt(w.Rank, r.Seq, rows)
		}
		for _, at := range l.Ranges {
			st.epoch = max(st.epoch, at.Epoch)
		}
		e.Seq, e.Epoch, e.Rows = r.Seq, r.Epoch, rows
	}
	if e.Seq > 0 || e.Done > 0 {
		err = errors.Join(err, st.s.journal.append(e))
	}
	return l, err
}

// settle records that a worker's batches up to a number were applied. A step of synchronous workers is applied for all at once.
func (st *set) settle(w *session, done uint64, seconds float64) error {
	if err := st.dealer.Done(w.Rank, done); err != nil {
		return err
	}
	w.done = done
	for rank := range st.sessions {
		if upTo := min(done, st.sessions[rank].seq); upTo > 0 && !st.terms.Asynchronous {
			if err := st.dealer.Done(rank, upTo); err != nil {
				return err
			}
		}
	}
	if st.plan != nil && seconds > 0 {
		st.plan.Took(w.Rank, done, seconds)
	}
	return nil
}
