package aggregate

// LatencyBuckets is the number of buckets of a lane's chunk latency histogram: bucket i counts latencies below 2^i µs.
const LatencyBuckets = 24

// SampleEvery is how many chunks pass between two whose fold and post are timed.
const SampleEvery = 64

// Counters is what a lane has done so far. The lane counts in plain memory and publishes a copy now and then
// ([Lane.Counters]), so that counting costs the hot path no atomic and a scrape never waits for a chunk.
type Counters struct {
	RecvBytes, SentBytes uint64
	Messages, Answers    uint64
	Chunks               uint64 // folds finished
	Doorbells            uint64
	Rounds, Sleeps       uint64
	FoldNS, PostNS       uint64 // of the Samples chunks that were timed
	Samples              uint64
	Deferred             uint64 // folds that had to wait for send-queue or result space
	NACKs, Requests      uint64
	Dropped              uint64 // late, duplicate or foreign messages
	Moves                uint64 // chunks that went to another lane
	Breaks, Failovers    uint64 // connections that broke, and that resumed over another queue pair
	FoldsOpen, SlotsHeld uint64 // now
	// To and from other racks' aggregators: sums and results, with their notes.
	AboveRecvBytes, AboveSentBytes uint64
	LatencySumNS                   uint64
	Latency                        [LatencyBuckets]uint64 // from a chunk's first arrival to its answer
}

// WorkerCounters is what one worker did in one lane.
type WorkerCounters struct {
	RecvBytes, SentBytes uint64
	Chunks               uint64
	LastArrivals         uint64 // chunks for which this worker was the last
	LatenessNS           uint64 // how long after a chunk's first arrival this worker's came, summed
}

// RackCounters is what a lane has of a job to do with another rack.
type RackCounters struct {
	OwnedBytes           uint64 // of parameters, on which that rack runs the optimizer
	RecvBytes, SentBytes uint64 // sums and results, with their notes
	Awaited              uint64 // chunks that wait for that rack's sum, or for its result
}

func (c *RackCounters) add(o *RackCounters) {
	c.OwnedBytes += o.OwnedBytes
	c.RecvBytes += o.RecvBytes
	c.SentBytes += o.SentBytes
	c.Awaited += o.Awaited
}

func (c *Counters) observe(latencyNS int64) {
	c.LatencySumNS += uint64(latencyNS)
	us, b := latencyNS/1000, 0
	for us > 0 && b < LatencyBuckets-1 {
		us >>= 1
		b++
	}
	c.Latency[b]++
}

func (c *WorkerCounters) add(o *WorkerCounters) {
	c.RecvBytes += o.RecvBytes
	c.SentBytes += o.SentBytes
	c.Chunks += o.Chunks
	c.LastArrivals += o.LastArrivals
	c.LatenessNS += o.LatenessNS
}
