package data

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"

	deal "github.com/rackweave/rackweave/data"
	"github.com/rackweave/rackweave/service/api"
	"github.com/rackweave/rackweave/service/rpc"
)

// MaxSets bounds the sets of a job.
const MaxSets = 8

// usualSet is the name of a set that is opened without one.
const usualSet = "train"

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
	Incarnation string      // tells this run of the worker from others
	Synchronous bool        // workers wait for each other's steps
	Gone        func() bool // reports whether the worker is gone for good. If nil, Lose tells of it
	*Account
}

// Account charges for memory. If nil, nobody is charged.
type Account struct {
	Set  func(bytes int64) (giveBack func(), err error) // of a set
	Call func(bytes int64) error                        // of a call, until its answer is written
}

// Config configures a server.
type Config struct {
	Dir string // of manifests. If empty, sets have none
	// Takes the place of a set's dealer, of a job by name that begins from a state. If nil, dealers stay.
	dealer func(job string, terms *api.OpenDataRequest, from *api.DataState, d deal.Dealer) (deal.Dealer, error)
}

// Server deals the rows of the sets of all jobs. A set's lock comes after its own.
type Server struct {
	Config
	mu   sync.Mutex
	jobs map[Key]map[string]*set // by name
}

// NewServer returns a server without sets.
func NewServer(c Config) *Server { return &Server{Config: c, jobs: map[Key]map[string]*set{}} }

// find returns a set of a job, and makes it if asked to.
func (s *Server) find(key Key, job, name string, make bool) (*set, error) {
	name = cmp.Or(name, usualSet)
	s.mu.Lock()
	defer s.mu.Unlock()
	sets := s.jobs[key]
	switch st := sets[name]; {
	case st != nil:
		return st, nil
	case !make:
		return nil, fmt.Errorf("set %q of job %q: %w: open it first", rpc.Printable(name, rpc.MaxNameBytes), job, ErrUnknown)
	case len(sets) == MaxSets:
		return nil, fmt.Errorf("%w: job %q has %d sets: use one of them", ErrFull, job, MaxSets)
	}
	if err := rpc.CheckName("set", name); err != nil {
		return nil, err
	}
	if sets == nil {
		sets = map[string]*set{}
		s.jobs[key] = sets
	}
	sets[name] = &set{s: s, name: name}
	return sets[name], nil
}

// Open begins a worker's session with a set.
func (s *Server) Open(c *Caller, r *api.OpenDataRequest) (*api.OpenDataResponse, error) {
	terms, err := termsOf(c, r)
	if err != nil {
		return nil, err
	}
	st, err := s.find(c.Key, c.Job, r.Set, true)
	if err != nil {
		return nil, err
	}
	terms.Set = st.name
	st.mu.Lock()
	defer st.mu.Unlock()
	if err := st.open(c, terms, r.State); err != nil {
		return nil, fmt.Errorf("set %q of job %q: %w", st.name, c.Job, err)
	}
	t := st.terms
	sum := uint64(t.Batch) * uint64(t.Workers)
	out := &api.OpenDataResponse{Rows: t.Rows, Epoch: st.dealer.Epoch(c.Rank), Steps: (t.Rows + sum - 1) / sum, Rank: uint32(c.Rank),
		Workers: t.Workers, Synchronous: !t.Asynchronous, Digest: t.Digest}
	if t.Manifest != "" {
		out.Groups = st.sizes(-1)
	}
	return out, nil
}

// Next leases a batch to a worker, and settles batches that were applied. A repeated number has the same answer.
func (s *Server) Next(c *Caller, r *api.NextRowsRequest) (out *api.NextRowsResponse, err error) {
	if !(r.Seconds >= 0) || math.IsInf(r.Seconds, 1) { // which a journal cannot hold
		return nil, fmt.Errorf("done with batch %d after %v seconds: use a finite number, or 0 if it is unknown", r.Done, r.Seconds)
	}
	err = s.with(c, r.Set, func(st *set, w *session) error {
		out, err = st.next(c, w, r)
		return err
	})
	return out, err
}

