package client

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/rackweave/rackweave/client/lanes"
	"github.com/rackweave/rackweave/service/api"
	"github.com/rackweave/rackweave/verbs"
)

const (
	lookEvery       = 20 * time.Millisecond  // for queue pairs that failed
	eventSlice      = 100 * time.Millisecond // after which following a NIC looks whether the worker has ended
	reconnectWithin = 300 * time.Millisecond // over a path that works it takes a millisecond
	noticeWithin    = 800 * time.Millisecond // for an acknowledgement, while another path is open
)

// follower keeps every lane on its best path. It tells the worker's session what happens to links and connections, and lets it take
// the steps of failovers.
type follower struct {
	w    *Worker
	kick chan struct{} // has an element when something happened
	work sync.WaitGroup

	mu      sync.Mutex
	session *lanes.Session // nil until it is open
}

// open takes the session, once it is there.
func (f *follower) open(w *Worker) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.w, f.session, f.kick = w, w.session, make(chan struct{}, 1)
	f.session.AggregatorLinks(w.down())
}

// down lists the aggregators' NICs that have no link, numbered through. The caller holds the follower's lock.
func (w *Worker) down() (nics []int) {
	for _, a := range w.aggregators {
		for _, nic := range a.down {
			nics = append(nics, a.nic+int(nic))
		}
	}
	return nics
}

// start follows links and lanes until the worker ends.
func (f *follower) start() {
	if !f.session.Resumable() {
		return
	}
	for nic := range f.w.devices {
		f.work.Go(func() { f.follow(nic) })
	}
	f.work.Go(f.run)
}

func (f *follower) wait() { f.work.Wait() }

// follow takes a NIC's events. A NIC that reports none any more counts as one without a link.
func (f *follower) follow(nic int) {
	for f.w.Err() == nil {
		ev, ok, err := f.w.devices[nic].AsyncEvent(eventSlice)
		switch {
		case err != nil, ok && (ev.Type == verbs.EventDeviceFatal || ev.Type == verbs.EventCQErr):
			f.link(nic, false)
			return // a device that failed has to be opened anew
		case ok && (ev.Type == verbs.EventPortErr || ev.Type == verbs.EventPortActive):
			f.link(nic, ev.Type == verbs.EventPortActive)
		}
	}
}

func (f *follower) link(nic int, up bool) {
	f.session.WorkerLink(nic, up)
	f.hurry()
}

// told takes what an aggregator says of its links and of connections that broke there.
func (f *follower) told(a *aggregator, l *api.Links) {
	f.mu.Lock()
	defer f.mu.Unlock()
	a.down = l.Down
	if f.session == nil {
		return
	}
	f.session.AggregatorLinks(f.w.down())
	for _, b := range l.Broken {
		f.session.Broke(a.lane+int(b.Lane), b.Attempt)
	}
	f.hurry()
}

// hurry makes run look now.
func (f *follower) hurry() {
	select {
	case f.kick <- struct{}{}:
	default:
	}
}

func (f *follower) run() {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		select {
		case <-f.w.failed:
			return
		case <-tick.C:
		case <-f.kick:
		}
		f.w.using.RLock()
		if f.w.c != nil {
			f.look()
		}
		f.w.using.RUnlock()
	}
}

// look lets one lane after another take the steps that are due.
func (f *follower) look() {
	f.session.Look()
	for lane := range f.w.Lanes() {
		for more := true; more && f.w.Err() == nil; {
			var err error
			if more, err = f.session.Advance(context.Background(), lane); err == nil {
				continue
			}
			if errors.Is(err, lanes.ErrNoPath) {
				err = fmt.Errorf("%w: %w", ErrServerLost, err)
			}
			f.w.giveUp(f.w.sessionError(err))
			return
		}
	}
}
