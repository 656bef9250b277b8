package ratecontrol

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Config is a job.
type Config struct {
	Spec    Spec
	Codecs  []Codec // the candidates
	Groups  []Group
	Start   uint8 // all groups' codec until the first decision
	Ranks   int
	Message float64 // seconds that a chunk costs beside its bytes
}

// EventKind is the kind of an event.
type EventKind uint8

const (
	// Begin announces that Rank begins Step, and for how long it computed in the step before, without waiting for answers, or the
	// budget would grow with the bytes (Elapsed; 0 if unknown).
	Begin EventKind = iota
	// Acked reports Bytes of Chunks, with headers, that Rank's connections delivered within Elapsed, every few chunks, and their round
	// trip (RTT; 0 if unknown).
	Acked
	// Measured reports Samples from the headers of Rank's chunks of a step, at most one per group. Raw chunks have none.
	Measured
	// Probed reports Samples of chunks that were encoded with each candidate, and for [Raw] their energy.
	Probed
	// Accept announces that Rank will use Version from its step on, which it has not begun.
	Accept
	// Leave announces that Rank is lost, and Join that it takes part again. All take part at first.
	Leave
	Join
)

// Event is an event of a job.
type Event struct {
	Kind    EventKind
	Rank    int
	Step    uint64
	Elapsed time.Duration
	RTT     time.Duration
	Bytes   int64
	Chunks  int
	Limited bool // of Acked: the queue ran dry, or the window was full, so that the link could have carried more
	Version uint32
	Samples []Sample
}

// ActKind is the kind of an act.
type ActKind uint8

const (
	// Propose asks all ranks to accept Decision.
	Propose ActKind = iota
	// Confirm tells that all ranks have accepted Decision. Its line belongs into the log.
	Confirm
	// Withdraw tells that not all ranks have accepted Decision in time. Ranks that have go back to the last that was confirmed.
	Withdraw
	// Probe asks Rank to encode one chunk of each group with each candidate: of a group's chunks, Chunk modulo their number.
	Probe
)

// Decision is a choice of codecs for all groups, from a step on.
type Decision struct {
	Version uint32 // 1, 2, …
	Step    uint64 // the first step that uses it
	Codecs  []uint8
	Bytes   int64 // of a step, headers included, unless values are not finite
	Budget  int64
	// Distortion is the share of the groups' worth that the codecs are expected to lose. No choice that was allowed loses a smaller
	// share than Bound.
	Distortion, Bound float64
}

// Act is a request to the caller.
type Act struct {
	Kind     ActKind
	Decision Decision
	Rank     int
	Chunk    int
}

const (
	period  = 50   // steps from one solution to the next
	dwell   = 100  // steps for which groups keep codecs, unless the bytes exceed the budget
	longer  = 16   // times dwell, at most, after changes that did not last
	better  = 0.95 // of the distortion: a solution must reach it to be adopted
	over    = 1.1  // times the budget: more bytes are brought down
	probes  = 100  // steps from one probe to the next
	soonest = 2    // steps from a proposal to its effect, at first
	latest  = 32 * soonest
)

// Controller chooses the codecs of a job.
type Controller struct {
	config Config
	table  table
	links  []link
	seen   uint64 // the largest step that a rank has begun
	begun  bool

	current  Decision // confirmed
	pending  Decision
	accepted []bool // by rank; nil unless a decision is pending
	version  uint32
	lead     uint64 // steps from a proposal to its effect; doubled when ranks do not accept in time
	due      uint64 // the step of the next solution
	probed   uint64 // the number of probes
	calm     calm
	held     []uint8    // that [Controller.Hold] named
	script   []Decision // of a replay, else nil

	knapsack knapsack
	worth    []float64
	options  []point
}

// calm keeps a controller from following every movement. Groups rise to what the links have carried in every step of a window.
type calm struct {
	since  uint64  // the window's first step
	least  float64 // the smallest budget of the window's steps
	length uint64  // of a window
	rose   []bool  // by group: the last change brought more bytes
	// The inverse budgets since the last solution: their number, their mean, and the sum of squares of the differences from it.
	steps, mean, squares float64
}

// add adds the budget of a step.
func (c *calm) add(budget float64) {
	c.least = min(c.least, budget)
	x := 1 / max(budget, 1)
	c.steps++
	d := x - c.mean
	c.mean += d / c.steps
	c.squares += float64(d * (x - c.mean))
}

