// Package data deals the rows of training sets to the workers of jobs. The dealers of the pure room of the same name decide. This
// room keeps sets, sessions and orders around them, and names rows. It does not know how workers call: a Caller identifies one.
//
// All workers of a job open a set alike. A worker's session lasts from Open until the worker is gone or opens the set again. Its
// leases return then. Synchronous workers number their steps alike, so when one that has begun opens the set again, all must: what
// nobody has applied is dealt again, and calls with the other sessions get ErrReopen.
package data

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"google.golang.org/protobuf/proto"

	deal "github.com/rackweave/rackweave/data"
	"github.com/rackweave/rackweave/service/api"
	"github.com/rackweave/rackweave/service/rpc"
)

// MaxSets bounds the sets of a job.
const MaxSets = 8

// usualSet is the name of a set that is opened without one.
const usualSet = "train"

// Errors, wrapped.
var (
	ErrReopen  = errors.New("open the set again")
	ErrUnknown = errors.New("no such set is open")
	ErrFull    = errors.New("too many")
	ErrJournal = errors.New("the journal cannot be written")
)

// Key identifies a job: it tells apart runs of jobs with one name.
type Key interface {
	// Over reports whether the job has ended.
	Over() bool
}

// Caller is a worker that calls.
type Caller struct {
	Key         Key
	Job         string // the job's name
	Rank        int
	Workers     int
	Incarnation string       // tells this run of the worker, and this reader in it, from others
	Session     string       // for the answer to Open, and the journal
	Synchronous bool         // workers wait for each other's steps
	Gone        func() error // returns why the worker is gone for good, or nil
	*Account
}

// Account charges for memory. If nil, nobody is charged.
type Account struct {
	Set  func(bytes int64) (giveBack func(), err error) // of a set
	Call func(bytes int64) error                        // of a call, until its answer is written
}

// Config configures a server.
type Config struct {
	Dir     string   // of manifests. If empty, sets have none
	journal *journal // of what is dealt. If nil, none is kept
	// dealer, if not nil, returns the dealer to use in place of d for a set of a job.
	dealer func(job string, terms *api.OpenDataRequest, d deal.Dealer) (deal.Dealer, error)
}

// Server deals the rows of the sets of all jobs. Its lock comes after a set's.
type Server struct {
	Config
	mu   sync.Mutex
	sets map[place]*set
}

// place names a set: its job, and its name there.
type place struct {
	key  Key
	name string
}

// NewServer returns a server without sets.
func NewServer(c Config) *Server { return &Server{Config: c, sets: map[place]*set{}} }

// find returns a set of a job, locked, or nil. It makes one if asked to.
func (s *Server) find(c *Caller, name string, make bool) (*set, error) {
	for at := (place{c.Key, cmp.Or(name, usualSet)}); ; {
		s.mu.Lock()
		st := s.sets[at]
		if st == nil && make {
			if err := s.mayMake(c, at); err != nil {
				s.mu.Unlock()
				return nil, err
			}
			st = &set{s: s, place: at, job: c.Job}
			s.sets[at] = st
		}
		s.mu.Unlock()
		if st == nil {
			return nil, fmt.Errorf("set %q of job %q: %w: open it first", rpc.Printable(at.name, rpc.MaxNameBytes), c.Job, ErrUnknown)
		}
		if st.mu.Lock(); !st.closed {
			return st, nil
		}
		st.mu.Unlock() // it was dropped meanwhile
	}
}

// mayMake refuses another set of a job.
func (s *Server) mayMake(c *Caller, at place) error {
	if c.Key.Over() {
		return fmt.Errorf("set %q of job %q: %w: the job is over", rpc.Printable(at.name, rpc.MaxNameBytes), c.Job, ErrUnknown)
	}
	sets := 0
	for other := range s.sets {
		if other.key == at.key {
			sets++
		}
	}
	if sets == MaxSets {
		return fmt.Errorf("%w: job %q has %d sets: use one of them", ErrFull, c.Job, MaxSets)
	}
	return rpc.CheckName("set", at.name)
}

