package aggregate

import (
	"github.com/rackweave/rackweave/aggregate/session"
	"github.com/rackweave/rackweave/verbs"
)

const (
	// quantum is how many bytes the share with the most weight may move in a round. Those of less weight may move their part of it.
	quantum = 128 << 10
	// messageCost is what a message costs beside its bytes.
	messageCost = 256
	// sortMost bounds the completions that a round takes off the completion queue.
	sortMost = 4096
)

// alone reports whether the lane serves one share only: then completions need no order but their own.
func (l *Lane) alone() bool { return len(l.shares) <= 1 && l.queued == 0 && l.lent == 0 }

// deal puts a completion into its share's inbox.
func (l *Lane) deal(wc *verbs.WC) {
	if n := session.Owner(wc.WRID).Number; n < len(l.seats) && l.seats[n].share != nil {
		l.seats[n].share.inbox.put(wc)
		l.queued++
	}
}

// dealAll deals what was polled, and polls on.
func (l *Lane) dealAll() (err error) {
	for taken := 0; ; {
		for l.next < l.polled {
			l.next++
			l.deal(&l.wc[l.next-1])
		}
		if taken += l.polled; l.polled < len(l.wc) || taken >= sortMost {
			return nil
		}
		l.next = 0
		if l.polled, err = l.pollAll(); err != nil {
			return err
		}
	}
}

// dispatch empties a share's inbox.
func (l *Lane) dispatch(s *share) {
	for s.inbox.n > 0 {
		l.queued--
		wc := s.inbox.take()
		l.complete(&wc)
	}
}

// due reports whether a share has something to do.
func (s *share) due() bool { return !s.lent && (s.inbox.n > 0 || s.listed) }

// serve lets every share that has something to do move as many bytes as its weight allows, and reports whether there is more to
// do at once. It is deficit round robin: what a share moves beyond its part of a round it owes to the next.
func (l *Lane) serve() (more bool) {
	most := uint64(0)
	for _, s := range l.shares {
		if s.due() {
			most = max(most, s.weight)
		} else {
			s.credit = min(s.credit, 0)
		}
	}
	for served := most == 0; !served; {
		for i := range l.shares {
			s := l.shares[(l.first+i)%len(l.shares)]
			if !s.due() {
				continue
			}
			s.credit = min(s.credit+int64(max(quantum*s.weight/most, 1)), quantum)
			if s.credit > 0 {
				served = true
				more = l.serveOne(s) || more
			}
			more = more || s.inbox.n > 0 || s.credit <= 0
		}
	}
	l.first++
	return more
}

// serveOne lets a share use its credit, and reports whether it did something.
func (l *Lane) serveOne(s *share) (worked bool) {
	l.serving = s
	before := l.moved()
	if s.listed {
		worked = s.advance()
	}
	for s.inbox.n > 0 && s.credit > int64(l.moved()-before) {
		s.credit -= messageCost
		l.queued--
		wc := s.inbox.take()
		l.complete(&wc)
		worked = true
	}
	s.credit -= int64(l.moved() - before)
	return worked
}

// moved counts the bytes that the lane has received, sent, and updated without either.
func (l *Lane) moved() uint64 { return l.local.RecvBytes + l.local.SentBytes + l.updated }
