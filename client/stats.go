package client

import (
	"fmt"

	cworker "github.com/rackweave/rackweave/cgo/worker"
)

// Stats counts what a worker has done since it joined.
type Stats struct {
	SentBytes, ReceivedBytes   uint64 // of payload, as it travels
	SentChunks, ReceivedChunks uint64
	Doorbells                  uint64 // posts to send queues
	NACKs                      uint64 // chunks that the aggregator asked to send again later
	Sleeps                     uint64 // waits that slept
	Failovers                  uint64 // times that a lane resumed over another queue pair
}

// Stats returns what the worker has done so far.
func (x *exchange) Stats() (Stats, error) {
	x.using.RLock()
	defer x.using.RUnlock()
	if err := x.Err(); err != nil {
		return Stats{}, fmt.Errorf("stats: %w", err)
	}
	if x.tensors.Load() == nil {
		return Stats{}, nil
	}
	var s cworker.Stats
	cworker.StatsOf(x.c, &s)
	return Stats{
		SentBytes: s.SentBytes, ReceivedBytes: s.ReceivedBytes, SentChunks: s.SentChunks, ReceivedChunks: s.ReceivedChunks,
		Doorbells: s.Doorbells, NACKs: s.NACKs, Sleeps: s.Sleeps, Failovers: x.session.Failovers(),
	}, nil
}
