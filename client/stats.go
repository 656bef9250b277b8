package client

import (
	"fmt"

	cworker "github.com/rackweave/rackweave/cgo/worker"
	"github.com/rackweave/rackweave/codec"
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

// Codec returns the codec of a tensor's last gradient.
func (x *exchange) Codec(tensor int) (c codec.Spec, err error) {
	x.using.RLock()
	defer x.using.RUnlock()
	if err := x.Err(); err != nil {
		return c, fmt.Errorf("codec: %w", err)
	}
	if n := x.NumTensors(); tensor < 0 || tensor >= n {
		return c, fmt.Errorf("codec of tensor %d: %d are registered", tensor, n)
	}
	of := cworker.CodecOf(x.session.C, uint32(tensor))
	return codec.Spec{ID: codec.ID(of.ID), Stochastic: of.Stochastic, Param: of.Param}, nil
}
