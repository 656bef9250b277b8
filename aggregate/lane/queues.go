package lane

import "github.com/rackweave/rackweave/verbs"

// queues holds a lane's completion queues, one per NIC, and the completions that a round took off them. The lane's own NIC is
// always polled, and others only while connections are on them.
type queues struct {
	l       *Lane
	cqs     []*verbs.CQ
	lost    []bool // by NIC
	on      []int  // connections by NIC
	primary int    // index of the lane's own NIC
	rotate  int    // index of the NIC that is polled first, if several are polled
	wc      [pollBatch]verbs.WC
	next    int // index of the first completion that is not dispatched
	polled  int
}

// away reports whether a connection is on another NIC than the lane's own.
func (q *queues) away() bool {
	for nic, n := range q.on {
		if n > 0 && nic != q.primary {
			return true
		}
	}
	return false
}

// poll takes completions, unless a round that panicked left some. Where connections are on several NICs, it polls them in turn, so
// that no queue keeps the others waiting.
func (q *queues) poll() (n int, err error) {
	if q.next < q.polled {
		return q.polled - q.next, nil
	}
	q.next = 0
	q.polled, err = q.pollAll()
	return q.polled, err
}

func (q *queues) pollAll() (n int, err error) {
	if !q.away() {
		return q.take(q.primary, q.wc[:])
	}
	q.rotate++
	for i := 0; i < len(q.cqs) && n < len(q.wc) && err == nil; i++ {
		if nic := (q.rotate + i) % len(q.cqs); q.on[nic] > 0 {
			var more int
			more, err = q.take(nic, q.wc[n:])
			n += more
		}
	}
	return n, err
}

// take takes completions off one NIC's queue. If the queue is lost, its connections fail over to other NICs where they can.
// Otherwise take returns an error, which ends the lane.
func (q *queues) take(nic int, into []verbs.WC) (int, error) {
	if q.lost[nic] {
		return 0, nil
	}
	n, err := q.cqs[nic].Poll(into)
	if err == nil {
		return n, nil
	}
	if len(q.cqs) == 1 || !q.l.Attr.Has(verbs.DevLink) {
		return 0, err
	}
	q.lost[nic] = true
	for _, c := range q.l.conns.all {
		if c != nil && c.NIC() == nic {
			c.handler.QueueLost(c, err)
		}
	}
	return 0, nil
}

// sortAll sorts the polled completions by flow, and polls for more.
func (q *queues) sortAll() (err error) {
	for taken := 0; ; {
		for q.next < q.polled {
			q.next++
			q.l.flows.sort(&q.wc[q.next-1])
		}
		if taken += q.polled; q.polled < len(q.wc) || taken >= sortMost {
			return nil
		}
		q.next = 0
		if q.polled, err = q.pollAll(); err != nil {
			return err
		}
	}
}

func (q *queues) completeAll() {
	for q.next < q.polled {
		q.next++
		q.l.complete(&q.wc[q.next-1])
	}
}
