package checkpoint

import (
	"cmp"
	"log/slog"
	"maps"
	"slices"
	"sync"

	"github.com/rackweave/rackweave/service/api"
	"github.com/rackweave/rackweave/service/job"
)

// Store holds the checkpoints on an aggregator's disk and the states of failed jobs in its memory.
type Store struct {
	dir     string // If empty, the aggregator has no checkpoints.
	log     *slog.Logger
	refused func(reason string)  // counts a refusal
	Racks   func(*job.Job) Racks // returns the racks of a job
	closing <-chan struct{}      // closed when the service ends

	mu       sync.Mutex
	retained map[job.Tenant]*retained
}

// NewStore returns a store of checkpoints in a directory, without states of failed jobs.
func NewStore(dir string, log *slog.Logger, refused func(string), racks func(*job.Job) Racks, closing <-chan struct{}) *Store {
	return &Store{dir: dir, log: log, refused: refused, Racks: racks, closing: closing, retained: map[job.Tenant]*retained{}}
}

// Of returns a job's state.
func (st *Store) Of(j *job.Job) *State {
	return &State{local: local{j}, store: st, others: st.Racks(j)}
}

// DropAll drops all states of failed jobs.
func (st *Store) DropAll() {
	for st.DropOldest(job.Tenant{}) {
	}
}

// State saves, restores, reads and writes a job's parameters and optimizer state.
type State struct {
	local
	store  *Store
	others Racks
}

// Status describes the states of failed jobs that the caller may know of.
func (st *Store) Status(mayKnow func(job.Tenant) bool) (out []*api.JobStatus) {
	st.mu.Lock()
	all := slices.DeleteFunc(slices.Collect(maps.Values(st.retained)), func(k *retained) bool { return !mayKnow(k.Tenant) })
	st.mu.Unlock()
	slices.SortFunc(all, func(a, b *retained) int { return cmp.Compare(a.Job, b.Job) })
	for _, k := range all {
		out = append(out, k.status())
	}
	return out
}
