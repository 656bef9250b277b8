package ratecontrol

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
)

// Config describes a job.
type Config struct {
	Spec    Spec
	Codecs  []Codec // the candidates: 1 to 255
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
	// Acked reports Bytes of Chunks, with headers, that Rank's connections delivered within Elapsed, every few chunks, where the link
	// alone determined the time.
	Acked
	// Measured reports Samples from the headers of Rank's chunks of a step, at most one per group. Raw chunks have none.
	Measured
	// Probed reports Samples of chunks that were encoded again, in candidates other than their own, and for [Raw] their energy.
	Probed
	// Accept announces that Rank will use Version from its step on, which it has not begun.
	Accept
	// Leave announces that Rank has left or is lost.
	Leave
)

// Event is an event of a job.
type Event struct {
	Kind    EventKind
	Rank    int
	Step    uint64
	Elapsed time.Duration
	Bytes   int64
	Chunks  int
	Version uint32
	Samples []Sample
}

// ActKind is the kind of an act.
type ActKind uint8

const (
	// Propose asks all ranks to accept Decision.
	Propose ActKind = iota
	// Confirm tells that all ranks have accepted Decision. Its line belongs in the log.
	Confirm
	// Withdraw tells that not all ranks have accepted Decision in time. Ranks that have go back to the last confirmed one.
	Withdraw
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
}

const (
	period  = 50   // steps from one solution to the next
	dwell   = 100  // steps for which groups keep codecs, unless the bytes exceed the budget
	longer  = 16   // times dwell, at most, after changes that did not last
	better  = 0.95 // of the distortion: a solution must reach it to be adopted
	over    = 1.1  // times the budget: more bytes are brought down
	soonest = 2    // steps from a proposal to its effect, at first
	latest  = 32 * soonest
)

