package chunk

import "time"

// A worker and an aggregator exchange these types, beside the messages, about the connection to a lane.

// WorkerLane is the worker's end of a lane's connection.
type WorkerLane struct {
	Endpoint  []byte
	ReplyAddr uint64 // address of its staging buffers, of a chunk each; by reference, answers overwrite the payloads instead
	ReplyRKey uint32
	Staging   uint32 // number of staging buffers: the window, or fewer by reference
	// AckTimeout is the time for which the aggregator retries a message that is not acknowledged. If 0, it is the contract's default.
	AckTimeout time.Duration
	// Resumable reports that the worker can resume the connection over other NICs when its queue pair fails.
	Resumable bool
}

// AggregatorLane is the aggregator's end.
type AggregatorLane struct {
	Endpoint []byte
	SlotAddr uint64
	SlotRKey uint32
}

// Resume is a worker's request to resume a lane's connection.
type Resume struct {
	Lane     int
	Attempt  uint64 // counts the worker's attempts of the lane, from 1; an attempt that arrives after a later one is refused
	NIC      int    // index among the aggregator's, for its end
	Received uint64 // number of messages from the aggregator
	Endpoint []byte
	Regions  []Region // the worker's memory, as the NIC that it uses knows it
	// AckTimeout is that of [WorkerLane].
	AckTimeout time.Duration
}

// Region is a worker's registered memory.
type Region struct {
	Addr, Length uint64
	RKey         uint32
}

// Resumed is the aggregator's answer.
type Resumed struct {
	AggregatorLane
	Received uint64 // number of messages from the worker
}
