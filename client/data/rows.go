package data

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"math"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rackweave/rackweave/client/membership"
	"github.com/rackweave/rackweave/service/api"
	"github.com/rackweave/rackweave/service/api/apiconnect"
)

// Options describes a training set, and a worker's part in it. All workers of a job give the same set.
type Options struct {
	Set      string         // name in the job; if empty, train
	Manifest string         // a file of the service's directory, as rackweave data shard makes it; if empty, Rows counts
	Digest   []byte         // of the manifest; if empty, any
	Rows     uint64         // of a set without a manifest
	Seed     uint64         // of the order of each epoch
	Deal     string         // queue, fixed or shards; if empty, queue
	Plain    bool           // the order does not spread the manifest's groups evenly
	Batch    int            // rows
	Balance  bool           // batches follow the workers' speeds
	Favour   float64        // how strongly groups with a high validation loss are favoured; if 0, not at all
	State    *api.DataState // of [Rows.State], to go on from
	Ahead    int            // batches that are leased before Next asks for them: 1 to 256; if 0, 2

	// For a service beside an aggregator.
	Job           string
	Rank, Workers int
	Asynchronous  bool // workers do not wait for each other's steps
}

// Batch is the rows of a worker's step. Without rows, the worker takes part in the step with a gradient of 0.
type Batch struct {
	Rows  []uint64
	Epoch uint64
	// Weight multiplies the mean gradient of the batch, so that the mean over the workers weighs all rows of a step alike.
	Weight float64
	// End reports that the epoch has no further batch. The call is then without a step, and the next one begins the next epoch.
	End bool
}

const (
	mostAhead = 256
	tryWithin = 10 * time.Second // a call that takes longer is made again
	firstWait = time.Millisecond // between calls, doubled each time
	mostWait  = 200 * time.Millisecond
	beat      = 3 * time.Second // a service beside an aggregator takes a worker for lost that does not call for long
	grace     = time.Second     // the error of a call says more than that of Next
)

// Rows deals a worker's batches. Next, Computed and Done are for one goroutine, the other methods for any.
type Rows struct {
	Info    *api.OpenDataResponse // how the service deals the set
	set     string
	reader  string // tells this reader of the set from others
	balance bool
	access  membership.Access
	member  *membership.Membership // nil for a service beside an aggregator
	http    *http.Client
	rpc     apiconnect.DataServiceClient

	ended       bool          // the last batch of Next was an end
	batches     chan leased   // closed at the end of life
	begin, wake chan struct{} // the next epoch; a batch is done
	life        context.Context
	end         context.CancelCauseFunc // of life
	fetching    sync.WaitGroup
	closed      atomic.Bool

	mu             sync.Mutex
	held           []leased // not done; the oldest first
	done, reported uint64   // the number of the last batch that was applied, and of the last that the service knows of
	seconds        float64  // that the last one's gradient took
}

// leased is a batch, the number of its call, and how long its gradient took or, until then, its time at the worker.
type leased struct {
	Batch
	seq   uint64
	since time.Time
	took  time.Duration
}

// Open begins to take batches of a set from the aggregator of a worker's job; of a job that is spread over several, from the first.
// Its errors, and those of Rows, wrap the ones of package membership.
func Open(ctx context.Context, m *membership.Membership, o Options) (*Rows, error) {
	r := &Rows{member: m, access: m.All[0].Access}
	return r.open(ctx, o, m.All[0].Info.Session)
}

// Dial begins to take batches of a set from a service beside an aggregator.
func Dial(ctx context.Context, a membership.Access, o Options) (*Rows, error) {
	a.Timeout = cmp.Or(a.Timeout, time.Minute)
	r := &Rows{access: a}
	return r.open(ctx, o, "")
}

func (r *Rows) open(ctx context.Context, o Options, session string) (_ *Rows, err error) {
	r.set, r.reader, r.balance, o.Ahead = cmp.Or(o.Set, "train"), rand.Text(), o.Balance, cmp.Or(o.Ahead, 2)
	switch {
	case o.Batch < 1 || o.Batch > math.MaxInt32:
		return nil, fmt.Errorf("open set %q: a batch of %d rows: use 1 or more", r.set, o.Batch)
	case o.Ahead < 1 || o.Ahead > mostAhead:
		return nil, fmt.Errorf("open set %q: %d batches ahead: use 1 to %d", r.set, o.Ahead, mostAhead)
	case o.Rank < 0 || o.Rank > math.MaxInt32 || o.Workers < 0 || o.Workers > math.MaxInt32:
		return nil, fmt.Errorf("open set %q: rank %d of %d workers: use a rank from 0 to the workers less 1", r.set, o.Rank, o.Workers)
	case !(o.Favour >= 0) || math.IsInf(o.Favour, 0):
		return nil, fmt.Errorf("open set %q: favour of %v: use 0 or more", r.set, o.Favour)
	}
	if r.http, err = r.access.HTTP(); err != nil {
		return nil, fmt.Errorf("open set %q: %w", r.set, err)
	}
	identity := api.Identify(func() string { return session }, r.access.Token)
	r.rpc = apiconnect.NewDataServiceClient(r.http, r.access.Server, identity)
	r.life, r.end = context.WithCancelCause(context.Background())
	q := &api.OpenDataRequest{
		Set: r.set, Manifest: o.Manifest, Rows: o.Rows, Digest: o.Digest, Seed: o.Seed, Deal: o.Deal, Plain: o.Plain,
		Batch: uint32(o.Batch), Balance: o.Balance, State: o.State, Favour: o.Favour, Job: o.Job, Rank: uint32(o.Rank),
		Workers: uint32(o.Workers), Incarnation: r.reader, Asynchronous: o.Asynchronous,
	}
	err = api.Contact(ctx, r.access.Timeout, func(within time.Duration) error {
		try, cancel, _ := membership.Bound(ctx, within)
		defer cancel()
		r.Info, err = r.rpc.Open(try, q)
		return err
	})
	if err != nil {
		r.http.CloseIdleConnections()
		return nil, r.explain("open", err)
	}
	session = cmp.Or(session, r.Info.Session)
	r.batches = make(chan leased, o.Ahead-1) // fetch has one more
	r.begin, r.wake = make(chan struct{}, 1), make(chan struct{}, 1)
	r.fetching.Go(func() {
		r.end(r.fetch())
		close(r.batches)
	})
	return r, nil
}

