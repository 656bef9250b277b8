package failover

import (
	"cmp"
	"fmt"
	"iter"
	"math"
	"slices"
)

const (
	millisecond = 1_000_000
	// A path that failed is avoided for firstPenalty, for twice as long the next time, and so on for mostDoublings times.
	firstPenalty  = 1000 * millisecond
	mostDoublings = 6
	// retryPause is the time before a failed path is tried again, if no other is better.
	retryPause = 20 * millisecond
)

// never is later than any time.
const never = math.MaxInt64

// Path is the way of a connection: a NIC of the aggregator's and one of the worker's, by their numbers.
type Path struct{ Aggregator, Worker int }

func (p Path) String() string { return fmt.Sprintf("(%d,%d)", p.Aggregator, p.Worker) }

// Config describes a worker's lanes and NICs.
type Config struct {
	Lanes      []int // by lane: the number of the aggregator's NIC that serves it
	Each       int   // NICs of each aggregator, numbered through, where lanes lie at several; if 0, all lie at one
	WorkerNICs int
	Settle     int64 // ns that a link of the worker's must have lasted before it is used again
	Timeout    int64 // ns that a lane may be without a connection before it is given up
}

// Action is a step of a lane.
type Action uint8

const (
	// Wait: nothing now.
	Wait Action = iota
	// Resume the connection over a path. The attempt ends with [Chooser.Succeeded] or [Chooser.Failed].
	Resume
	// GiveUp: there was no connection for [Config.Timeout].
	GiveUp
)

type path struct {
	Path
	failed    int64 // when it last did
	punished  int64 // until when it is avoided
	doublings int
}

// A lane is connected, or broken, or somebody tries to resume it.
type state uint8

const (
	connected state = iota
	broken
	trying
)

type lane struct {
	state   state
	primary int
	at      int   // index of the path it is on, was on, or tries
	since   int64 // not connected: from when on
}

// Chooser decides for all lanes of one worker. It is not safe for concurrent use.
type Chooser struct {
	cfg     Config
	paths   []path
	lanes   []lane
	usable  []int64 // by NIC of the worker's: from when on; never while it has no link
	aggDown []int
}

// New returns a chooser whose links are all up and whose lanes are connected over their primary paths.
func New(cfg Config) *Chooser {
	if len(cfg.Lanes) == 0 || cfg.WorkerNICs < 1 || cfg.Settle < 0 || cfg.Timeout < 0 {
		panic(fmt.Sprintf("failover: impossible configuration %+v", cfg))
	}
	cfg.Each = cmp.Or(cfg.Each, math.MaxInt)
	c := &Chooser{cfg: cfg, usable: make([]int64, cfg.WorkerNICs)}
	for i := range c.usable {
		c.usable[i] = math.MinInt64
	}
	served := slices.Compact(slices.Sorted(slices.Values(cfg.Lanes)))
	for _, aggregator := range served {
		for worker := range cfg.WorkerNICs {
			c.paths = append(c.paths, path{Path: Path{aggregator, worker}, failed: math.MinInt64, punished: math.MinInt64})
		}
	}
	for _, aggregator := range cfg.Lanes {
		opposite := Path{aggregator, c.opposite(aggregator)}
		primary := slices.IndexFunc(c.paths, func(p path) bool { return p.Path == opposite })
		c.lanes = append(c.lanes, lane{primary: primary, at: primary})
	}
	return c
}

// opposite is the worker's NIC of the same number as one of an aggregator's.
func (c *Chooser) opposite(nic int) int { return nic % c.cfg.Each % c.cfg.WorkerNICs }

// At returns the path that a lane is on, was on before it broke, or tries.
func (c *Chooser) At(lane int) Path { return c.paths[c.lanes[lane].at].Path }

// WorkerLink says that the link of one of the worker's NICs went up or down.
func (c *Chooser) WorkerLink(now int64, nic int, up bool) {
	c.usable[nic] = never
	if up {
		c.usable[nic] = now + c.cfg.Settle
	}
	c.forgive(func(p Path) bool { return p.Worker == nic })
}

// AggregatorLinks says which of the aggregator's NICs have no link now; all others have one.
func (c *Chooser) AggregatorLinks(down []int) {
	was := c.aggDown
	c.aggDown = slices.Clone(down)
	c.forgive(func(p Path) bool { return slices.Contains(was, p.Aggregator) != slices.Contains(down, p.Aggregator) })
}

