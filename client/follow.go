package client

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	cworker "github.com/rackweave/rackweave/cgo/worker"
	"github.com/rackweave/rackweave/client/lanes"
	"github.com/rackweave/rackweave/client/membership"
	"github.com/rackweave/rackweave/service/api"
	"github.com/rackweave/rackweave/verbs"
)

const (
	lookEvery       = 20 * time.Millisecond  // for queue pairs that failed
	eventSlice      = 100 * time.Millisecond // after which following a NIC looks whether the worker has ended
	reconnectWithin = 300 * time.Millisecond // over a path that works it takes a millisecond
	noticeWithin    = 800 * time.Millisecond // for an acknowledgement, while another path is open
)

// follower keeps every lane on its best path. It reports events of links and connections to the worker's session, and makes the
// session take the steps of failovers.
type follower struct {
	w    *Worker
	kick chan struct{} // has an element when something happened
	work sync.WaitGroup

	mu      sync.Mutex
	session *lanes.Session // if nil, it is not open yet
	down    map[int][]int  // by aggregator: its NICs that have no link, by their numbers in the whole job
}

// open starts to report events to the worker's session, and the worker's failure to the C worker.
func (f *follower) open() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.session = f.w.session
	f.session.AggregatorLinks(slices.Concat(slices.Collect(maps.Values(f.down))...))
	f.work.Go(func() {
		<-f.w.Failed()
		cworker.Abort(f.session.C, f.w.Err().Error())
	})
}

// start follows links and lanes until the worker ends.
func (f *follower) start() {
	if !f.session.Resumable {
		return
	}
	for nic := range f.w.devices {
		f.work.Go(func() { f.follow(nic) })
	}
	f.work.Go(f.run)
}

// follow follows a NIC's events. A NIC that no longer reports any counts as one without a link.
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

// report reports to the session which links of an aggregator are down, and which connections broke there.
func (f *follower) report(a *membership.Aggregator, l *api.Links) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var down []int
	for _, nic := range l.Down {
		down = append(down, a.NIC+int(nic))
	}
	f.down[a.Number] = down
	if f.session == nil {
		return
	}
	f.session.AggregatorLinks(slices.Concat(slices.Collect(maps.Values(f.down))...))
	for _, b := range l.Broken {
		f.session.Broke(a.Lane+int(b.Lane), b.Attempt)
	}
	f.hurry()
}

// recode makes tensors use other codecs. On an error some may do so already, until the aggregator withdraws the codecs.
func (f *follower) recode(_ *membership.Aggregator, c *api.Codecs) error {
	f.mu.Lock()
	session := f.session
	f.mu.Unlock()
	if session == nil {
		return errors.New("no tensor is registered")
	}
	for t, place := range c.Places {
		if int(place) >= len(c.Codecs) {
			return fmt.Errorf("tensor %d has codec %d of %d", t, place, len(c.Codecs))
		}
		to := codecOf(c.Codecs[place])
		if err := session.Call("compress", func() int { return cworker.CompressFrom(session.C, uint32(t), to, c.From) }); err != nil {
			return err
		}
	}
	return nil
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
		case <-f.w.Failed():
			return
		case <-tick.C:
		case <-f.kick:
		}
		f.look()
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
			f.w.member.GiveUp(f.w.dataError("", err))
			return
		}
	}
}