// Next returns the next batch. It waits until the context's deadline, or for the job's timeout: workers of an asynchronous job
// learn of the end of an epoch when all of its batches are done.
func (r *Rows) Next(ctx context.Context) (Batch, error) {
	if r.ended {
		r.ended = false
		r.begin <- struct{}{}
	}
	wait, cancel := context.WithTimeoutCause(ctx, r.access.Timeout+grace, membership.ErrTimeout)
	defer cancel()
	select {
	case b, ok := <-r.batches:
		if !ok {
			return Batch{}, context.Cause(r.life)
		}
		if r.ended = b.End; b.End {
			return b.Batch, r.Flush(ctx)
		}
		b.since = time.Now()
		r.mu.Lock()
		defer r.mu.Unlock()
		r.held = append(r.held, b)
		return b.Batch, nil
	case <-wait.Done():
		r.mu.Lock()
		defer r.mu.Unlock()
		return Batch{}, fmt.Errorf("set %q: next batch: %w: %d batches of this worker are not done, others may hold the rest",
			r.set, context.Cause(wait), len(r.held))
	}
}

// Computed records that the gradient of the oldest batch that is not done is computed, and only exchanged from now on. Where
// batches follow speeds, call it: Done, which does too, comes after waits for other workers.
func (r *Rows) Computed() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.held) > 0 && r.held[0].took == 0 {
		r.held[0].took = time.Since(r.held[0].since)
	}
}

// Done records that the gradient of the oldest batch that is not done was applied. The service learns of it with the next call.
func (r *Rows) Done() error {
	r.Computed()
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.held) == 0 {
		return fmt.Errorf("set %q: done with a batch: none is in hand: call it once for each batch of Next", r.set)
	}
	if r.done = r.held[0].seq; r.balance {
		r.seconds = r.held[0].took.Seconds()
	}
	r.held = r.held[1:]
	select {
	case r.wake <- struct{}{}:
	default:
	}
	return nil
}

// Flush reports the batches that are done. A worker's barrier does it, so that a checkpoint knows of them.
func (r *Rows) Flush(ctx context.Context) error {
	q := r.request(0, 0)
	r.mu.Lock()
	known := q.Done == r.reported
	r.mu.Unlock()
	if known {
		return nil
	}
	_, err := r.next(ctx, q)
	return err
}

// State reports the batches that are done, and returns the progress of the set, for [Options].
func (r *Rows) State(ctx context.Context) (*api.DataState, error) {
	if err := r.Flush(ctx); err != nil {
		return nil, err
	}
	a, err := call(ctx, r, "state", r.rpc.State, &api.DataStateRequest{Set: r.set, Incarnation: r.reader})
	return a.GetState(), err
}

// Close reports the batches that are done, and ends. Others stay leased until the set is opened again, or the worker is lost.
func (r *Rows) Close() (err error) {
	ctx, cancel := context.WithTimeout(context.Background(), tryWithin)
	defer cancel()
	if r.life.Err() == nil {
		err = r.Flush(ctx)
	}
	r.closed.Store(true)
	r.end(membership.ErrClosed)
	r.fetching.Wait()
	r.http.CloseIdleConnections()
	return err
}

// Closed reports whether Close was called.
func (r *Rows) Closed() bool { return r.closed.Load() }

// fetch takes leases ahead of Next.
func (r *Rows) fetch() error {
	epoch, wait := r.Info.Epoch, firstWait
	for seq := uint64(1); r.life.Err() == nil; seq++ {
		a, err := r.next(r.life, r.request(seq, epoch))
		if err != nil {
			return err
		}
		b := leased{Batch: Batch{Epoch: epoch, Weight: a.Weight, End: a.End}, seq: seq}
		if b.Rows, err = decode(a.Rows, r.Info.Rows); err != nil {
			return fmt.Errorf("set %q: batch %d: %w: use client and service of one release", r.set, seq, err)
		}
		if len(b.Rows) == 0 && !b.End && !r.Info.Synchronous { // others hold the rest
			select {
			case <-time.After(wait):
			case <-r.wake:
			case <-r.life.Done():
			}
			wait = min(2*wait, mostWait)
			continue
		}
		if wait, err = firstWait, r.idle(r.batches, b, nil); err == nil && b.End {
			epoch++
			err = r.idle(nil, b, r.begin)
		}
		if err != nil {
			return err
		}
	}
	return context.Cause(r.life)
}

// idle waits until a batch is taken, or the next epoch begins. A service beside an aggregator hears meanwhile that it has a worker.
func (r *Rows) idle(to chan<- leased, b leased, begin <-chan struct{}) error {
	for {
		select {
		case to <- b:
			return nil
		case <-begin:
			return nil
		case <-r.life.Done():
			return context.Cause(r.life)
		case <-time.After(beat):
			if r.member == nil {
				if _, err := r.next(r.life, r.request(0, 0)); err != nil {
					return err
				}
			}
		}
	}
}
