package client

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	cworker "github.com/rackweave/rackweave/cgo/worker"
	"github.com/rackweave/rackweave/service/api"
	"github.com/rackweave/rackweave/verbs"
)

const (
	lookEvery     = 20 * time.Millisecond  // how long a queue pair that failed may go unseen
	eventSlice    = 100 * time.Millisecond // how long a pump can take to see that it should end
	connectWithin = 300 * time.Millisecond // over a way that works it takes a millisecond
	resumeWithin  = time.Second            // for the call
	noticeWithin  = 800 * time.Millisecond // until a message that is not acknowledged breaks the connection, where there is another way
	firstPenalty  = time.Second
	mostDoublings = 6
)

// way is where a lane's connection goes: a NIC of the aggregator's, as lanes number them, and one of the worker's.
type way struct{ box, nic int }

// mover keeps every lane on the best way there is. A lane has a home; when a link of that fails, or its queue pair does, it goes
// another way, and comes back when it can.
type mover struct {
	w     *Worker
	able  bool // there is more than one way, and links that can fail
	ways  []way
	lanes []laneWay // touched by one goroutine
	moves atomic.Uint64
	kick  chan struct{}
	work  sync.WaitGroup

	mu      sync.Mutex
	boxDown []uint32
	usable  []time.Time // from when on, by NIC of the worker's
	broken  []*api.BrokenLane
	bad     map[way]penalty
}

type laneWay struct {
	home, at way
	attempt  uint64    // to resume
	since    time.Time // that it has been broken; zero: it is not
}

// penalty keeps a way that failed, though no link seems down, from being tried first.
type penalty struct {
	until     time.Time
	doublings int
}

// never is when a NIC without a link can be used.
var never = time.Unix(1<<40, 0)

// open works out the lanes' homes, once the NICs are there.
func (m *mover) open(w *Worker) {
	m.w = w
	m.lanes = make([]laneWay, len(w.info.Lanes))
	boxes := map[int]bool{}
	for i, l := range w.info.Lanes {
		home := way{int(l.Nic), int(l.Nic) % len(w.nics)}
		m.lanes[i] = laneWay{home: home, at: home}
		boxes[home.box] = true
	}
	linked := true
	for _, n := range w.nics {
		linked = linked && n.device.Attr().Has(verbs.DevLink)
	}
	for box := range boxes {
		for nic := range w.nics {
			m.ways = append(m.ways, way{box, nic})
		}
	}
	m.able = linked && len(m.ways) > 1
	m.mu.Lock()
	defer m.mu.Unlock()
	m.usable = make([]time.Time, len(w.nics))
}

// start follows links and lanes until the worker ends.
func (m *mover) start() {
	if !m.able {
		return
	}
	for nic := range m.w.nics {
		m.work.Go(func() { m.follow(nic) })
	}
	m.work.Go(m.run)
}

func (m *mover) wait() { m.work.Wait() }

// follow takes a NIC's events. One that cannot say how it is, is as good as one without a link.
func (m *mover) follow(nic int) {
	for m.w.Err() == nil {
		ev, ok, err := m.w.nics[nic].device.AsyncEvent(eventSlice)
		switch {
		case err != nil, ok && (ev.Type == verbs.EventDeviceFatal || ev.Type == verbs.EventCQErr):
			m.link(nic, never)
			return // it comes back, if ever, to a worker that opens it anew
		case ok && ev.Type == verbs.EventPortErr:
			m.link(nic, never)
		case ok && ev.Type == verbs.EventPortActive:
			m.link(nic, time.Now().Add(verbs.LinkSettles))
		}
	}
}

func (m *mover) link(nic int, usable time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.usable[nic] = usable
	m.bad = nil
	m.hurry()
}

// told takes what the aggregator says of its own links and of connections that broke there.
func (m *mover) told(l *api.Links) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !slices.Equal(m.boxDown, l.Down) {
		m.boxDown, m.bad = l.Down, nil
	}
	m.broken = append(m.broken, l.Broken...)
	m.hurry()
}

// hurry makes run look now; under mu.
func (m *mover) hurry() {
	if m.kick != nil {
		select {
		case m.kick <- struct{}{}:
		default:
		}
	}
}

func (m *mover) run() {
	kick := make(chan struct{}, 1)
	m.mu.Lock()
	m.kick = kick
	m.mu.Unlock()
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	broken := make([]uint8, len(m.lanes))
	for {
		select {
		case <-m.w.failed:
			return
		case <-tick.C:
		case <-kick:
		}
		m.w.using.RLock()
		if m.w.c != nil {
			m.look(broken)
		}
		m.w.using.RUnlock()
	}
}

// look finds the lanes that should go another way, and takes them there.
func (m *mover) look(broken []uint8) {
	cworker.Broken(m.w.c, broken)
	m.mu.Lock()
	for _, b := range m.broken {
		if int(b.Lane) < len(m.lanes) && b.Attempt == m.lanes[b.Lane].attempt {
			broken[b.Lane] = 1
		}
	}
	m.broken = nil
	m.mu.Unlock()
	for i := range m.lanes {
		l := &m.lanes[i]
		if broken[i] != 0 && l.since.IsZero() {
			l.since = time.Now()
			m.punish(l.at)
		}
		ways := m.best(i)
		if l.since.IsZero() && (len(ways) == 0 || ways[0] == l.at) {
			continue
		}
		m.move(i, ways)
		if limit := m.linkTimeout(); !l.since.IsZero() && time.Since(l.since) > limit {
			m.w.giveUp(fmt.Errorf("%w: lane %d: no way to the aggregator for %v", ErrServerLost, i, limit))
			return
		}
	}
}

