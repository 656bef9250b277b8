package lanes

import (
	"context"
	"errors"
	"fmt"
	"time"

	cworker "github.com/rackweave/rackweave/cgo/worker"
	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/client/failover"
	"github.com/rackweave/rackweave/verbs"
)

// A connection goes on over another queue pair in three steps: [Session.Detach] takes the old one out of service, [Session.Ask]
// makes a new one and has the aggregator make its own, [Session.Finish] connects them and hands the lane back to the C worker.
// [Session.Advance] takes the steps that package failover decides on.

// ErrNoPath is wrapped by the error of a lane that found no path to the aggregator for too long.
var ErrNoPath = errors.New("no path to the aggregator")

// recovery takes a lane to its first queue pair, and from one to the next.
type recovery struct {
	step         step
	to           failover.Path
	attempt      uint64
	qp           *verbs.QP // the next one
	received     uint64    // messages from the aggregator
	peerReceived uint64    // messages from the worker
	failure      error     // of the last attempt
}

// step is the one that comes next.
type step uint8

const (
	detach step = iota // once the lane should take another path
	ask
	finish
)

// open makes a queue pair for a path.
func (r *recovery) open(s *Session, to failover.Path) (err error) {
	n := &s.NICs[to.Worker]
	r.to = to
	r.qp, err = n.PD.CreateQP(verbs.QPConfig{CQ: n.CQ, MaxSendWR: s.cfg.SendDepth, MaxRecvWR: s.cfg.RecvDepth})
	return err
}

// drop closes a queue pair that was not taken into service.
func (r *recovery) drop() error {
	if r.qp == nil {
		return nil
	}
	err := r.qp.Close()
	r.qp = nil
	return err
}

// WorkerLink says that the link of one of the worker's NICs went up or down. Any goroutine may call it.
func (s *Session) WorkerLink(nic int, up bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.chooser.WorkerLink(s.cfg.Now(), nic, up)
}

// AggregatorLinks says which of the aggregator's NICs have no link. Any goroutine may call it.
func (s *Session) AggregatorLinks(down []int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.chooser.AggregatorLinks(down)
}

// Broke says that a connection broke at the aggregator: the one that the given attempt to resume the lane made, 0 for the first.
// Any goroutine may call it.
func (s *Session) Broke(lane int, attempt uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if lane < len(s.told) {
		s.told[lane] = attempt + 1
	}
}

// Path returns the path that a lane is on, was on before it broke, or tries.
func (s *Session) Path(lane int) failover.Path {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.chooser.At(lane)
}

// Attempt returns how many times the session asked the aggregator to resume a lane.
func (s *Session) Attempt(lane int) uint64 { return s.recovery[lane].attempt }

// Failovers returns how many times lanes resumed over another queue pair.
func (s *Session) Failovers() uint64 { return s.failovers.Load() }

// ackTimeout returns how long a lane's message that is not acknowledged is repeated: not long while another path is open.
func (s *Session) ackTimeout(lane int) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.Resumable && s.chooser.Open(s.cfg.Now(), lane) > 1 {
		return min(s.cfg.AckTimeout, s.cfg.LinkTimeout)
	}
	return s.cfg.LinkTimeout
}

// Look finds the lanes whose queue pair failed at this end.
func (s *Session) Look() {
	broken := make([]uint8, len(s.QPs))
	cworker.Broken(s.C, broken)
	s.mu.Lock()
	defer s.mu.Unlock()
	for lane := range broken {
		if broken[lane] != 0 {
			s.chooser.Broke(s.cfg.Now(), lane)
		}
	}
}

