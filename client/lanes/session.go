package lanes

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rackweave/rackweave/cgo/fabric"
	cworker "github.com/rackweave/rackweave/cgo/worker"
	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/client/failover"
	"github.com/rackweave/rackweave/verbs"
)

// Control is the aggregator as a session asks it to connect.
type Control interface {
	// Attach gives the aggregator the worker's ends of all lanes, and returns the aggregator's.
	Attach(ctx context.Context, lanes []chunk.WorkerLane) ([]chunk.AggregatorLane, error)
	// Resume gives a lane's connection a new queue pair at the aggregator.
	Resume(ctx context.Context, r chunk.Resume) (chunk.Resumed, error)
}

// Config describes a session.
type Config struct {
	Name    string // of its memory, for people
	Control Control
	Devices []*verbs.Device // the caller's, who closes them after the session
	Lanes   []int           // by lane: the number of the aggregator's NIC that serves it
	Each    int             // NICs of each aggregator, numbered through, where lanes lie at several; if 0, all lie at one
	Worker  cworker.Config  // for the C worker; the session sets StagingAddr and Resumable

	SendDepth, RecvDepth int // of every queue pair

	// A message that is not acknowledged is repeated for AckTimeout while another path is open, else for LinkTimeout; 0 means the
	// contract's default. A lane that finds no path for LinkTimeout is given up.
	AckTimeout, LinkTimeout time.Duration
	// ReconnectTimeout bounds the connecting of a queue pair when a lane is resumed.
	ReconnectTimeout time.Duration

	Cancel <-chan struct{} // ends waits for a peer when it is closed; may be nil
	Now    func() int64    // ns; if nil, the system's monotonic clock
	Log    func(format string, args ...any)
}

// NIC is one of the worker's, with what the session has opened there.
type NIC struct {
	Device *verbs.Device
	PD     *verbs.PD
	CQ     *verbs.CQ
}

// Session is a worker's connections. Only read its fields.
type Session struct {
	C     cworker.Worker // nil after Close
	NICs  []NIC
	QPs   []*verbs.QP            // by lane; nil without a connection
	Peers []chunk.AggregatorLane // by lane

	// Whether a lane whose queue pair fails can go on over another: there is more than one path, and the links of the worker's NICs
	// can fail.
	Resumable bool

	cfg       Config
	staging   *Memory
	memories  atomic.Pointer[[]*Memory] // replaced, never changed
	recovery  []recovery                // by lane
	failovers atomic.Uint64

	mu      sync.Mutex // guards what follows
	chooser *failover.Chooser
	told    []uint64 // by lane: the attempt whose queue pair broke at the aggregator, plus 1
}

// Open opens what a session needs on its devices: completion queues, staging buffers, queue pairs.
func Open(cfg Config) (s *Session, err error) {
	s = &Session{
		cfg: cfg, QPs: make([]*verbs.QP, len(cfg.Lanes)), recovery: make([]recovery, len(cfg.Lanes)),
		told: make([]uint64, len(cfg.Lanes)),
		chooser: failover.New(failover.Config{
			Lanes: cfg.Lanes, Each: cfg.Each, WorkerNICs: len(cfg.Devices), Settle: int64(verbs.LinkSettles),
			Timeout: int64(cfg.LinkTimeout),
		}),
	}
	if s.cfg.Now == nil {
		start := time.Now()
		s.cfg.Now = func() int64 { return int64(time.Since(start)) }
	}
	if s.cfg.Log == nil {
		s.cfg.Log = func(string, ...any) {}
	}
	s.memories.Store(new([]*Memory))
	s.Resumable = s.chooser.Open(0, 0) > 1 // all links are up
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
			s = nil
		}
	}()
	for _, d := range cfg.Devices {
		s.Resumable = s.Resumable && d.Attr().Has(verbs.DevLink)
		if err := s.openNIC(d); err != nil {
			return s, err
		}
	}
	if s.staging, err = s.register("staging", len(cfg.Lanes)*s.stagingBytes()); err != nil {
		return s, err
	}
	if err := s.openWorker(); err != nil {
		return s, err
	}
	for i := range s.recovery {
		if err := s.recovery[i].open(s, s.chooser.At(i)); err != nil {
			return s, err
		}
	}
	return s, nil
}

func (s *Session) openNIC(d *verbs.Device) (err error) {
	s.NICs = append(s.NICs, NIC{Device: d})
	n := &s.NICs[len(s.NICs)-1]
	if n.PD, err = d.AllocPD(); err != nil {
		return err
	}
	n.CQ, err = d.CreateCQ(len(s.QPs) * (s.cfg.SendDepth + s.cfg.RecvDepth))
	return err
}

// stagingBytes returns the size of a lane's staging buffers.
func (s *Session) stagingBytes() int { return int(s.cfg.Worker.Staging) * int(s.cfg.Worker.ChunkBytes) }

