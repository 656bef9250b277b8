package shard

import (
	"errors"
	"fmt"

	"github.com/rackweave/rackweave/aggregate/lane"
	"github.com/rackweave/rackweave/aggregate/reduce"
	"github.com/rackweave/rackweave/aggregate/session"
	"github.com/rackweave/rackweave/aggregate/store"
	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/verbs"
)

// Workers holds the connections of a job's workers to one lane. It implements lane.Handler.
type Workers struct {
	s     *Shard
	links []*link // by rank; nil where the worker is not attached
}

// Delivered records that n messages to the worker have arrived.
func (w *Workers) Delivered(c *lane.Conn, n int) {
	for range n {
		if buffer := c.Conn.Delivered(); buffer != store.NoBuffer {
			w.s.Machine.Hold(c.Rank, -1)
			w.s.release(buffer)
		}
	}
	w.s.Machine.Delivered(c.Rank, n)
}

// Failed handles the failure of a queue pair: the path to the worker is broken, the worker is gone, or it violated its keys.
func (w *Workers) Failed(c *lane.Conn, survives bool, err error) {
	if k := w.links[c.Rank]; survives {
		w.breakOff(k)
	} else {
		w.lose(k, err)
	}
}

// QueueLost handles the loss of a completion queue. The connection fails over to another NIC if it can.
func (w *Workers) QueueLost(c *lane.Conn, err error) {
	k := w.links[c.Rank]
	switch {
	case k.State == session.Closed:
	case k.Resumable:
		k.TakeOut()
		w.breakOff(k)
	default:
		w.s.Fail(fmt.Errorf("lane %d: %w", w.s.Lane.Index, err))
	}
}

// breakOff marks a connection whose queue pair has failed as broken. Messages wait until the worker resumes it.
func (w *Workers) breakOff(k *link) {
	k.Break()
	w.s.Lane.Count.Breaks++
	w.s.Lane.Broke()
	k.deadline = w.s.Lane.Now() + int64(w.s.Job.Timeouts.Link)
	w.announce(k)
}

// announce publishes the break of a connection to its worker, or marks the connection as unnotified while earlier breaks wait to be
// read.
func (w *Workers) announce(k *link) {
	select {
	case w.s.Job.Breaks[k.Rank] <- Break{w.s.Lane.Index, k.attempt}:
		k.unnotified = false
	default:
		k.unnotified = true
	}
}

// lose ends the job because a worker's connection is lost, unless the worker has left in peace.
func (w *Workers) lose(k *link, err error) {
	w.cut(k)
	if !w.s.Job.Left[k.Rank].Load() {
		w.s.Job.Fail.Lost(k.Rank, fmt.Errorf("%w: worker %d: %w", reduce.ErrWorkerLost, k.Rank, err))
	}
}

// cut closes a lost worker's connection, after its queue pair has failed. A worker that lives would otherwise get an answer on the
// way to it out of a buffer that is free and may hold another answer by then, and its further messages could end the job.
func (w *Workers) cut(k *link) {
	k.TakeOut()
	w.leave(k)
}

// leave closes a worker's connection. Its loss fails nothing afterwards.
func (w *Workers) leave(k *link) {
	k.Close()
	w.s.Machine.Leave(k.Rank)
	// The worker has its answers, or wants none. Their buffers are free although their arrival may never be confirmed.
	for i := range k.Unconfirmed {
		w.s.release(k.Forget(i))
	}
}

// Recover resumes broken connections whose workers have returned, and loses overdue ones. It reports whether others are
// still broken.
func (w *Workers) Recover() (broken bool) {
	if w.s.Job.Fail.Has() {
		return false
	}
	for _, k := range w.links {
		if k == nil || k.State != session.Broken && k.State != session.Resuming {
			continue
		}
		up, err := k.Recover()
		switch {
		case err != nil:
			w.Failed(k.Conn, k.SurvivesPost(), err)
		case up:
			w.s.Lane.Count.Failovers++
			continue
		case w.s.Lane.Now() > k.deadline:
			w.lose(k, fmt.Errorf("no path to it for %v", w.s.Job.Timeouts.Link))
			continue
		}
		if k.unnotified {
			w.announce(k)
		}
		broken = true
	}
	return broken
}

// Notified reports whether all reachable workers have received the notice that the job has failed.
func (w *Workers) Notified() bool {
	if w.s.Machine.State != reduce.Ended {
		return false
	}
	for _, k := range w.links {
		if k != nil && k.State == session.Up && k.Unconfirmed > 0 {
			return false
		}
	}
	return true
}

// Leave closes the connection of a worker that has left the job in peace.
func (w *Workers) Leave(rank int) {
	if k := w.links[rank]; k != nil {
		w.leave(k)
	}
}

// Streaming reports whether a worker's results for a tensor of the lane go past the cache. named reports whether the worker has
// named memory for them.
func (w *Workers) Streaming(rank, tensor int) (streaming, named bool) {
	d := w.links[rank].dst[tensor]
	return d.pastCache, d.addr != 0
}

// PeerOf returns the number by which the verbs identify a worker. Only that peer can write the worker's slots.
func PeerOf(rank int) int { return 1 + rank }