// budget returns the budget since the last solution: a deviation from the mean, so that most steps keep to it.
func (c *calm) budget() float64 {
	b := math.Round(1 / (c.mean + math.Sqrt(c.squares/c.steps)))
	c.steps, c.mean, c.squares = 0, 0, 0
	c.least = min(c.least, b)
	return b
}

// New returns the controller of a job. The spec must come from [Parse].
func New(c Config) (*Controller, error) {
	if c.Ranks < 1 || c.Message < 0 || int(c.Start) > len(c.Codecs) {
		return nil, fmt.Errorf("%d ranks, %v seconds a message, codec %d of %d: use 1 rank or more, no negative number, and a candidate",
			c.Ranks, c.Message, c.Start, len(c.Codecs))
	}
	n := &Controller{config: c, links: make([]link, c.Ranks), lead: soonest}
	if err := n.table.init(c.Groups, c.Codecs, c.Ranks); err != nil {
		return nil, err
	}
	for r := range n.links {
		n.links[r].live = true
	}
	groups := len(c.Groups)
	n.worth, n.calm.rose = make([]float64, groups), make([]bool, groups)
	n.current = Decision{Codecs: slices.Repeat([]uint8{c.Start}, groups), Budget: n.table.raw}
	n.current.Bytes = n.table.length(n.current.Codecs)
	n.calm.length, n.calm.least = dwell, math.Inf(1)
	return n, nil
}

// Replay returns a controller that makes the decisions of a log, whatever else it sees, at their steps.
func Replay(c Config, log []string) (*Controller, error) {
	n, err := New(c)
	if err != nil {
		return nil, err
	}
	n.script = make([]Decision, 0, len(log))
	for _, line := range log {
		d, err := parse(line, n.table.codecs, len(c.Groups))
		if err != nil {
			return nil, err
		}
		if k := len(n.script); k > 0 && n.script[k-1].Step >= d.Step {
			return nil, fmt.Errorf("decision %d from step %d comes after step %d: give the log in its order", d.Version, d.Step,
				n.script[k-1].Step)
		}
		d.Bytes = n.table.length(d.Codecs)
		n.script = append(n.script, d)
	}
	return n, nil
}

// parse reads the line of a decision about so many groups.
func parse(line string, codecs []Codec, groups int) (d Decision, err error) {
	head, list, _ := strings.Cut(line, ":")
	if n, err := fmt.Sscanf(head, "%d from step %d", &d.Version, &d.Step); n != 2 || err != nil {
		return Decision{}, fmt.Errorf("decision %q: write VERSION from step STEP: CODEC*GROUPS …", line)
	}
	for field := range strings.FieldsSeq(list) {
		name, times, repeated := strings.Cut(field, "*")
		n := 1
		if repeated {
			n, err = strconv.Atoi(times)
		}
		c := slices.IndexFunc(codecs, func(c Codec) bool { return c.Name == name })
		if err != nil || n < 1 || n > groups || c < 0 {
			return Decision{}, fmt.Errorf("decision %d: %q: use a candidate's name, or name*number for several groups", d.Version, field)
		}
		d.Codecs = append(d.Codecs, slices.Repeat([]uint8{uint8(c)}, n)...)
	}
	if len(d.Codecs) != groups {
		return Decision{}, fmt.Errorf("decision %d is about %d groups, but the job has %d: replay it with the job that wrote it", d.Version,
			len(d.Codecs), groups)
	}
	return d, nil
}

// Line returns a decision's line in the log, such as "3 from step 152: int4*12 int8 none*3".
func (n *Controller) Line(d Decision) string {
	line := fmt.Sprintf("%d from step %d:", d.Version, d.Step)
	for from, g := 0, 1; g <= len(d.Codecs); g++ {
		if g < len(d.Codecs) && d.Codecs[g] == d.Codecs[from] {
			continue
		}
		if line += " " + n.table.codecs[d.Codecs[from]].Name; g-from > 1 {
			line += fmt.Sprint("*", g-from)
		}
		from = g
	}
	return line
}

// Current returns the last decision that was confirmed, with version 0 before the first.
func (n *Controller) Current() Decision { return n.current }

// Bandwidth returns the estimate for a rank's connections in bytes per second, 0 before the first.
func (n *Controller) Bandwidth(rank int) float64 { return n.links[rank].bandwidth() }