func (m *mover) linkTimeout() time.Duration {
	return time.Duration(m.w.info.LinkTimeoutMs) * time.Millisecond
}

// ackTimeout is how long a message that is not acknowledged is sent again: where there is another way, not long.
func (m *mover) ackTimeout() time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	open := 0
	for _, w := range m.ways {
		if m.isOpen(w) {
			open++
		}
	}
	if m.able && open > 1 {
		return min(noticeWithin, m.linkTimeout())
	}
	return m.linkTimeout()
}

// isOpen tells whether no link of a way is known to be down; under mu.
func (m *mover) isOpen(w way) bool {
	return !slices.Contains(m.boxDown, uint32(w.box)) && !time.Now().Before(m.usable[w.nic])
}

// best lists the ways open to a lane: its home first, then those from NIC to NIC of the same number, as a rack's NICs may be
// wired, beginning with another one for every lane, then the others; last those that failed lately.
func (m *mover) best(lane int) []way {
	m.mu.Lock()
	defer m.mu.Unlock()
	home, now := m.lanes[lane].home, time.Now()
	rank := func(w way) int {
		r := (w.box + lane) % len(m.ways)
		switch {
		case w == home:
			r = -1
		case w.nic != w.box%len(m.w.nics):
			r += len(m.ways) * (1 + w.nic)
		}
		if now.Before(m.bad[w].until) {
			r += 1 << 20
		}
		return r
	}
	var out []way
	for _, w := range m.ways {
		if m.isOpen(w) {
			out = append(out, w)
		}
	}
	slices.SortFunc(out, func(a, b way) int { return rank(a) - rank(b) })
	return out
}

func (m *mover) punish(w way) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.bad == nil {
		m.bad = map[way]penalty{}
	}
	p := m.bad[w]
	m.bad[w] = penalty{time.Now().Add(firstPenalty << p.doublings), min(p.doublings+1, mostDoublings)}
}

// move takes a lane out of service and tries ways until one works.
func (m *mover) move(lane int, ways []way) {
	w, l := m.w, &m.lanes[lane]
	if l.since.IsZero() {
		l.since = time.Now()
	}
	var received uint64
	err := w.claimed(func() (err error) {
		received, err = w.detach(lane)
		return err
	})
	for i := 0; err == nil && i < len(ways) && w.Err() == nil; i++ {
		if m.resume(lane, ways[i], received) == nil {
			l.at, l.since = ways[i], time.Time{}
			m.moves.Add(1)
			return
		}
		m.punish(ways[i])
	}
}

// resume takes up a lane over a way.
func (m *mover) resume(lane int, to way, received uint64) error {
	w, l := m.w, &m.lanes[lane]
	var qp *verbs.QP
	var endpoint []byte
	err := w.claimed(func() (err error) {
		if qp, err = w.createQP(to.nic); err == nil {
			endpoint, err = qp.Endpoint()
		}
		return err
	})
	var box *api.ResumeResponse
	if err == nil {
		l.attempt++
		box, err = m.call(lane, to, received, endpoint)
	}
	return w.claimed(func() error {
		if err == nil {
			err = w.meet(lane, qp, box.Lane, connectWithin)
		}
		if err == nil {
			w.lanes[lane].NIC = uint32(to.nic)
			if rc := cworker.Resume(w.c, lane, &w.lanes[lane], box.Received); rc < 0 {
				err = w.dataError(fmt.Sprintf("resume lane %d", lane), rc)
			}
		}
		if err != nil && qp != nil {
			return errors.Join(err, qp.Close())
		}
		w.qps[lane] = qp
		return err
	})
}

func (m *mover) call(lane int, to way, received uint64, endpoint []byte) (*api.ResumeResponse, error) {
	ctx, cancel := context.WithTimeout(context.Background(), resumeWithin)
	defer cancel()
	r := &api.ResumeRequest{
		Session: m.w.info.Session, Lane: uint32(lane), Attempt: m.lanes[lane].attempt, Nic: uint32(to.box), Received: received, Endpoint: endpoint,
		AckTimeoutMs: uint32(m.ackTimeout().Milliseconds()),
	}
	for _, mr := range cworker.Regions(m.w.c, to.nic) {
		r.Regions = append(r.Regions, &api.Region{Addr: mr.Addr, Length: mr.Length, Rkey: mr.RKey})
	}
	box, err := m.w.rpc.Resume(ctx, r)
	if err == nil && box.Lane == nil {
		err = errors.New("resume: the aggregator's answer is incomplete")
	}
	return box, err
}

// claimed runs f while no other thread drives the queues.
func (w *Worker) claimed(f func() error) error {
	if rc := cworker.Claim(w.c); rc < 0 {
		return w.dataError("claim the queues", rc)
	}
	defer cworker.Release(w.c)
	return f()
}

// detach takes a lane's queue pair out of service and destroys it; it returns how many messages came over the lane.
func (w *Worker) detach(lane int) (received uint64, err error) {
	received, rc := cworker.Detach(w.c, lane)
	if rc < 0 {
		return received, w.dataError(fmt.Sprintf("detach lane %d", lane), rc)
	}
	if qp := w.qps[lane]; qp != nil {
		w.qps[lane] = nil
		err = qp.Close()
	}
	return received, err
}