// Attach opens the connection of a worker whose payloads go into slots. Attach and the methods below are called on the lane's
// goroutine.
func (w *Workers) Attach(rank int, slots *store.Region, pds []*verbs.PD, e *chunk.WorkerLane) (chunk.AggregatorLane, error) {
	if w.links[rank] != nil {
		return chunk.AggregatorLane{}, fmt.Errorf("worker %d is attached already", rank)
	}
	attr, depths := w.s.Lane.Attr, w.s.Lane.Depths
	inline := 0
	if attr.Has(verbs.DevCopiesAtPost) && int(attr.MaxInline) >= w.s.Job.ChunkBytes {
		inline = w.s.Job.ChunkBytes
	}
	c, err := w.s.Flow.NewConn(w, rank, session.Config{
		Peer: PeerOf(rank), SendDepth: depths.AggregatorSend, RecvDepth: depths.AggregatorRecv, MaxInline: inline,
		ByReference: attr.Has(verbs.DevByReference), Resumable: e.Resumable && attr.Has(verbs.DevLink),
		Timeout: w.s.Job.Timeouts.Peer, AckTimeout: e.AckTimeout, InlineCompletionPeriod: depths.AggregatorSend / 4,
	})
	if err != nil {
		return chunk.AggregatorLane{}, err
	}
	k := &link{Conn: c, slots: slots, replyAddr: e.ReplyAddr, replyRKey: e.ReplyRKey,
		staging: uint64(e.Staging) * uint64(w.s.Job.ChunkBytes)}
	endpoint, err := w.connect(k, w.s.Lane.NIC(), pds, e.Endpoint)
	if err != nil {
		return chunk.AggregatorLane{}, errors.Join(err, w.s.Lane.Drop(c))
	}
	k.dst = make([]destination, len(w.s.Store.Tensors))
	k.gauge.fit(w.s.Store)
	if w.s.stream != nil {
		k.stream.fit(w.s.Store)
	}
	w.links[rank] = k
	w.s.Machine.Attach(rank, int(e.Staging))
	return k.attached(endpoint), nil
}

// connect makes a connection's queue pair on a NIC. The queue pair waits for the worker.
func (w *Workers) connect(k *link, nic int, pds []*verbs.PD, peer []byte) (endpoint []byte, err error) {
	defer w.s.Lane.Recount()
	path, err := w.s.Lane.Path(nic, pds)
	if err != nil {
		return nil, err
	}
	if endpoint, err = k.Open(path); err != nil {
		return nil, err
	}
	return endpoint, k.Join(peer, false)
}

// current returns a worker's connection unless a later attempt than r has it.
func (w *Workers) current(rank int, r *chunk.Resume) (*link, error) {
	k := w.links[rank]
	if r.Attempt != k.attempt {
		return nil, w.stale(k, r)
	}
	return k, nil
}

func (w *Workers) stale(k *link, r *chunk.Resume) error {
	return fmt.Errorf("attempt %d to resume lane %d of worker %d: %w: there was attempt %d", r.Attempt, r.Lane, k.Rank, ErrStale, k.attempt)
}

// TakeOut takes the connection's queue pair out of service.
func (w *Workers) TakeOut(rank int, r *chunk.Resume) error {
	k := w.links[rank]
	switch {
	case k == nil || !k.Resumable || k.State == session.Closed || w.s.Machine.State != reduce.Running:
		return fmt.Errorf("lane %d of worker %d cannot be resumed", r.Lane, rank)
	case r.Attempt <= k.attempt:
		return w.stale(k, r)
	}
	k.attempt, k.unnotified = r.Attempt, false
	if k.State == session.Up {
		k.deadline = w.s.Lane.Now() + int64(w.s.Job.Timeouts.Link)
	}
	w.s.Lane.Broke()
	k.Conn.TakeOut()
	return nil
}

// Drain completes the messages that the queue pair received before it was out of service. It reports whether none is left.
func (w *Workers) Drain(rank int, r *chunk.Resume) (bool, error) {
	k, err := w.current(rank, r)
	if err != nil {
		return false, err
	}
	return w.s.Flow.Drain(k.Conn)
}

// Reconnect makes the new queue pair.
func (w *Workers) Reconnect(rank int, r *chunk.Resume, mem *store.Memory) (chunk.Resumed, error) {
	k, err := w.current(rank, r)
	if err != nil {
		return chunk.Resumed{}, err
	}
	w.s.Flow.Dispatch()
	if err := k.Disconnect(); err != nil {
		return chunk.Resumed{}, err
	}
	violate := func(format string, args ...any) (chunk.Resumed, error) {
		w.s.Machine.Violate(rank, format, args...)
		w.s.CarryOut()
		return chunk.Resumed{}, w.s.Failure()
	}
	n, err := k.Arrived(r.Received)
	if err != nil {
		return violate("says of lane %d: %w", r.Lane, err)
	}
	w.Delivered(k.Conn, n)
	w.s.Flow.Schedule()
	if err := k.aim(r.NIC, r.Regions, mem); err != nil {
		return violate("resumed lane %d without a key for what it waits for: %w", r.Lane, err)
	}
	k.AckTimeout = r.AckTimeout
	endpoint, err := w.connect(k, r.NIC, mem.PDs, r.Endpoint)
	if err != nil {
		return chunk.Resumed{}, err
	}
	return chunk.Resumed{AggregatorLane: k.attached(endpoint), Received: k.Received}, nil
}