// Hold makes a candidate, or none, the codec of all groups, from the step on for which all ranks accept it, and keeps it. If the
// name is [Auto], the controller chooses again. On an error it goes on as before.
func (n *Controller) Hold(name string) error {
	if name == Auto {
		n.held = nil
		return nil
	}
	var names []string
	for i, c := range n.table.codecs {
		if names = append(names, c.Name); c.Name == name {
			n.held = slices.Repeat([]uint8{uint8(i)}, len(n.table.groups))
			return nil
		}
	}
	return fmt.Errorf("codec %q is not a candidate: use one of %s", name, strings.Join(names, ", "))
}

// On appends the acts that follow from an event. An event of a rank that the job does not have is ignored.
func (n *Controller) On(e Event, to []Act) []Act {
	if e.Rank < 0 || e.Rank >= len(n.links) {
		return to
	}
	l := &n.links[e.Rank]
	switch e.Kind {
	case Begin:
		average(&l.overlap, e.Elapsed)
		if e.Step > n.seen || !n.begun {
			n.seen, n.begun = e.Step, true
			to = n.step(to)
		}
	case Acked:
		average(&l.rtt, e.RTT)
		l.acked(float64(e.Bytes), e.Elapsed.Seconds(), e.Chunks, e.Limited, n.config.Message)
	case Measured:
		n.table.measured(e.Rank, e.Samples, n.links)
	case Probed:
		n.table.probed(e.Samples)
	case Accept:
		if n.accepted != nil && e.Version == n.pending.Version {
			n.accepted[e.Rank] = true
			to = n.confirm(to)
		}
	case Leave:
		*l = link{}
		to = n.confirm(to)
	case Join:
		*l = link{live: true}
		if n.accepted != nil {
			n.accepted[e.Rank] = false
		}
	}
	return to
}

// step follows a step that begins.
func (n *Controller) step(to []Act) []Act {
	// A rank that has not accepted when another begins the last step before could be surprised.
	if n.accepted != nil && n.seen+1 >= n.pending.Step {
		to = n.withdraw(to)
	}
	if n.script != nil {
		if n.accepted == nil && len(n.script) > 0 && n.script[0].Step <= n.seen+latest {
			to, n.script = n.propose(n.script[0], to), n.script[1:]
		}
		return to
	}
	if n.held != nil {
		if n.accepted == nil && !slices.Equal(n.held, n.current.Codecs) {
			to = n.propose(Decision{Codecs: n.held, Bytes: n.table.length(n.held), Budget: n.table.raw}, to)
		}
		return to
	}
	if n.seen >= n.probed*probes {
		live := slices.IndexFunc(n.links, func(l link) bool { return l.live })
		to = append(to, Act{Kind: Probe, Rank: max(live, 0), Chunk: int(n.probed)})
		n.probed = n.seen/probes + 1
	}
	budget, ok := n.budget()
	if !ok {
		return to
	}
	n.calm.add(budget)
	if n.accepted == nil && n.seen >= max(n.due, n.current.Step) {
		n.due = n.seen + period
		to = n.solve(n.calm.budget(), to)
	}
	return to
}

// budget returns the whole bytes that a step may have, by the slowest link.
func (n *Controller) budget() (float64, bool) {
	b, raw := n.config.Spec.Budget, float64(n.table.raw)
	if b.Share > 0 {
		return math.Round(b.Share * raw), true
	}
	least := math.Inf(1)
	for r := range n.links {
		l := &n.links[r]
		bandwidth, seconds := l.bandwidth(), l.overlap
		if b.Rate > 0 && (bandwidth == 0 || bandwidth > b.Rate) {
			bandwidth = b.Rate
		}
		if b.Time > 0 {
			seconds = b.Time.Seconds()
		}
		if !l.live || bandwidth == 0 {
			continue
		}
		if seconds -= l.rtt + float64(float64(n.table.chunks)*n.config.Message); l.overlap == 0 && b.Time == 0 {
			seconds = math.NaN()
		}
		if bytes := n.config.Spec.limit(&n.table, bandwidth, seconds); bytes < least {
			least = bytes
		}
	}
	return min(math.Round(least), raw), !math.IsInf(least, 1)
}

// lost returns what codecs lose of all groups' worth.
func (n *Controller) lost(codecs []uint8) (sum float64) {
	for g, c := range codecs {
		sum += float64(n.worth[g] * n.table.lost[n.table.at(g, c)])
	}
	return sum
}

