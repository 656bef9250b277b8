package aggregate

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/rackweave/rackweave/aggregate/session"
	"github.com/rackweave/rackweave/verbs"
)

// seat gives a connection the place that vacant found.
func (l *Lane) seat(s *share, k *link) {
	n := k.ID().Number
	if n == len(l.seats) {
		l.seats = append(l.seats, seat{})
	}
	l.seats[n] = seat{s, k}
}

// connect makes a connection's queue pair on a NIC, which waits for the worker.
func (l *Lane) connect(s *share, k *link, nic int, pd *verbs.PD, peer []byte) (endpoint []byte, err error) {
	defer l.recount()
	if l.cqLost[nic] {
		return nil, fmt.Errorf("lane %d, NIC %d: %w: connect over another NIC, or start the aggregator anew", l.index, nic, ErrQueueLost)
	}
	return k.Connect(session.Path{NIC: nic, PD: pd, CQ: l.cqs[nic]}, peer)
}

// vacant returns the id of the next connection.
func (l *Lane) vacant() (id session.ID, err error) {
	taken := 0
	id.Number = len(l.seats)
	for i := len(l.seats) - 1; i >= 0; i-- {
		if l.seats[i].link == nil {
			id.Number = i
		} else {
			taken++
		}
	}
	if taken == l.depths.MaxConns {
		return id, fmt.Errorf("lane %d serves %d connections, all its completion queue can hold: %w", l.index, taken, ErrFull)
	}
	l.gen++
	id.Gen = l.gen & session.GenMask
	return id, nil
}

// drop takes a connection off the lane.
func (l *Lane) drop(k *link) error {
	n := k.ID().Number
	if n >= len(l.seats) || l.seats[n].link != k {
		return nil
	}
	k.Close()
	l.rung += k.Doorbells
	l.seats[n] = seat{}
	l.dirty = slices.DeleteFunc(l.dirty, func(o *link) bool { return o == k })
	defer l.recount()
	return k.Disconnect()
}

// leave takes a share off the lane, with its connections.
func (l *Lane) leave(s *share) error {
	var errs []error
	for _, k := range s.links {
		if k != nil {
			errs = append(errs, l.drop(k))
		}
	}
	if s.above != nil {
		for _, k := range s.above.links {
			if k != nil {
				errs = append(errs, l.drop(k))
			}
		}
	}
	if !s.dead {
		s.machine.End(noRank)
	}
	l.forget(s)
	return errors.Join(errs...)
}

// recount counts the connections of every NIC, after one has changed.
func (l *Lane) recount() {
	clear(l.on)
	for i := range l.seats {
		if k := l.seats[i].link; k != nil && k.NIC() >= 0 {
			l.on[k.NIC()]++
		}
	}
}

// away reports whether a connection is on another NIC than the lane's own.
func (l *Lane) away() bool {
	for nic, n := range l.on {
		if n > 0 && nic != l.primary {
			return true
		}
	}
	return false
}

// poll takes completions into l.wc, unless a round that panicked left some there. Where connections are on several NICs, none of
// the queues may keep the others waiting.
func (l *Lane) poll() (n int, err error) {
	if l.next < l.polled {
		return l.polled - l.next, nil
	}
	l.next = 0
	l.polled, err = l.pollAll()
	return l.polled, err
}

func (l *Lane) pollAll() (n int, err error) {
	if !l.away() {
		return l.take(l.primary, l.wc[:])
	}
	l.nextNIC++
	for i := 0; i < len(l.cqs) && n < len(l.wc) && err == nil; i++ {
		if nic := (l.nextNIC + i) % len(l.cqs); l.on[nic] > 0 {
			var more int
			more, err = l.take(nic, l.wc[n:])
			n += more
		}
	}
	return n, err
}

// take takes completions of one NIC's queue.
func (l *Lane) take(nic int, into []verbs.WC) (int, error) {
	if l.cqLost[nic] {
		return 0, nil
	}
	n, err := l.cqs[nic].Poll(into)
	if err != nil {
		return 0, l.loseQueue(nic, err)
	}
	return n, nil
}

// loseQueue takes note that a completion queue is lost, with what it held: the connections on that NIC fail over to others,
// where they can. Else it is an error, and the end of the lane.
func (l *Lane) loseQueue(nic int, err error) error {
	if len(l.cqs) == 1 || !l.attr.Has(verbs.DevLink) {
		return err
	}
	l.cqLost[nic] = true
	for i := range l.seats {
		s, k := l.seats[i].share, l.seats[i].link
		switch {
		case k == nil || k.NIC() != nic || k.State() == session.Closed:
		case k.Resumable():
			k.TakeOut()
			s.breakOff(k)
		default:
			s.fate.fail(noRank, fmt.Errorf("lane %d: %w", l.index, err))
		}
	}
	return nil
}

// completeAll dispatches what was polled.
func (l *Lane) completeAll() {
	for l.next < l.polled {
		l.next++
		l.complete(&l.wc[l.next-1])
	}
}

// complete dispatches one completion.
func (l *Lane) complete(wc *verbs.WC) {
	id := session.Owner(wc.WRID)
	if id.Number >= len(l.seats) || l.seats[id.Number].link == nil || l.seats[id.Number].link.ID() != id {
		return // of a connection that was closed meanwhile
	}
	s, k := l.seats[id.Number].share, l.seats[id.Number].link
	l.serving = s
	sends, isSend := session.IsSend(wc.WRID)
	ok := wc.Status == verbs.WCSuccess
	if !isSend {
		k.Completed(ok)
	}
	switch {
	case !ok:
		s.failed(k, wc.Status)
	case isSend && k.peer:
		s.sentAbove(k, sends)
	case isSend:
		s.sent(k, sends)
	default:
		l.touch(k)
		s.receive(k, wc)
	}
	l.list(s)
}

// recover looks after broken connections: one goes on when its worker has come, and is lost when it does not come in time.
func (l *Lane) recover() {
	l.broken = false
	for i := range l.seats {
		s, k := l.seats[i].share, l.seats[i].link
		if k != nil && s.lent {
			l.broken = true
			continue
		}
		if k == nil || k.State() != session.Broken && k.State() != session.Resuming || s.fate.failure.Load() != nil {
			continue
		}
		up, err := k.Recover()
		switch {
		case err != nil:
			s.refused(k, err)
		case up:
			l.local.Failovers++
			l.list(s)
			continue
		case l.now() > k.deadline:
			s.lose(k, fmt.Errorf("no path to it for %v", time.Duration(s.linkNS)))
			continue
		}
		if k.untold {
			s.tell(k)
		}
		l.broken = true
	}
}