// Controller chooses the codecs of a job.
type Controller struct {
	config Config
	table  table
	links  []link
	begun  uint64 // the largest step that a rank has begun, plus 1

	current  Decision // confirmed
	proposal Decision // the last one
	pending  bool     // the proposal is neither confirmed nor withdrawn
	lead     uint64   // steps from a proposal to its effect; doubled when ranks do not accept in time
	due      uint64   // the step of the next solution
	calm     calm
	held     []uint8 // that [Controller.Hold] named
	worth    []float64
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
func New(c Config) *Controller {
	groups := len(c.Groups)
	n := &Controller{
		config: c, links: slices.Repeat([]link{{live: true}}, c.Ranks), lead: soonest, worth: make([]float64, groups),
		calm: calm{length: dwell, least: math.Inf(1), rose: make([]bool, groups)},
	}
	n.table.init(c.Groups, c.Codecs, c.Ranks)
	n.current = Decision{Codecs: slices.Repeat([]uint8{c.Start}, groups), Budget: n.table.raw}
	n.current.Bytes = n.table.length(n.current.Codecs)
	return n
}

// Line returns a decision's line in the log, such as "3 from step 152: int4*12 int8 none*3".
func (n *Controller) Line(d Decision) string {
	line := fmt.Sprintf("%d from step %d:", d.Version, d.Step)
	for rest := d.Codecs; len(rest) > 0; {
		run := 1
		for run < len(rest) && rest[run] == rest[0] {
			run++
		}
		if line += " " + n.table.names[rest[0]]; run > 1 {
			line += fmt.Sprint("*", run)
		}
		rest = rest[run:]
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
	i := slices.Index(n.table.names, name)
	switch {
	case name == Auto:
		n.held = nil
	case i < 0:
		return fmt.Errorf("codec %q is not a candidate: use one of %s", name, strings.Join(n.table.names, ", "))
	default:
		n.held = slices.Repeat([]uint8{uint8(i)}, len(n.table.groups))
	}
	return nil
}

// On appends the acts that follow from an event.
func (n *Controller) On(e Event, to []Act) []Act {
	l := &n.links[e.Rank]
	switch e.Kind {
	case Begin:
		if l.computed(e.Elapsed.Seconds()); e.Step >= n.begun {
			n.begun = e.Step + 1
			to = n.step(e.Step, to)
		}
	case Acked:
		l.acked(float64(e.Bytes), e.Elapsed.Seconds(), e.Chunks, n.config.Message)
	case Measured:
		n.table.measured(e.Rank, e.Samples, n.links)
	case Probed:
		n.table.probed(e.Samples)
	case Accept:
		if e.Version == n.proposal.Version {
			l.accepted = e.Version
			to = n.confirm(to)
		}
	case Leave:
		*l = link{}
		to = n.confirm(to)
	}
	return to
}

// step follows a step that begins.
func (n *Controller) step(now uint64, to []Act) []Act {
	// A rank that has not accepted when another begins the last step before could be surprised.
	if n.pending && now+1 >= n.proposal.Step {
		n.lead, n.due, n.pending = min(2*n.lead, latest), now, false
		to = append(to, Act{Kind: Withdraw, Decision: n.proposal})
	}
	if n.held != nil {
		if !n.pending && !slices.Equal(n.held, n.current.Codecs) {
			to = n.propose(now, Decision{Codecs: n.held, Bytes: n.table.length(n.held), Budget: n.table.raw}, to)
		}
		return to
	}
	budget := n.budget()
	if math.IsInf(budget, 1) {
		return to
	}
	n.calm.add(min(math.Round(budget), float64(n.table.raw)))
	if !n.pending && now >= max(n.due, n.current.Step) {
		n.due = now + period
		to = n.solve(now, n.calm.budget(), to)
	}
	return to
}

// budget returns the bytes that a step may have by the slowest link, or +Inf until a link is known.
func (n *Controller) budget() float64 {
	b, raw := n.config.Spec.Budget, float64(n.table.raw)
	if b.Share > 0 {
		return b.Share * raw
	}
	messages := float64(n.table.chunks) * n.config.Message
	least := math.Inf(1)
	for r := range n.links {
		l := &n.links[r]
		bandwidth, seconds := l.bandwidth(), cmp.Or(b.Time.Seconds(), l.overlap)
		if b.Rate > 0 {
			bandwidth = min(cmp.Or(bandwidth, b.Rate), b.Rate)
		}
		switch {
		case !l.live || bandwidth == 0:
		case n.config.Spec.Law == aceLaw && b == Budget{}: // equation 5
			least = min(least, raw/(cmin+float64((cmax-cmin)*math.Exp(-beta*bandwidth*8e-6))))
		case seconds > 0:
			least = min(least, margin*bandwidth*max(seconds-messages, 0))
		}
	}
	return least
}

// lost returns what codecs lose of all groups' worth.
func (n *Controller) lost(codecs []uint8) (sum float64) {
	for g, c := range codecs {
		sum += float64(n.worth[g] * n.table.lost[n.table.at(g, c)])
	}
	return sum
}

// solve proposes other codecs if the bytes exceed the budget, or if a window is over in which all budgets allowed better ones.
func (n *Controller) solve(now uint64, budget float64, to []Act) []Act {
	n.config.Spec.worth(&n.table, n.worth)
	codecs, most := n.current.Codecs, budget
	if n.config.Spec.Budget.Share == 0 && n.current.Version > 0 {
		most *= over
	}
	if float64(n.table.length(codecs)) > most {
		if d := n.choose(budget, false); !slices.Equal(d.Codecs, codecs) {
			to = n.propose(now, d, to)
		}
		return to
	}
	if now < n.calm.since+n.calm.length {
		return to
	}
	least := n.calm.least
	n.calm.since, n.calm.least = now, budget
	if d := n.choose(least, true); float64(d.Bytes) <= least && n.lost(d.Codecs) < better*n.lost(codecs) {
		to = n.propose(now, d, to)
	}
	return to
}

// choose solves the knapsack.
func (n *Controller) choose(budget float64, near bool) Decision {
	total, hulls := 0.0, make([][]point, len(n.worth))
	for g, worth := range n.worth {
		total, hulls[g] = total+worth, n.reachable(g, near)
	}
	choice, bytes, bound := solve(hulls, int64(budget))
	d := Decision{Codecs: make([]uint8, len(choice)), Bytes: bytes, Budget: int64(budget)}
	for g, p := range choice {
		d.Codecs[g] = p.codec
	}
	if total > 0 {
		d.Distortion, d.Bound = n.lost(d.Codecs)/total, (total-bound)/total
	}
	return d
}

// reachable returns the hull of the codecs that a group may have next: the present one, and those a rung of all codecs' hull from
// it if they must be near, or else any with fewer bytes.
func (n *Controller) reachable(g int, near bool) []point {
	points := make([]point, 1, 1+len(n.table.names))
	for c := range n.table.names {
		i := n.table.at(g, uint8(c))
		points = append(points, point{uint8(c), n.table.bytes[i], n.worth[g] * (1 - n.table.lost[i])})
	}
	now := points[1+n.current.Codecs[g]]
	if points[0] = now; n.table.groups[g].Elems < smallest {
		return points[:1]
	}
	h := hull(points[1:])
	rung := 0
	for rung+1 < len(h) && h[rung+1].bytes <= now.bytes {
		rung++
	}
	low, high := 0, rung+1
	if near {
		low, high = max(rung-1, 0), min(rung+2, len(h))
	}
	return hull(append(points[:1], h[low:high]...))
}

// propose asks all ranks about a decision.
func (n *Controller) propose(now uint64, d Decision, to []Act) []Act {
	d.Version, d.Step = n.proposal.Version+1, now+n.lead
	n.proposal, n.pending = d, true
	return append(to, Act{Kind: Propose, Decision: d})
}

// confirm makes the pending decision the current one if all ranks have accepted it.
func (n *Controller) confirm(to []Act) []Act {
	for r := range n.links {
		if l := &n.links[r]; !n.pending || l.live && l.accepted != n.proposal.Version {
			return to
		}
	}
	turned, t := 0, &n.table
	for g, c := range n.proposal.Codecs {
		now, next := t.bytes[t.at(g, n.current.Codecs[g])], t.bytes[t.at(g, c)]
		if now != next {
			if n.calm.rose[g] && next < now {
				turned++
			}
			n.calm.rose[g] = next > now
		}
	}
	// That some groups exchange their bytes as energies drift is not a mistake.
	if turned > 0 && n.proposal.Bytes < n.current.Bytes || turned*10 > len(t.groups) {
		n.calm.length = min(2*n.calm.length, longer*dwell)
		clear(n.calm.rose)
	}
	n.calm.since, n.calm.least = n.proposal.Step, math.Inf(1)
	n.current, n.pending = n.proposal, false
	return append(to, Act{Kind: Confirm, Decision: n.current})
}
