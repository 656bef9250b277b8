package racktest

import (
	"context"
	"fmt"

	"github.com/rackweave/rackweave/cgo/worker"
	"github.com/rackweave/rackweave/client/failover"
)

// Submit starts operations without waiting.
func (w *Worker) Submit(ops ...worker.Op) ([]uint64, error) {
	handles := make([]uint64, len(ops))
	if n := worker.Submit(w.C, ops, handles); n != len(ops) {
		return nil, w.Error(n)
	}
	return handles, nil
}

// Done reports whether an operation is finished, and its error.
func (w *Worker) Done(handle uint64) (bool, error) {
	rc := worker.Test(w.C, handle)
	if rc < 0 {
		return true, w.Error(rc)
	}
	return rc == 1, nil
}

// Drive steps a manual rack until the given operations, by worker, are done. In every round it calls network, then lets every lane
// and worker make progress. It returns an error after limit rounds.
func (r *Rack) Drive(network func(), handles [][]uint64, limit int) error {
	for round := range limit {
		network()
		if done, err := r.Step(handles, round%16 == 15); done || err != nil {
			return err
		}
	}
	return fmt.Errorf("not done after %d rounds", limit)
}

// Step lets every lane and worker make progress, and reports whether the given operations are done. If idle is true, the lanes look
// for stalls.
func (r *Rack) Step(handles [][]uint64, idle bool) (bool, error) {
	for _, a := range r.aggregators() {
		for _, l := range a.engine.Lanes() {
			if _, err := l.Step(); err != nil {
				return false, err
			}
		}
	}
	all := true
	for rank, w := range r.Workers {
		worker.Progress(w.C)
		for _, h := range handles[rank] {
			done, err := w.Done(h)
			if err != nil {
				return false, err
			}
			all = all && done
		}
	}
	if idle && !all {
		for _, a := range r.aggregators() {
			for _, l := range a.engine.Lanes() {
				l.Tick()
			}
		}
	}
	return all, nil
}

// Resume moves a worker's connection to a lane to the given NICs of the aggregator and the worker, whatever the worker would
// choose. After an error the lane has no connection and may be resumed again.
func (r *Rack) Resume(w *Worker, lane, aggregatorNIC, nic int) error {
	if err := w.Detach(lane); err != nil {
		return err
	}
	if err := w.Ask(context.Background(), lane, failover.Path{Aggregator: aggregatorNIC, Worker: nic}); err != nil {
		return err
	}
	return w.Finish(lane)
}
