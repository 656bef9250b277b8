package simrack

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"time"

	"github.com/rackweave/rackweave/aggregate"
	"github.com/rackweave/rackweave/cgo/fabric/simfabric"
)

// These are the limits of a schedule. A network step takes at most a millisecond.
const (
	// without progress, while nothing is paused or cut off, because a broken connection may wait for 5 s
	stuckAfter   = 6 * time.Second
	stuckTurns   = 400_000 // without progress
	longestTurns = 20_000_000

	longestDrain = 20_000 // turns after the end
	quietTurns   = 300    // turns without a message in flight, which end the drain
)

// Result is the outcome of a run. Two runs of a seed have equal results.
type Result struct {
	NetworkHash uint64
	Lanes       string // counters
	Turns       int
	Virtual     time.Duration
	Failovers   int
	Failed      bool // a job failed
	Spared      bool // a job went on without a lost worker
}

// run is a schedule under way.
type run struct {
	*Schedule
	*cluster
	rng      *rand.Rand
	log      io.Writer // may be nil
	turns    int
	onTheWay int   // messages not delivered or acknowledged
	weights  []int // of the network, the lanes and the members, in this order
	total    int
	members  []*member // of all running jobs
	idle     []int     // idle rounds, by lane
	wake     []int64   // by lane: end of its sleep
	lost     []bool    // lanes whose completion queue failed
	events   []event
	links    []linkFault // link faults to come, or under way

	struck         bool // the fault has occurred, or the schedule has none
	aggregatorDead bool
	cut            []int  // hosts without a link for good
	down           []bool // hosts without a link now
	falseReports   int    // number of false reports to come
	changes        []int  // of the aggregator's links, by NIC
	rogueSent      bool

	mark      progress
	markTime  time.Duration
	markTurns int
}

// event is a future act of the control plane.
type event struct {
	at time.Duration
	do func() error
}

type progress struct{ chunks, ops uint64 }

// Run runs a schedule. Its error names the invariant that was violated. If log is not nil, it receives the events of the run.
func Run(s *Schedule, log io.Writer) (res Result, err error) {
	r := &run{
		Schedule: s, rng: rand.New(rand.NewPCG(s.Seed, 2)), log: log,
		idle: make([]int, s.Lanes), wake: make([]int64, s.Lanes), lost: make([]bool, s.Lanes),
		changes: make([]int, s.NICs), links: s.Links, struck: s.Fault.Kind == NoFault,
	}
	c, err := newCluster(s, r.trace)
	r.cluster = c
	if f, ok := log.(*os.File); ok && c.sim != nil {
		c.sim.Trace(int(f.Fd()))
	}
	defer func() { err = errors.Join(err, c.close()) }()
	if err != nil {
		return res, err
	}
	r.down = make([]bool, len(r.hosts))
	if s.Failovers != nil {
		r.falseReports = s.Failovers.FalseReports
		r.links = append(slices.Clone(s.Links), s.Failovers.Ports...)
	}
	r.trace("%v", s)
	err = r.all()
	res = r.result()
	return res, err
}

func (r *run) trace(format string, args ...any) {
	if r.log != nil {
		fmt.Fprintf(r.log, format+"\n", args...)
	}
}

// openAndClose starts the jobs whose time has come and closes the jobs that retire.
func (r *run) openAndClose() error {
	for _, j := range r.jobs {
		switch {
		case j.rack == nil && !j.skipped && r.mayStart(j):
			if r.aggregatorDead || slices.Contains(r.lost, true) {
				j.skipped = true
				continue
			}
			r.trace("%v: %s starts", time.Duration(r.now), j.Name)
			if err := r.start(j); r.Fault.Kind == AnyOverrun && errors.Is(err, aggregate.ErrQueueLost) {
				j.skipped = true
				continue
			} else if err != nil {
				return fmt.Errorf("start %s: %w", j.Name, err)
			}
			r.members = append(r.members, j.members...)
			r.weigh()
		case j.rack != nil && j.Retires && !j.closed && j.over() && (j.failed != 0 || r.Fault.Kind == NoFault || r.Fault.Job != j.index):
			r.trace("%v: %s retires", time.Duration(r.now), j.Name)
			if err := r.judge(j); err != nil {
				return err
			}
			if err := j.close(); err != nil {
				return fmt.Errorf("close %s: %w", j.Name, err)
			}
		}
	}
	return nil
}

// mayStart reports whether a job's time has come and all links are up, because it needs them to connect.
func (r *run) mayStart(j *job) bool {
	for _, l := range r.links {
		if now := time.Duration(r.now); now >= l.from && now < l.to {
			return false
		}
	}
	first := r.jobs[0]
	switch j.Starts {
	case inBetween:
		return first.skipped || first.over() || first.ops > len(first.members)
	case afterwards:
		return first.skipped || first.over()
	}
	return true
}

// weigh computes the relative frequencies of turns of the rack's parts.
func (r *run) weigh() {
	r.weights = append(r.weights[:0], 16*r.NetworkWeight)
	for _, w := range r.LaneWeights {
		r.weights = append(r.weights, 16*w)
	}
	for _, m := range r.members {
		if m.seldom {
			r.weights = append(r.weights, 1)
		} else {
			r.weights = append(r.weights, 16*m.Weight)
		}
	}
	r.total = 0
	for _, w := range r.weights {
		r.total += w
	}
}

