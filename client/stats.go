package client

import (
	"fmt"

	cworker "github.com/rackweave/rackweave/cgo/worker"
)

// Stats is what a worker has moved.
type Stats struct {
	SentBytes, ReceivedBytes   uint64
	SentChunks, ReceivedChunks uint64
	Doorbells                  uint64 // posts to send queues
	NACKs                      uint64 // chunks the aggregator refused for now, to be sent again
	Sleeps                     uint64 // waits that slept
	Failovers                  uint64 // times that a lane went on over another path
}

// Stats returns what the worker has moved so far.
func (w *Worker) Stats() (Stats, error) {
	w.using.RLock()
	defer w.using.RUnlock()
	if err := w.Err(); err != nil {
		return Stats{}, fmt.Errorf("stats: %w", err)
	}
	if w.tensors.Load() == nil {
		return Stats{}, nil
	}
	var s cworker.Stats
	cworker.StatsOf(w.c, &s)
	return Stats{
		SentBytes: s.SentBytes, ReceivedBytes: s.ReceivedBytes, SentChunks: s.SentChunks, ReceivedChunks: s.ReceivedChunks,
		Doorbells: s.Doorbells, NACKs: s.NACKs, Sleeps: s.Sleeps, Failovers: w.session.Failovers(),
	}, nil
}
