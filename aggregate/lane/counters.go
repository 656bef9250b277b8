package lane

import "math/bits"

// LatencyBuckets is the number of buckets of a lane's chunk latency histogram: bucket i counts latencies below 2^i µs.
const LatencyBuckets = 24

// SampleEvery is the number of chunks from one whose fold and post are timed to the next.
const SampleEvery = 64

// Counters holds the counters of a lane. The lane counts in plain memory and publishes a copy now and then ([Lane.Counters]), so
// that counting costs the hot path no atomic and a scrape never waits for a chunk.
type Counters struct {
	RecvBytes, SentBytes uint64
	Messages, Answers    uint64
	Chunks               uint64 // folds finished
	Doorbells            uint64
	Rounds, Sleeps       uint64
	FoldNS, PostNS       uint64 // sums over the chunks that were timed, Samples in number
	Samples              uint64
	Deferred             uint64 // folds that had to wait for send-queue or result space
	NACKs, Requests      uint64
	Dropped              uint64 // late, duplicate or foreign messages
	Breaks, Failovers    uint64 // broken connections, and resumptions over another queue pair
	FoldsOpen, SlotsHeld uint64 // now
	UpdatedBytes         uint64 // of parameters that commits updated, without messages
	// AboveRecvBytes and AboveSentBytes count sums and results, with their notes, from and to other racks' aggregators.
	AboveRecvBytes, AboveSentBytes uint64
	LatencySumNS                   uint64
	Latency                        [LatencyBuckets]uint64 // from a chunk's first arrival to its answer
}

// Observe counts a chunk's latency.
func (c *Counters) Observe(latencyNS int64) {
	c.LatencySumNS += uint64(latencyNS)
	c.Latency[min(bits.Len64(uint64(max(latencyNS, 0)/1000)), LatencyBuckets-1)]++
}

// moved counts the bytes that the lane has received, sent, and updated without messages.
func (c *Counters) moved() uint64 { return c.RecvBytes + c.SentBytes + c.UpdatedBytes }
