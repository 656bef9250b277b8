package data

import (
	"cmp"
	"errors"
	"fmt"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	deal "github.com/rackweave/rackweave/data"
	"github.com/rackweave/rackweave/service/api"
	"github.com/rackweave/rackweave/service/rpc"
)

// Limits of a service beside an aggregator.
const (
	maxJobs    = 64
	maxWorkers = 1024 // of a job
)

// Beside deals rows where no aggregator knows the workers: Open returns a session, and a journal keeps what was dealt.
type Beside struct {
	*Server
	// Timeout bounds the time between two calls of a session. After a longer one the worker is lost.
	Timeout time.Duration

	mu       sync.Mutex // held while a call is made and written to the journal. It comes before the server's
	journal  *journal   // if nil, none is kept
	jobs     map[string]*named
	sessions map[string]*opened
}

// named is the key of a job that is known by its name.
type named struct {
	name string
	over bool // guarded by the mutex of Beside
}

func (n *named) Over() bool { return n.over }

// opened is a worker's session with a set.
type opened struct {
	Caller
	set       string
	seq, done uint64 // in the journal
	heard     time.Time
	lost      bool
}

// NewBeside returns a service whose sets go on from a journal, if there is a file for it: at most so many bytes. If another journal
// is named, workers get the batches that it has.
func NewBeside(dir string, timeout time.Duration, file string, most int64, again string) (*Beside, error) {
	b := &Beside{Server: NewServer(Config{Dir: dir}), Timeout: timeout, jobs: map[string]*named{}, sessions: map[string]*opened{}}
	if again != "" {
		r, err := readReplay(dir, again)
		if err != nil {
			return nil, err
		}
		b.dealer = r.deal
	}
	if file == "" {
		return b, nil
	}
	j, err := openJournal(file, most, b.redo)
	if err != nil {
		return nil, fmt.Errorf("journal %s: %w", file, err)
	}
	b.journal = j
	return b, nil
}

// Open begins a worker's session. account charges for memory, and may be nil.
func (b *Beside) Open(r *api.OpenDataRequest, account *Account) (*api.OpenDataResponse, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.journal.room(); err != nil {
		return nil, err
	}
	out, err := b.open(r, rpc.NewID(), account)
	if err == nil {
		q := proto.CloneOf(r)
		q.Digest = out.Digest // so that another manifest of this name is refused later
		err = b.journal.append(&event{Op: opOpen, Session: out.Session, Open: q})
	}
	if err != nil {
		return nil, err
	}
	return out, nil
}

// open opens a set in a session with a name, or in that which the worker has if it has done nothing in it.
func (b *Beside) open(r *api.OpenDataRequest, id string, account *Account) (*api.OpenDataResponse, error) {
	if err := rpc.CheckName("job", r.Job); err != nil {
		return nil, err
	}
	switch {
	case r.Workers < 1 || r.Workers > maxWorkers || r.Rank >= r.Workers:
		return nil, fmt.Errorf("rank %d of %d workers: use ranks from 0 on, of 1 to %d workers", r.Rank, r.Workers, maxWorkers)
	case r.Incarnation == "" || len(r.Incarnation) > rpc.MaxNameBytes:
		return nil, fmt.Errorf("an incarnation of %d bytes: name this run of the worker in 1 to %d", len(r.Incarnation), rpc.MaxNameBytes)
	case r.Favour > 0:
		return nil, fmt.Errorf("favour %v: nobody reports losses here: open the set at an aggregator", r.Favour)
	}
	key := b.jobs[r.Job]
	if key == nil {
		if len(b.jobs) == maxJobs && !b.dropIdle() {
			return nil, fmt.Errorf("%w: %d jobs have workers: wait until one ends", ErrFull, maxJobs)
		}
		key = &named{name: r.Job}
	}
	c := Caller{Key: key, Job: r.Job, Rank: int(r.Rank), Workers: int(r.Workers), Incarnation: r.Incarnation,
		Synchronous: !r.Asynchronous, Account: account}
	out, err := b.Server.Open(&c, r)
	if err != nil {
		if b.jobs[r.Job] == nil {
			b.drop(key)
		}
		return nil, err
	}
	b.jobs[r.Job] = key
	o := &opened{Caller: c, set: cmp.Or(r.Set, usualSet), heard: time.Now()}
	for other, was := range b.sessions {
		if was.Key != o.Key || was.set != o.set || was.Rank != o.Rank {
			continue
		}
		if was.Incarnation == o.Incarnation && was.seq == 0 && !was.lost {
			out.Session = other
			was.heard = o.heard
			return out, nil
		}
		delete(b.sessions, other)
	}
	b.sessions[id], out.Session = o, id
	return out, nil
}