// State returns the progress of a set.
func (s *Server) State(c *Caller, r *api.DataStateRequest) (out *api.DataStateResponse, err error) {
	err = s.with(c, r.Set, func(st *set, _ *session) error {
		state, err := st.state()
		out = &api.DataStateResponse{State: state}
		return err
	})
	return out, err
}

// with calls f with a caller's session.
func (s *Server) with(c *Caller, name string, f func(*set, *session) error) error {
	st, err := s.find(c.Key, c.Job, name, false)
	if err != nil {
		return err
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	w, err := st.of(c)
	if err != nil {
		return err
	}
	return f(st, w)
}

// all calls f with each set of a job that has begun or was restored, or of all jobs if the key is nil, and returns the errors.
func (s *Server) all(key Key, f func(*set) error) error {
	s.mu.Lock()
	var sets []*set
	for k, of := range s.jobs {
		if key == nil || k == key {
			sets = slices.AppendSeq(sets, maps.Values(of))
		}
	}
	s.mu.Unlock()
	slices.SortFunc(sets, func(a, b *set) int { return strings.Compare(a.name, b.name) })
	var errs []error
	for _, st := range sets {
		st.mu.Lock()
		if !st.closed && (st.terms != nil || st.restored != nil) {
			errs = append(errs, f(st))
		}
		st.mu.Unlock()
	}
	return errors.Join(errs...)
}

// Losses tells of the losses of groups. Sets that were opened with favour take more rows of groups with high losses from the next
// epoch on.
func (s *Server) Losses(key Key, losses []float64) error {
	return s.all(key, func(st *set) error {
		if st.terms == nil || st.terms.Favour == 0 {
			return nil
		}
		return st.favour(losses)
	})
}

// States returns the progress of a job's sets.
func (s *Server) States(key Key) (out []*api.DataState, err error) {
	err = s.all(key, func(st *set) error {
		state, err := st.state()
		if state.GetSet() != "" {
			out = append(out, state)
		}
		return err
	})
	return out, err
}

// Restore lets a job's sets go on from states, and those without one begin. All workers must open them again.
func (s *Server) Restore(key Key, job string, states []*api.DataState) error {
	for _, state := range states {
		if _, err := s.find(key, job, state.Set, true); err != nil {
			return fmt.Errorf("restore the progress of set %q: %w", state.Set, err)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, st := range s.jobs[key] {
		st.mu.Lock()
		st.restored = &api.DataState{}
		if i := slices.IndexFunc(states, func(d *api.DataState) bool { return d.Set == name }); i >= 0 {
			st.restored = states[i]
		}
		st.fence(len(st.sessions), fmt.Errorf("the job was restored from a checkpoint: %w", ErrReopen))
		st.mu.Unlock()
	}
	return nil
}

// Lose takes back the leases of a worker that is gone, unless it has another session since.
func (s *Server) Lose(c *Caller, name string, why error) {
	s.with(c, name, func(st *set, _ *session) error {
		st.end(c.Rank, why)
		return nil
	})
}

// Status describes the sets of a job.
func (s *Server) Status(key Key, job string) (out []*api.DataSetStatus) {
	s.all(key, func(st *set) error {
		one := &api.DataSetStatus{Job: job, Workers: uint32(len(st.sessions))}
		var err error
		if one.State, err = st.state(); err != nil { // workers of a fixed division are in different steps
			one.State = st.identity()
		}
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

// Tend takes back the leases of workers that are gone, and drops the sets of jobs that are over.
func (s *Server) Tend() {
	s.mu.Lock()
	for key, sets := range s.jobs {
		if key.Over() {
			for _, st := range sets {
				st.close()
			}
			delete(s.jobs, key)
		}
	}
	s.mu.Unlock()
	s.all(nil, func(st *set) error {
		for rank := range st.sessions {
			if w := &st.sessions[rank]; w.open && w.Gone != nil && w.Gone() {
				st.end(rank, fmt.Errorf("worker %d is gone: %w", rank, ErrReopen))
			}
		}
		return nil
	})
}
