package data

import (
	"cmp"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/rackweave/rackweave/service/api"
	"github.com/rackweave/rackweave/service/rpc"
)

// Limits of a service beside an aggregator.
const (
	maxJobs    = 64
	maxWorkers = 1024 // of a job
)

// JobName is the key of a job that is known by its name alone.
type JobName string

// Over implements [Key]: such a job ends when another takes its place.
func (JobName) Over() bool { return false }

// Beside deals rows where no aggregator knows the workers: Open returns a session, and a journal keeps what was dealt.
type Beside struct {
	*Server
	timeout time.Duration // between two calls of a session. After a longer time the worker is lost

	opening  sync.Mutex // one call opens a set at a time. It comes before a set's
	mu       sync.Mutex // of what follows. It comes after a set's
	sessions map[string]*opened
}

// opened is a worker's session with a set.
type opened struct {
	Caller
	set   string
	heard time.Time
}

// NewBeside returns a service that reads manifests in dir. It goes on from a journal, a file that may grow to maxBytes; if the name
// is empty, it keeps none. If replay names another journal, workers get its batches. A worker that makes no call for timeout is
// lost.
func NewBeside(dir string, timeout time.Duration, journal string, maxBytes int64, replay string) (b *Beside, err error) {
	b = &Beside{Server: NewServer(Config{Dir: dir}), timeout: timeout, sessions: map[string]*opened{}}
	if replay != "" {
		if b.dealer, err = readReplay(dir, replay); err != nil {
			return nil, err
		}
	}
	if journal != "" {
		if b.journal, err = openJournal(journal, maxBytes, b.redo); err != nil {
			return nil, fmt.Errorf("journal %s: %w", journal, err)
		}
	}
	for _, o := range b.sessions {
		if !o.heard.IsZero() {
			o.heard = time.Now() // reading takes its time
		}
	}
	return b, nil
}

// Open begins a worker's session. account charges for memory, and may be nil.
func (b *Beside) Open(r *api.OpenDataRequest, account *Account) (*api.OpenDataResponse, error) {
	return b.open(r, rpc.NewID(), account)
}

// open opens a set in a session with a name, or in the one that the worker has if it has done nothing in it.
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
		return nil, fmt.Errorf("favour %v: a service beside an aggregator receives no losses: open the set at an aggregator", r.Favour)
	}
	c := Caller{Key: JobName(r.Job), Job: r.Job, Rank: int(r.Rank), Workers: int(r.Workers), Incarnation: r.Incarnation,
		Session: id, Synchronous: !r.Asynchronous, Account: account}
	o := &opened{Caller: c, set: cmp.Or(r.Set, usualSet), heard: time.Now()}
	o.Gone = func() error {
		b.mu.Lock()
		defer b.mu.Unlock()
		if time.Since(o.heard) > b.timeout {
			return fmt.Errorf("it has not called for %v", b.timeout)
		}
		return nil
	}
	b.opening.Lock()
	defer b.opening.Unlock()
	if err := b.makeRoom(r.Job); err != nil {
		return nil, err
	}
	out, err := b.Server.Open(&o.Caller, r)
	if err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for other, was := range b.sessions {
		if was.Key == o.Key && was.set == o.set && was.Rank == o.Rank && other != out.Session {
			delete(b.sessions, other)
		}
	}
	if b.sessions[out.Session] == nil {
		b.sessions[out.Session] = o
	}
	b.sessions[out.Session].heard = time.Now()
	return out, nil
}

// makeRoom makes room for a job. If there are too many, it drops the one heard of longest ago, unless its workers may still call.
func (b *Beside) makeRoom(job string) error {
	b.mu.Lock()
	heard := map[string]time.Time{}
	for _, o := range b.sessions {
		if at, known := heard[o.Job]; !known || o.heard.After(at) {
			heard[o.Job] = o.heard
		}
	}
	b.mu.Unlock()
	if _, known := heard[job]; known || len(heard) < maxJobs {
		return nil
	}
	oldest, since := "", time.Now().Add(-b.timeout)
	for name, at := range heard {
		if at.Before(since) {
			oldest, since = name, at
		}
	}
	if oldest == "" {
		return fmt.Errorf("%w: %d jobs have workers: wait until one ends", ErrFull, maxJobs)
	}
	return b.drop(oldest)
}

// drop drops a job.
func (b *Beside) drop(job string) error {
	err := b.all(JobName(job), func(st *set) error {
		b.Server.drop(st)
		return nil
	})
	b.mu.Lock()
	defer b.mu.Unlock()
	for id, o := range b.sessions {
		if o.Job == job {
			delete(b.sessions, id)
		}
	}
	return errors.Join(err, b.journal.append(&event{Op: opDrop, Job: job}))
}

// Caller returns a session's caller, whose call account charges.
func (b *Beside) Caller(id string, account *Account) (*Caller, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	o := b.sessions[id]
	if o == nil {
		return nil, fmt.Errorf("no such session: another run of the worker has replaced it, or the service runs without its journal: %w", ErrReopen)
	}
	o.heard = time.Now()
	c := o.Caller
	c.Account = account
	return &c, nil
}

// Known reports whether a session exists. A nil service has none.
func (b *Beside) Known(id string) bool {
	if b == nil {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.sessions[id] != nil
}

// redo does again what an event tells.
func (b *Beside) redo(e *event) (err error) {
	switch o := b.sessions[e.Session]; {
	case e.Op == opOpen && e.Open != nil && e.Session != "":
		_, err = b.open(e.Open, e.Session, nil)
	case e.Op == opDrop && e.Job != "":
		err = b.drop(e.Job)
	case e.Op == opLose && o != nil:
		o.heard = time.Time{}
		err = b.with(&o.Caller, o.set, func(st *set, _ *session) error {
			st.end(o.Rank, fmt.Errorf("worker %d was gone: %w", o.Rank, ErrReopen))
			return nil
		})
	case e.Op == opNext && o != nil:
		err = b.with(&o.Caller, o.set, func(st *set, w *session) error {
			l, err := st.lease(w, &api.NextRowsRequest{Seq: e.Seq, Epoch: e.Epoch, Done: e.Done, Seconds: e.Seconds})
			if err == nil && l.Rows() != e.Rows {
				err = fmt.Errorf("batch %d has %d rows, and had %d: another version wrote it, or a manifest has changed", e.Seq, l.Rows(), e.Rows)
			}
			return err
		})
	default:
		err = fmt.Errorf("%q of session %q, job %q: nothing before it opened that: the journal is damaged", e.Op, e.Session, e.Job)
	}
	return err
}