// dropIdle drops a job none of whose workers has a session, the one that was heard of longest ago. It reports whether there is one.
func (b *Beside) dropIdle() bool {
	heard := map[*named]time.Time{}
	for _, key := range b.jobs {
		heard[key] = time.Time{}
	}
	for _, o := range b.sessions {
		key := o.Key.(*named)
		if at, idle := heard[key]; idle && o.lost {
			if o.heard.After(at) {
				heard[key] = o.heard
			}
		} else {
			delete(heard, key)
		}
	}
	var oldest *named
	for key, at := range heard {
		if oldest == nil || at.Before(heard[oldest]) {
			oldest = key
		}
	}
	if oldest == nil {
		return false
	}
	b.drop(oldest)
	return b.journal.append(&event{Op: opDrop, Job: oldest.name}) == nil
}

func (b *Beside) drop(key *named) {
	key.over = true
	b.Server.Tend()
	delete(b.jobs, key.name)
	for id, o := range b.sessions {
		if o.Key == Key(key) {
			delete(b.sessions, id)
		}
	}
}

// session returns a session's caller, whose call account charges.
func (b *Beside) session(id, set string, account *Account) (*opened, *Caller, error) {
	o := b.sessions[id]
	switch {
	case o == nil:
		return nil, nil, fmt.Errorf("no such session: another run of the worker has one, or the service has not its journal: %w", ErrReopen)
	case cmp.Or(set, usualSet) != o.set:
		return nil, nil, fmt.Errorf("set %q in a session with set %q: %w", set, o.set, ErrUnknown)
	}
	o.heard = time.Now()
	c := o.Caller
	c.Account = account
	return o, &c, nil
}

// Next leases a batch to a session's worker, and settles batches that were applied.
func (b *Beside) Next(id string, r *api.NextRowsRequest, account *Account) (*api.NextRowsResponse, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	o, c, err := b.session(id, r.Set, account)
	if err == nil {
		err = b.journal.room()
	}
	if err != nil {
		return nil, err
	}
	e := &event{Op: opNext, Session: id}
	out, err := b.next(o, c, r, e)
	if e.Seq > 0 || e.Done > 0 {
		err = errors.Join(err, b.journal.append(e))
	}
	if err != nil {
		return nil, err
	}
	return out, nil
}

// next makes a call, and notes in an event what changes.
func (b *Beside) next(o *opened, c *Caller, r *api.NextRowsRequest, e *event) (*api.NextRowsResponse, error) {
	out, err := b.Server.Next(c, &api.NextRowsRequest{Set: o.set, Done: r.Done, Seconds: r.Seconds})
	if err != nil {
		return nil, err
	}
	if r.Done > o.done {
		o.done, e.Done, e.Seconds = r.Done, r.Done, r.Seconds
	}
	if r.Seq == 0 {
		return out, nil
	}
	out, err = b.Server.Next(c, &api.NextRowsRequest{Set: o.set, Seq: r.Seq, Epoch: r.Epoch})
	refused := errors.Is(err, deal.ErrSequence) || errors.Is(err, deal.ErrEpoch) || errors.Is(err, errBusy)
	if r.Seq > o.seq && !refused {
		o.seq, e.Seq, e.Epoch, e.Rows = r.Seq, r.Seq, r.Epoch, len(out.GetRows())/8
		if err != nil {
			e.Rows = unread
		}
	}
	return out, err
}

// State returns the progress of a session's set.
func (b *Beside) State(id string, r *api.DataStateRequest) (*api.DataStateResponse, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	o, c, err := b.session(id, r.Set, nil)
	if err != nil {
		return nil, err
	}
	return b.Server.State(c, &api.DataStateRequest{Set: o.set})
}

// Status describes the sets of the jobs that a caller may know.
func (b *Beside) Status(may func(job string) bool) (out []*api.DataSetStatus) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for name, key := range b.jobs {
		if may(name) {
			out = append(out, b.Server.Status(key, name)...)
		}
	}
	return out
}

// Known reports whether a session is there. With a nil service none is.
func (b *Beside) Known(id string) bool {
	if b == nil {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.sessions[id] != nil
}

// Tend takes back the leases of workers that have not called for too long.
func (b *Beside) Tend(now time.Time) {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for id, o := range b.sessions {
		if !o.lost && now.Sub(o.heard) > b.Timeout && b.journal.append(&event{Op: opLose, Session: id}) == nil {
			b.lose(o)
		}
	}
}

func (b *Beside) lose(o *opened) {
	o.lost = true
	b.Server.Lose(&o.Caller, o.set, fmt.Errorf("worker %d has not called for %v: %w", o.Rank, b.Timeout, ErrReopen))
}

// Close closes the journal.
func (b *Beside) Close() error {
	if b == nil {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.journal.close()
}
