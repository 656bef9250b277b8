package lane

import (
	"fmt"

	"github.com/rackweave/rackweave/aggregate/reduce"
)

// recvMargin is the number of messages between a worker and a lane outside the window: NACKs, requests and an abort.
const recvMargin = reduce.SendMargin

// pollBatch is the number of completions that a round takes. It is so small that their chunks' results stay in the core's cache
// until they are posted.
const pollBatch = 16

// These constants bound the window of a worker (cgo/worker).
const (
	MinWindow = 2
	MaxWindow = 4096
)

// Depths are the queue depths of one connection between a worker and a lane, and of the lane's completion queue.
type Depths struct {
	WorkerSend, WorkerRecv         int
	AggregatorSend, AggregatorRecv int
	PeerSend, PeerRecv             int // of a connection between aggregators
	CQ                             int // of the lane
	MaxConns                       int // connections that the lane's completion queue can hold
}

// QueueDepths sizes every queue from the window, which bounds the messages of one worker that one lane has not answered.
//
//   - A worker sends at most window messages before an answer comes. A message's send-queue entry is free only when a later
//     completion was polled, and the answer may overtake that completion, so the queue has twice the window.
//   - The aggregator receives at most window messages and a round's batch more, because it posts receives again only at a
//     round's end, when answers have already let the worker send. It answers each message once, so its send queue is sized
//     likewise, plus a NACK and a request for each message (package reduce) and the abort.
//   - A worker receives an answer for each message, plus NACKs and requests, which the aggregator stops sending at the margin.
//   - An aggregator receives from another at most half a window of sums, notices that half a window of its own were taken, and
//     a window of results. Its own messages wait for room. Both together are as large as for a worker.
//   - The lane's completion queue must hold all completions of its connections at once, or it overruns.
//
// maxQPWR and maxCQE are the device's limits, and maxConns is the wanted number of connections.
func QueueDepths(window, maxConns int, maxQPWR, maxCQE uint32) (Depths, error) {
	if window < MinWindow || window > MaxWindow {
		return Depths{}, fmt.Errorf("window of %d: use %d to %d", window, MinWindow, MaxWindow)
	}
	d := Depths{
		WorkerSend: 2*window + recvMargin, WorkerRecv: window + recvMargin,
		AggregatorSend: 2*window + 2*recvMargin, AggregatorRecv: window + recvMargin + pollBatch,
	}
	d.PeerSend, d.PeerRecv = d.AggregatorSend-window, d.AggregatorRecv+window
	if need := max(d.WorkerSend, d.AggregatorSend, d.AggregatorRecv); need > int(maxQPWR) {
		return d, fmt.Errorf("window of %d needs queue pairs of %d work requests, the device allows %d: use a window of at most %d",
			window, need, maxQPWR, (int(maxQPWR)-2*recvMargin)/2)
	}
	perConn := d.AggregatorSend + d.AggregatorRecv
	d.MaxConns = min(maxConns, int(maxCQE)/perConn)
	if d.MaxConns < 1 {
		return d, fmt.Errorf("window of %d needs %d completion queue entries for one worker, the device allows %d", window,
			perConn,
			maxCQE)
	}
	d.CQ = d.MaxConns * perConn
	return d, nil
}
