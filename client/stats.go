package client

import (
	"fmt"

	cworker "github.com/rackweave/rackweave/cgo/worker"
)

// Stats counts what a worker has done since it joined.
type Stats struct {
	cworker.Stats
	Failovers uint64 // times that a lane resumed over another queue pair
}

// Stats returns what the worker has done so far.
func (x *exchange) Stats() (Stats, error) {
	x.using.RLock()
	defer x.using.RUnlock()
	if err := x.Err(); err != nil {
		return Stats{}, fmt.Errorf("stats: %w", err)
	}
	s := Stats{Failovers: x.session.Failovers()}
	cworker.StatsOf(x.session.C, &s.Stats)
	return s, nil
}
