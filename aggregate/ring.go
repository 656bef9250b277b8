package aggregate

import "github.com/rackweave/rackweave/verbs"

// sendRing keeps a connection's messages, as the work requests they are, from when they are made until the transport or the
// worker says that they have arrived: first those that were posted, then those that were not. It outlives queue pairs, so that
// another can carry what one has lost.
type sendRing struct {
	wrs      []verbs.SendWR // as many as the send queue takes
	results  []int32        // the result buffer that each holds; noResult: none
	head     int            // the oldest
	used     int
	unposted int    // of used, the last ones: not given to the queue pair there is
	done     uint64 // messages that left the ring
	reached  uint64 // messages that were ever given to a queue pair, those that left included
}

func newSendRing(depth int) sendRing {
	return sendRing{wrs: make([]verbs.SendWR, depth), results: make([]int32, depth)}
}

func (r *sendRing) free() int { return len(r.wrs) - r.used }

// index is where the i-th oldest message lies.
func (r *sendRing) index(i int) int {
	if i += r.head; i >= len(r.wrs) {
		i -= len(r.wrs)
	}
	return i
}

// put appends a message, which has room.
func (r *sendRing) put(result int32) *verbs.SendWR {
	i := r.index(r.used)
	r.used++
	r.unposted++
	r.results[i] = result
	return &r.wrs[i]
}

// last is the youngest message.
func (r *sendRing) last() *verbs.SendWR { return &r.wrs[r.index(r.used-1)] }

// take removes the oldest message and returns the result buffer that it held.
func (r *sendRing) take() int32 {
	result := r.results[r.head]
	r.head = r.index(1)
	r.used--
	r.done++
	return result
}

// post gives the queue pair what is not posted: in one piece, or two where the ring ends in between.
func (r *sendRing) post(qp *verbs.QP) (doorbells uint64, err error) {
	for r.unposted > 0 && err == nil {
		from := r.index(r.used - r.unposted)
		n := min(r.unposted, len(r.wrs)-from)
		_, err = qp.PostSend(r.wrs[from : from+n])
		r.unposted -= n
		doorbells++
	}
	r.reached = max(r.reached, r.done+uint64(r.used-r.unposted))
	return doorbells, err
}