// Attach exchanges the ends of all lanes with the aggregator and connects the queue pairs within timeout.
func (s *Session) Attach(ctx context.Context, timeout time.Duration) error {
	deadline := time.Now().Add(timeout)
	ends := make([]chunk.WorkerLane, len(s.QPs))
	for i := range ends {
		r := &s.recovery[i]
		endpoint, err := r.qp.Endpoint()
		if err != nil {
			return err
		}
		ends[i] = chunk.WorkerLane{
			Endpoint: endpoint, ReplyAddr: s.staging.MRs[0].Addr + uint64(i*s.stagingBytes()),
			ReplyRKey: s.staging.MRs[r.to.Worker].RKey, Staging: s.cfg.Worker.Staging,
			AckTimeout: s.ackTimeout(i), Resumable: s.Resumable,
		}
	}
	peers, err := s.cfg.Control.Attach(ctx, ends)
	if err != nil {
		return err
	}
	if len(peers) != len(ends) {
		return fmt.Errorf("the aggregator answers for %d lanes of %d", len(peers), len(ends))
	}
	s.Peers = peers
	return s.claimed(func() error {
		for i := range s.QPs {
			if err := s.connect(i, max(time.Until(deadline), time.Millisecond)); err != nil {
				return fmt.Errorf("lane %d: %w", i, err)
			}
		}
		return nil
	})
}

// connect connects a lane's next queue pair to the aggregator's, and gives it to the C worker.
func (s *Session) connect(lane int, timeout time.Duration) error {
	r, peer := &s.recovery[lane], &s.Peers[lane]
	if err := r.qp.Connect(peer.Endpoint, verbs.ConnectConfig{
		Active: true, Timeout: timeout, AckTimeout: s.ackTimeout(lane), Cancel: s.cfg.Cancel,
	}); err != nil {
		return err
	}
	// Only now: on a queue pair that did not connect nothing can have arrived.
	if err := r.qp.PostRecv(uint64(lane), s.cfg.RecvDepth); err != nil {
		return err
	}
	l := cworker.Lane{
		QP: r.qp.Handle(), SlotAddr: peer.SlotAddr, SlotRKey: peer.SlotRKey, NIC: uint32(r.to.Worker), RecvDepth: uint32(s.cfg.RecvDepth),
	}
	err := s.Call(fmt.Sprintf("resume lane %d", lane), func() int { return cworker.Resume(s.C, lane, &l, r.peerReceived) })
	if err == nil {
		s.QPs[lane], r.qp = r.qp, nil
	}
	return err
}

// openWorker opens the C worker, with lanes that have no queue pairs.
func (s *Session) openWorker() error {
	nics := make([]cworker.NIC, len(s.NICs))
	for i, n := range s.NICs {
		nics[i] = cworker.NIC{PD: n.PD.Handle(), CQ: n.CQ.Handle()}
	}
	c := s.cfg.Worker
	c.SendDepth, c.StagingAddr, c.Resumable = uint32(s.cfg.SendDepth), s.staging.Addr(), s.Resumable
	err := s.Call("open worker", func() (rc int) {
		s.C, rc = cworker.Open(c, nics, len(s.QPs))
		return rc
	})
	if err != nil {
		return err
	}
	return s.expose(s.staging)
}

// WorkerError is a failed call of the C worker.
type WorkerError struct {
	Op   string
	RC   int // negative: an errno or one of cgo/worker's
	Text string
}

func (e *WorkerError) Error() string { return fmt.Sprintf("%s: %s (%d)", e.Op, e.Text, e.RC) }

// Call makes a call of the C worker. Its error is that of [Session.Error].
func (s *Session) Call(op string, f func() int) error {
	runtime.LockOSThread() // its text is the thread's
	defer runtime.UnlockOSThread()
	return s.Error(op, f())
}

// Error returns a negative result of a call of the C worker as a [WorkerError]. If the worker has not failed, its text is the
// thread's last.
func (s *Session) Error(op string, rc int) error {
	if rc >= 0 {
		return nil
	}
	text := fabric.LastError()
	if s.C != nil {
		if failed, why := cworker.Failure(s.C); failed == rc {
			text = why
		}
	}
	return &WorkerError{Op: op, RC: rc, Text: text}
}

// Close gives everything back, once, and leaves the devices open. Nothing else of the session may be running.
func (s *Session) Close() error {
	var errs []error
	if s.C != nil {
		cworker.Close(s.C)
		s.C = nil
	}
	for lane, qp := range s.QPs {
		if qp != nil {
			errs = append(errs, qp.Close())
		}
		errs = append(errs, s.recovery[lane].drop())
	}
	for _, m := range *s.memories.Load() {
		errs = append(errs, s.deregister(m))
	}
	for _, n := range s.NICs {
		if n.CQ != nil {
			errs = append(errs, n.CQ.Close())
		}
		if n.PD != nil {
			errs = append(errs, n.PD.Close())
		}
	}
	return errors.Join(errs...)
}