// drop ends a set, which is locked.
func (s *Server) drop(st *set) {
	st.closed = true
	st.release()
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.sets, st.place)
}

// Open begins a worker's session with a set. If it fails, it leaves nothing, unless the journal cannot be written: then the service
// deals nothing more.
func (s *Server) Open(c *Caller, r *api.OpenDataRequest) (*api.OpenDataResponse, error) {
	terms, err := termsOf(c, r)
	if err != nil {
		return nil, err
	}
	if err := s.journal.room(); err != nil {
		return nil, err
	}
	st, err := s.find(c, terms.Set, true)
	if err != nil {
		return nil, err
	}
	defer st.mu.Unlock()
	if err = st.open(c, terms); err != nil {
		if st.dealing == nil && st.restored == nil {
			s.drop(st)
		}
		return nil, fmt.Errorf("set %q of job %q: %w", st.name, c.Job, err)
	}
	t := st.terms
	if st.sessions[c.Rank].Session == c.Session { // it has not asked twice
		q := proto.CloneOf(r)
		q.Digest = t.Digest // so that another manifest of this name is refused later
		if err := s.journal.append(&event{Op: opOpen, Session: c.Session, Open: q}); err != nil {
			return nil, err
		}
	}
	sum := uint64(t.Batch) * uint64(t.Workers)
	out := &api.OpenDataResponse{Session: st.sessions[c.Rank].Session, Rows: t.Rows, Epoch: st.dealer.Epoch(c.Rank),
		Steps: (t.Rows + sum - 1) / sum, Rank: uint32(c.Rank), Workers: t.Workers, Synchronous: !t.Asynchronous, Digest: t.Digest}
	if t.Manifest != "" {
		out.Groups = st.sizes(-1)
	}
	return out, nil
}

// Next leases a batch to a worker, and settles batches that were applied. A repeated number has the same answer.
func (s *Server) Next(c *Caller, r *api.NextRowsRequest) (*api.NextRowsResponse, error) {
	out := &api.NextRowsResponse{}
	return out, s.with(c, r.Set, func(st *set, w *session) error {
		if r.Seq > 0 {
			if err := c.charge("batch", answerCost*int64(st.batch(w.Rank, r.Seq))); err != nil {
				return err
			}
		}
		l, err := st.lease(w, r)
		if err != nil {
			return err
		}
		out.End, out.Weight = l.End, float64(l.Rows())/float64(st.terms.Batch)
		out.Rows, err = st.ids(w.Rank, l)
		return err
	})
}

// State returns the progress of a set.
func (s *Server) State(c *Caller, r *api.DataStateRequest) (out *api.DataStateResponse, err error) {
	err = s.with(c, r.Set, func(st *set, _ *session) error {
		state, err := st.state(c)
		out = &api.DataStateResponse{State: state}
		return err
	})
	return out, err
}

// charge charges for the answer to a call.
func (c *Caller) charge(what string, bytes int64) error {
	if c.Account == nil {
		return nil
	}
	if err := c.Call(bytes); err != nil {
		return fmt.Errorf("no memory for the %s at present: %w", what, err)
	}
	return nil
}

// with calls f with a caller's session.
func (s *Server) with(c *Caller, name string, f func(*set, *session) error) error {
	st, err := s.find(c, name, false)
	if err != nil {
		return err
	}
	defer st.mu.Unlock()
	w, err := st.of(c)
	if err == nil {
		err = f(st, w)
	}
	if err != nil {
		return fmt.Errorf("set %q of job %q: %w", st.name, c.Job, err)
	}
	return nil
}