// all gives turns until every job is over, then lets messages in flight arrive.
func (r *run) all() error {
	for {
		if r.turns%16 == 0 {
			if err := r.openAndClose(); err != nil {
				return err
			}
			if err := r.changePolicies(); err != nil {
				return err
			}
			if r.over() {
				break
			}
		}
		if err := r.turn(); err != nil {
			return fmt.Errorf("turn %d, %v: %w", r.turns, time.Duration(r.now), err)
		}
	}
	r.LanePauses = nil // a lane must see all messages that have reached it
	for n, quiet := 0, 0; n < longestDrain && quiet < quietTurns; n, quiet = n+1, quiet+1 {
		if r.onTheWay > 0 {
			quiet = 0
		}
		if err := r.turn(); err != nil {
			return fmt.Errorf("after the end, turn %d: %w", r.turns, err)
		}
	}
	return r.verdict()
}

// turn gives one part of the rack its turn.
func (r *run) turn() error {
	r.turns++
	if r.turns%64 == 0 {
		if err := r.checkInvariants(); err != nil {
			return err
		}
	}
	pick := r.rng.IntN(r.total)
	who := 0
	for ; pick >= r.weights[who]; who++ {
		pick -= r.weights[who]
	}
	switch {
	case who == 0:
		return r.networkTurn()
	case who <= r.Lanes:
		if err := r.laneTurn(who - 1); err != nil {
			return err
		}
		return r.follow()
	}
	m := r.members[who-1-r.Lanes]
	if m.dead || m.left || m.job.closed {
		return nil
	}
	if err := m.turn(time.Duration(r.now)); err != nil {
		return err
	}
	if r.due() {
		r.struck = true
		return r.strike()
	}
	if m.done && m.Leaves && !m.left && m.job.failed == 0 && !r.aggregatorDead {
		return m.leave(func(rank int) error { return m.job.rack.Job.Detach(context.Background(), rank) })
	}
	return nil
}

// networkTurn lets some events of the network happen, then all that are due.
func (r *run) networkTurn() error {
	for range 1 + r.rng.IntN(4) {
		before := r.now
		r.onTheWay = r.sim.Step()
		if r.tick(); r.now-before > int64(time.Millisecond)/2 {
			break // nothing was due
		}
	}
	now := time.Duration(r.now)
	for i := 0; i < len(r.links); {
		l := &r.links[i]
		if now < l.from || slices.Contains(r.cut, l.host) {
			i++
			continue
		}
		r.setLink(l.host, now >= l.to)
		if now >= l.to {
			r.links = append(r.links[:i:i], r.links[i+1:]...)
		} else {
			i++
		}
	}
	for i := 0; i < len(r.events); {
		if e := r.events[i]; now >= e.at {
			r.events = append(r.events[:i:i], r.events[i+1:]...)
			if err := e.do(); err != nil {
				return err
			}
		} else {
			i++
		}
	}
	r.failOver()
	if err := r.follow(); err != nil {
		return err
	}
	for lane := range r.wake {
		if r.now >= r.wake[lane] {
			if err := r.laneTurn(lane); err != nil {
				return err
			}
			if err := r.follow(); err != nil {
				return err
			}
		}
	}
	return nil
}

func (r *run) setLink(host int, up bool) {
	if r.down[host] == !up {
		return
	}
	r.down[host] = !up
	simfabric.Link(r.hosts[host], up)
	r.notifyLink(host, up)
}

// later runs an act of the control plane after a time.
func (r *run) later(after time.Duration, do func() error) {
	r.events = append(r.events, event{time.Duration(r.now) + after, do})
}

// laneTurn runs a round of a lane's loop. A lane with nothing to do looks for stalls, as it does before it sleeps.
func (r *run) laneTurn(lane int) error {
	if r.aggregatorDead || r.lost[lane] {
		return nil
	}
	now := time.Duration(r.now)
	for _, p := range r.LanePauses {
		if p.who == lane && now >= p.from && now < p.to {
			return nil
		}
	}
	l := r.engine.Lanes()[lane]
	worked, err := l.Step()
	if err != nil {
		r.trace("%v: %v", now, err)
		r.lost[lane] = true
		if r.Fault.Kind != AnyOverrun {
			return err
		}
		return nil
	}
	if worked {
		r.idle[lane], r.wake[lane] = 0, 0
		return nil
	}
	if r.idle[lane]++; r.idle[lane] > r.Spin && r.now >= r.wake[lane] {
		r.wake[lane] = r.now + int64(100*time.Millisecond)
		if l.Tick() {
			r.wake[lane] = r.now + int64(time.Millisecond)
		}
	}
	return nil
}

// follow shows the oracles of the jobs in mode stream the lanes' events.
func (r *run) follow() error {
	for _, j := range r.jobs {
		if err := j.stream.follow(); err != nil {
			return err
		}
	}
	return nil
}

// over reports whether all jobs are over.
func (r *run) over() bool {
	for _, j := range r.jobs {
		if !j.skipped && !j.over() {
			return false
		}
	}
	return true
}

// meets reports whether all members that are not lost have come to a phase of registration.
func (j *job) meets(phase int) bool {
	for _, m := range j.members {
		if m.lost == 0 && (m.phase != phase || !m.begun) {
			return false
		}
	}
	return true
}

// over reports whether nothing more can be expected of the job.
func (j *job) over() bool {
	for _, m := range j.members {
		if !m.over() {
			return false
		}
	}
	return j.rack != nil
}