// Advance takes the next step of a lane's failover, and reports whether there is another to take. Without any, it asks what the
// lane should do. An attempt that fails does not make it return an error; a lane without a path does, which wraps [ErrNoPath], and
// a failure of the C worker, which is a [WorkerError].
func (s *Session) Advance(ctx context.Context, lane int) (more bool, err error) {
	r := &s.recovery[lane]
	switch r.step {
	case detach:
		action, to := s.decide(lane)
		switch action {
		case failover.Wait:
			return false, nil
		case failover.GiveUp:
			return false, fmt.Errorf("lane %d: %w for %v%s", lane, ErrNoPath, s.cfg.LinkTimeout, r.lastly())
		}
		r.to = to
		if err = s.Detach(lane); err == nil {
			r.step = ask
		}
	case ask:
		if err = s.Ask(ctx, lane, r.to); err == nil {
			r.step = finish
		}
	case finish:
		if err = s.Finish(lane); err == nil {
			r.step = detach
			s.cfg.Log("lane %d goes on over %v", lane, r.to)
			s.end(lane, nil)
		}
	}
	if err == nil {
		return r.step != detach, nil
	}
	r.step = detach
	s.cfg.Log("lane %d, to %v: %v", lane, r.to, err)
	s.end(lane, err)
	if failed, _ := cworker.Failure(s.C); failed < 0 {
		return false, err
	}
	return true, nil
}

// decide asks what a lane should do, once all is said that happened to it.
func (s *Session) decide(lane int) (failover.Action, failover.Path) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.told[lane] == s.recovery[lane].attempt+1 {
		s.chooser.Broke(s.cfg.Now(), lane)
	}
	s.told[lane] = 0
	return s.chooser.Next(s.cfg.Now(), lane)
}

// end records how an attempt ended.
func (s *Session) end(lane int, err error) {
	s.recovery[lane].failure = err
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		s.chooser.Failed(s.cfg.Now(), lane)
	} else {
		s.chooser.Succeeded(s.cfg.Now(), lane)
	}
}

func (r *recovery) lastly() string {
	if r.failure == nil {
		return ""
	}
	return fmt.Sprintf("; the last attempt, to %v: %v", r.to, r.failure)
}

// claimed runs f while no other thread drives the queues.
func (s *Session) claimed(f func() error) error {
	if err := s.Call("claim the queues", func() int { return cworker.Claim(s.C) }); err != nil {
		return err
	}
	defer cworker.Release(s.C)
	return f()
}

// Detach takes a lane's queue pair out of service and destroys it. It may be called again.
func (s *Session) Detach(lane int) error {
	return s.claimed(func() error {
		r := &s.recovery[lane]
		err := s.Call(fmt.Sprintf("detach lane %d", lane), func() (rc int) {
			r.received, rc = cworker.Detach(s.C, lane)
			return rc
		})
		if err != nil {
			return err
		}
		if qp := s.QPs[lane]; qp != nil {
			s.QPs[lane] = nil
			err = qp.Close()
		}
		return errors.Join(err, r.drop())
	})
}

// Ask makes a queue pair for a lane that is detached, and has the aggregator make the other end of a path. It may be called again,
// also for another path.
func (s *Session) Ask(ctx context.Context, lane int, to failover.Path) error {
	r := &s.recovery[lane]
	var endpoint []byte
	err := s.claimed(func() (err error) {
		if err = r.drop(); err != nil {
			return err
		}
		if err = r.open(s, to); err == nil {
			endpoint, err = r.qp.Endpoint()
		}
		return err
	})
	if err != nil {
		return err
	}
	r.attempt++
	var regions []chunk.Region
	for _, mr := range cworker.Regions(s.C, to.Worker) {
		regions = append(regions, chunk.Region{Addr: mr.Addr, Length: mr.Length, RKey: mr.RKey})
	}
	answer, err := s.cfg.Control.Resume(ctx, chunk.Resume{
		Lane: lane, Attempt: r.attempt, NIC: to.Aggregator, Received: r.received, Endpoint: endpoint,
		Regions: regions, AckTimeout: s.ackTimeout(lane),
	})
	if err != nil {
		return err
	}
	s.Peers[lane], r.peerReceived = answer.AggregatorLane, answer.Received
	return nil
}

// Finish connects the queue pairs that Ask made. After an error, Ask again.
func (s *Session) Finish(lane int) error {
	r := &s.recovery[lane]
	return s.claimed(func() error {
		if err := s.connect(lane, s.cfg.ReconnectTimeout); err != nil {
			return errors.Join(err, r.drop())
		}
		s.failovers.Add(1)
		return nil
	})
}