// forgive lifts the penalties of paths whose link has changed, which explains why they failed.
func (c *Chooser) forgive(changed func(Path) bool) {
	for i := range c.paths {
		if p := &c.paths[i]; changed(p.Path) {
			p.failed, p.punished, p.doublings = math.MinInt64, math.MinInt64, 0
		}
	}
}

// Broke says that a lane's connection failed. A lane that is not connected stays as it is.
func (c *Chooser) Broke(now int64, lane int) {
	if l := &c.lanes[lane]; l.state == connected {
		l.state, l.since = broken, now
		c.punish(now, l.at)
	}
}

// Failed says that an attempt to resume a lane failed.
func (c *Chooser) Failed(now int64, lane int) {
	l := c.tried(lane)
	l.state = broken
	c.punish(now, l.at)
}

// Succeeded says that an attempt to resume a lane succeeded: its path works again.
func (c *Chooser) Succeeded(now int64, lane int) {
	l := c.tried(lane)
	l.state = connected
	p := &c.paths[l.at]
	p.punished = min(p.punished, now)
}

func (c *Chooser) tried(lane int) *lane {
	l := &c.lanes[lane]
	if l.state != trying {
		panic(fmt.Sprintf("failover: lane %d: the end of an attempt that was not asked for", lane))
	}
	return l
}

// punish records that a path failed. A path that was not avoided for as long as its last penalty lasted starts over.
func (c *Chooser) punish(now int64, at int) {
	p := &c.paths[at]
	if last := int64(firstPenalty) << max(p.doublings-1, 0); p.doublings > 0 && now-p.punished > last {
		p.doublings = 0
	}
	p.failed, p.punished = now, now+firstPenalty<<p.doublings
	p.doublings = min(p.doublings+1, mostDoublings)
}

func (c *Chooser) isOpen(now int64, p *path) bool {
	return now >= c.usable[p.Worker] && !slices.Contains(c.aggDown, p.Aggregator)
}

// open yields the indices of a lane's open paths.
func (c *Chooser) open(now int64, lane int) iter.Seq[int] {
	aggregator := c.cfg.Lanes[lane] / c.cfg.Each
	return func(yield func(int) bool) {
		for i := range c.paths {
			if p := &c.paths[i]; p.Aggregator/c.cfg.Each == aggregator && c.isOpen(now, p) && !yield(i) {
				return
			}
		}
	}
}

// Open returns how many of a lane's paths are open.
func (c *Chooser) Open(now int64, lane int) (n int) {
	for range c.open(now, lane) {
		n++
	}
	return n
}

// Next decides what a lane should do now, and over which path if it is to resume. While an attempt to resume it is under way, that
// is to wait.
func (c *Chooser) Next(now int64, lane int) (Action, Path) {
	l := &c.lanes[lane]
	if l.state == trying {
		return Wait, Path{}
	}
	if l.state == broken && now-l.since > c.cfg.Timeout {
		return GiveUp, Path{}
	}
	best := c.best(now, lane)
	if best < 0 || !c.leaves(now, l, best) || now < min(c.paths[best].punished, c.paths[best].failed+retryPause) {
		return Wait, Path{}
	}
	if l.state == connected {
		l.since = now
	}
	l.state, l.at = trying, best
	return Resume, c.paths[best].Path
}

// leaves tells whether a lane is to resume over the best path. One whose connection works does not leave it for a path that
// failed lately, unless its own no longer has a link.
func (c *Chooser) leaves(now int64, l *lane, best int) bool {
	switch {
	case l.state == broken:
		return true
	case best == l.at:
		return false
	}
	return now >= c.paths[best].punished || !c.isOpen(now, &c.paths[l.at])
}

// best returns the index of the best open path for a lane, or -1 if none is open.
func (c *Chooser) best(now int64, lane int) int {
	best, least := -1, [3]int64{}
	for i := range c.open(now, lane) {
		if r := c.rank(now, lane, i); best < 0 || slices.Compare(r[:], least[:]) < 0 {
			best, least = i, r
		}
	}
	return best
}

// rank orders the paths of a lane: the smaller the better, the first number that differs decides.
func (c *Chooser) rank(now int64, lane, at int) [3]int64 {
	p := &c.paths[at]
	r := [3]int64{math.MinInt64}
	if now < p.punished {
		r[0] = p.failed
	}
	switch {
	case at == c.lanes[lane].primary:
	case p.Worker == c.opposite(p.Aggregator):
		r[1] = 1
	default:
		r[1] = 2
	}
	r[2] = int64((at + lane) % len(c.paths)) // lanes that fail together spread over what is left
	return r
}