// all calls f with each set of a job, or of all jobs if the key is nil, and returns the errors.
func (s *Server) all(key Key, f func(*set) error) error {
	s.mu.Lock()
	var sets []*set
	for at, st := range s.sets {
		if key == nil || at.key == key {
			sets = append(sets, st)
		}
	}
	s.mu.Unlock()
	slices.SortFunc(sets, func(a, b *set) int { return cmp.Or(strings.Compare(a.job, b.job), strings.Compare(a.name, b.name)) })
	var errs []error
	for _, st := range sets {
		st.mu.Lock()
		if !st.closed && (st.dealing != nil || st.restored != nil) {
			if err := f(st); err != nil {
				errs = append(errs, fmt.Errorf("set %q of job %q: %w", st.name, st.job, err))
			}
		}
		st.mu.Unlock()
	}
	return errors.Join(errs...)
}

// Losses passes a job's losses by group to its sets. Sets that were opened with favour take more rows of groups with high losses
// from the next epoch on.
func (s *Server) Losses(key Key, losses []float64) error {
	return s.all(key, func(st *set) error {
		if st.dealing == nil || st.terms.Favour == 0 {
			return nil
		}
		return st.favour(losses)
	})
}

// States returns the progress of a job's sets.
func (s *Server) States(key Key) (out []*api.DataState, err error) {
	err = s.all(key, func(st *set) error {
		state, err := st.state(nil)
		if state.GetSet() != "" {
			out = append(out, state)
		}
		return err
	})
	return out, err
}

// Restore lets a job's sets go on from states, and others begin. All workers must open them again.
func (s *Server) Restore(key Key, job string, states []*api.DataState) error {
	for _, state := range states {
		st, err := s.find(&Caller{Key: key, Job: job}, state.Set, true)
		if err != nil {
			return fmt.Errorf("restore the progress of set %q: %w", state.Set, err)
		}
		st.restored = state
		st.mu.Unlock()
	}
	return s.all(key, func(st *set) error {
		st.restored = &api.DataState{}
		if i := slices.IndexFunc(states, func(d *api.DataState) bool { return d.Set == st.name }); i >= 0 {
			st.restored = states[i]
		}
		st.fence(len(st.sessions), fmt.Errorf("the job was restored from a checkpoint: %w", ErrReopen))
		return nil
	})
}

// Status describes the sets of the jobs that a caller may see. Their states have no ranges: a cursor counts the positions that were
// applied.
func (s *Server) Status(may func(Key) bool) (out []*api.DataSetStatus) {
	s.all(nil, func(st *set) error {
		if !may(st.key) {
			return nil
		}
		state, err := st.state(nil)
		if err != nil { // workers of a fixed division are in different steps
			state = st.identity()
		}
		state = proto.CloneOf(state)
		state.Set = st.name
		for _, r := range state.Returned {
			state.Cursor -= min(state.Cursor, r.GetTo()-r.GetFrom())
		}
		state.Returned, state.Draws = nil, nil
		one := &api.DataSetStatus{Job: st.job, State: state, Workers: uint32(len(st.sessions))}
		for rank := range st.sessions {
			w := &st.sessions[rank]
			one.Dealt, one.Open = append(one.Dealt, w.dealt), append(one.Open, w.open)
			one.Batches = append(one.Batches, uint32(st.batch(rank, w.seq+1)))
		}
		out = append(out, one)
		return nil
	})
	return out
}

// Tend takes back the leases of workers that are gone, drops the sets of jobs that are over, and flushes the journal to the disk.
func (s *Server) Tend() {
	s.all(nil, func(st *set) error {
		if st.key.Over() {
			s.drop(st)
			return nil
		}
		for rank := range st.sessions {
			w := &st.sessions[rank]
			if !w.open {
				continue
			}
			if why := w.Gone(); why != nil && s.journal.append(&event{Op: opLose, Session: w.Session}) == nil {
				st.end(rank, fmt.Errorf("worker %d is gone: %v: %w", rank, why, ErrReopen))
			}
		}
		return nil
	})
	s.journal.sync()
}

// Close closes the journal.
func (s *Server) Close() error { return s.journal.close() }