// solve proposes other codecs if the bytes exceed the budget, or if a window is over in which all budgets allowed better ones.
func (n *Controller) solve(budget float64, to []Act) []Act {
	n.config.Spec.worth(&n.table, n.worth)
	now := n.current.Codecs
	most := budget
	if n.config.Spec.Budget.Share == 0 && n.current.Version > 0 {
		most *= over
	}
	if float64(n.table.length(now)) > most {
		if d := n.choose(budget, false); !slices.Equal(d.Codecs, now) {
			to = n.propose(d, to)
		}
		return to
	}
	if n.seen < n.calm.since+n.calm.length {
		return to
	}
	least := n.calm.least
	n.calm.since, n.calm.least = n.seen, budget
	d := n.choose(least, true)
	if float64(d.Bytes) <= least && n.lost(d.Codecs) < better*n.lost(now) {
		to = n.propose(d, to)
	}
	return to
}

// choose solves the knapsack. Groups may move to a codec near the present one, a rung of their hulls up or down, or else to any
// with fewer bytes.
func (n *Controller) choose(budget float64, near bool) Decision {
	t, k := &n.table, &n.knapsack
	k.reset()
	total, all := 0.0, budget >= float64(t.raw)
	for g := range t.groups {
		total += n.worth[g]
		points := append(n.options[:0], n.point(g, n.current.Codecs[g]))
		if !t.fixed[g] {
			points = n.reachable(points, g, near)
		}
		if all {
			points[0] = slices.MaxFunc(points, func(a, b point) int { return int(a.bytes - b.bytes) })
			points = points[:1]
		}
		k.add(points)
		n.options = points
	}
	d := Decision{Codecs: make([]uint8, len(t.groups)), Budget: int64(budget)}
	var bound float64
	d.Bytes, _, bound = k.solve(d.Budget)
	for g := range d.Codecs {
		d.Codecs[g] = k.codec(g)
	}
	if total > 0 {
		d.Distortion, d.Bound = n.lost(d.Codecs)/total, (total-bound)/total
	}
	return d
}

func (n *Controller) point(g int, c uint8) point {
	i := n.table.at(g, c)
	return point{c, n.table.bytes[i], n.worth[g] * (1 - n.table.lost[i])}
}

// reachable appends the codecs that a group may move to, to the one that it has.
func (n *Controller) reachable(points []point, g int, near bool) []point {
	now := points[0]
	for c := range n.table.codecs {
		points = append(points, n.point(g, uint8(c)))
	}
	h := hull(points[1:])
	rung := 0
	for rung+1 < len(h) && h[rung+1].bytes <= now.bytes {
		rung++
	}
	low, high := 0, rung+1
	switch {
	case h[0].bytes > now.bytes:
		high = 0
	case near:
		low, high = max(rung-1, 0), min(rung+2, len(h))
	}
	return append(points[:1], h[low:high]...)
}

// propose asks all ranks about a decision.
func (n *Controller) propose(d Decision, to []Act) []Act {
	if n.script == nil {
		d.Version, d.Step = n.version+1, n.seen+n.lead
	}
	n.version = d.Version
	n.pending, n.accepted = d, make([]bool, len(n.links))
	return append(to, Act{Kind: Propose, Decision: d})
}

// confirm makes the pending decision the current one if all ranks have accepted it.
func (n *Controller) confirm(to []Act) []Act {
	if n.accepted == nil {
		return to
	}
	for r := range n.links {
		if n.links[r].live && !n.accepted[r] {
			return to
		}
	}
	turned, t := 0, &n.table
	for g, c := range n.pending.Codecs {
		now, next := t.bytes[t.at(g, n.current.Codecs[g])], t.bytes[t.at(g, c)]
		if now != next {
			if n.calm.rose[g] && next < now {
				turned++
			}
			n.calm.rose[g] = next > now
		}
	}
	// That some groups exchange their bytes as energies drift is not a mistake.
	if turned > 0 && n.pending.Bytes < n.current.Bytes || turned*10 > len(t.groups) {
		n.calm.length = min(2*n.calm.length, longer*dwell)
		clear(n.calm.rose)
	}
	n.calm.since, n.calm.least = n.pending.Step, math.Inf(1)
	n.current, n.accepted = n.pending, nil
	return append(to, Act{Kind: Confirm, Decision: n.current})
}

// withdraw drops the pending decision. The next has more time.
func (n *Controller) withdraw(to []Act) []Act {
	n.lead = min(2*n.lead, latest)
	n.due, n.accepted = n.seen, nil
	return append(to, Act{Kind: Withdraw, Decision: n.pending})
}
