package racktest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/rackweave/rackweave/aggregate"
	"github.com/rackweave/rackweave/cgo/worker"
	"github.com/rackweave/rackweave/verbs"
)

// connectWithin bounds the connecting of a move. Simulated, it passes at once where the peer is not there.
const connectWithin = 10 * time.Millisecond

// move is a lane's move to other NICs under way.
type move struct {
	attempt      uint64
	qp           *verbs.QP // its end; nil: none is under way, or not that far
	nic          int
	received     uint64
	peerReceived uint64
}

func (m *move) drop() error {
	if m.qp == nil {
		return nil
	}
	err := m.qp.Close()
	m.qp = nil
	return err
}

// Move takes a worker's connection to a lane to other NICs, of the box and of the worker, as its control plane would. After an
// error the lane waits for the next move.
func (r *Rack) Move(w *Worker, lane, boxNIC, nic int) error {
	if err := w.Detach(lane); err != nil {
		return err
	}
	if err := r.Ask(w, lane, boxNIC, nic); err != nil {
		return err
	}
	return r.GoOn(w, lane)
}

// claimed runs f with the worker's queues claimed.
func (w *Worker) claimed(f func() error) error {
	if rc := worker.Claim(w.C); rc < 0 {
		return fmt.Errorf("claim: %d", rc)
	}
	defer worker.Release(w.C)
	return f()
}

// Detach is the first step of a move: the worker takes its queue pair out of service.
func (w *Worker) Detach(lane int) error {
	return w.claimed(func() error {
		received, rc := worker.Detach(w.C, lane)
		if rc < 0 {
			return w.Error(rc)
		}
		m := &w.moves[lane]
		m.received = received
		var err error
		if w.QPs[lane] != nil {
			err = w.QPs[lane].Close()
			w.QPs[lane] = nil
		}
		return errors.Join(err, m.drop())
	})
}

// Ask is the second step, which can be repeated: the worker makes a new queue pair and asks the aggregator for the other.
func (r *Rack) Ask(w *Worker, lane, boxNIC, nic int) error {
	m := &w.moves[lane]
	var endpoint []byte
	err := w.claimed(func() (err error) {
		if err = m.drop(); err != nil {
			return err
		}
		if m.qp, err = w.createQP(nic); err == nil {
			endpoint, err = m.qp.Endpoint()
		}
		return err
	})
	if err != nil {
		return err
	}
	m.attempt++
	m.nic = nic
	box, err := r.Job.Resume(context.Background(), w.Rank, aggregate.Resume{
		Lane: lane, Attempt: m.attempt, NIC: boxNIC, Received: m.received, Endpoint: endpoint, Regions: worker.Regions(w.C, nic),
		AckTimeout: r.Config.AckTimeout,
	})
	if err != nil {
		return err
	}
	w.Box[lane], m.peerReceived = box.AggregatorLane, box.Received
	return nil
}

// GoOn is the last step: the queue pairs are connected. After an error, Ask again.
func (r *Rack) GoOn(w *Worker, lane int) error {
	m := &w.moves[lane]
	return w.claimed(func() error {
		if err := r.dial(w, lane, m.qp, connectWithin); err != nil {
			return errors.Join(err, m.drop())
		}
		w.lanes[lane].NIC = uint32(m.nic)
		if rc := worker.Resume(w.C, lane, &w.lanes[lane], m.peerReceived); rc < 0 {
			return errors.Join(w.Error(rc), m.drop())
		}
		w.QPs[lane], m.qp = m.qp, nil
		return nil
	})
}

// Attempt is how often the worker asked to move the lane, as in [aggregate.Break].
func (w *Worker) Attempt(lane int) uint64 { return w.moves[lane].attempt }
