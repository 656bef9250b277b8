package failover

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
)

const testSettle, testTimeout = 500 * millisecond, 5000 * millisecond

// Scripts read as stories. Times are milliseconds. Every command but new ends with what all lanes are told to do then.
func TestStories(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, file string) {
		var c *Chooser
		datadriven.RunTest(t, file, func(t *testing.T, d *datadriven.TestData) string {
			if d.Cmd == "new" {
				var cfg Config
				d.ScanArgs(t, "lanes", &cfg.Lanes)
				d.ScanArgs(t, "nics", &cfg.WorkerNICs)
				if d.HasArg("each") {
					d.ScanArgs(t, "each", &cfg.Each)
				}
				cfg.Settle, cfg.Timeout = testSettle, testTimeout
				c = New(cfg)
				var out strings.Builder
				for lane := range cfg.Lanes {
					fmt.Fprintf(&out, "lane %d: %v\n", lane, c.At(lane))
				}
				return out.String()
			}
			var ms int64
			d.ScanArgs(t, "at", &ms)
			number := func(name string) (n int) { d.ScanArgs(t, name, &n); return n }
			now := ms * millisecond
			switch d.Cmd {
			case "link-down", "link-up":
				c.WorkerLink(now, number("nic"), d.Cmd == "link-up")
			case "aggregator-down":
				var down []int
				if d.HasArg("nics") {
					d.ScanArgs(t, "nics", &down)
				}
				c.AggregatorLinks(down)
			case "broke":
				c.Broke(now, number("lane"))
			case "failed":
				c.Failed(now, number("lane"))
			case "succeeded":
				c.Succeeded(now, number("lane"))
			case "wait":
			default:
				t.Fatalf("unknown command %s", d.Cmd)
			}
			return c.tell(now)
		})
	})
}

// tell asks what every lane should do.
func (c *Chooser) tell(now int64) string {
	var out strings.Builder
	for i := range c.lanes {
		from := c.At(i)
		text := "stay on " + from.String()
		if c.lanes[i].state != connected {
			text = "wait"
		}
		switch action, to := c.Next(now, i); {
		case action == Resume:
			text = fmt.Sprintf("resume %v -> %v", from, to)
		case action == GiveUp:
			text = "give up"
		case c.lanes[i].state == trying:
			text = fmt.Sprintf("try %v", from)
		}
		fmt.Fprintf(&out, "lane %d: %s\n", i, text)
	}
	return out.String()
}

// happening is an event of a random run.
type happening struct {
	at   int64
	kind string // up, down: of a worker's NIC; aggregator; failed, works: of a path
	nic  int
	down []int
	path Path
}

// oracle knows the rule and the whole history, and works everything out anew from that.
type oracle struct {
	cfg     Config
	history []happening
	paths   []Path
	at      []Path
	state   []state
	since   []int64
}

func (o *oracle) note(h happening) { o.history = append(o.history, h) }

func (o *oracle) open(now int64, p Path) bool {
	open := true
	for _, h := range o.history {
		switch {
		case h.kind == "down" && h.nic == p.Worker:
			open = false
		case h.kind == "up" && h.nic == p.Worker:
			open = h.at+o.cfg.Settle <= now
		}
	}
	for _, h := range slices.Backward(o.history) {
		if h.kind == "aggregator" {
			return open && !slices.Contains(h.down, p.Aggregator)
		}
	}
	return open
}

// failure returns when a path last failed and until when that counts; 0, 0: not since a link of its own changed.
func (o *oracle) failure(p Path) (failed, until int64) {
	var wasDown []int
	var length int64
	for _, h := range o.history {
		switch h.kind {
		case "up", "down":
			if h.nic == p.Worker {
				failed, until, length = 0, 0, 0
			}
		case "aggregator":
			if slices.Contains(h.down, p.Aggregator) != slices.Contains(wasDown, p.Aggregator) {
				failed, until, length = 0, 0, 0
			}
			wasDown = h.down
		case "works":
			if h.path == p {
				until = min(until, h.at)
			}
		case "failed":
			if h.path == p {
				if h.at-until > length {
					length = 0
				}
				length = max(min(2*length, 64000*millisecond), 1000*millisecond)
				failed, until = h.at, h.at+length
			}
		}
	}
	return failed, until
}

// opposite is the worker's NIC of the same number as one of its aggregator's.
func (o *oracle) opposite(aggregator int) int {
	if o.cfg.Each > 0 {
		aggregator %= o.cfg.Each
	}
	return aggregator % o.cfg.WorkerNICs
}

func (o *oracle) primary(lane int) Path {
	nic := o.cfg.Lanes[lane]
	return Path{nic, o.opposite(nic)}
}

// inOrder lists the open paths of a lane, best first.
func (o *oracle) inOrder(now int64, lane int) (order []Path) {
	primary := o.primary(lane)
	classes := []func(Path) bool{
		func(p Path) bool { return p == primary },
		func(p Path) bool { return p != primary && p.Worker == o.opposite(p.Aggregator) },
		func(p Path) bool { return p != primary && p.Worker != o.opposite(p.Aggregator) },
	}
	var late []Path
	for _, class := range classes {
		for i := range o.paths {
			p := o.paths[(i-lane%len(o.paths)+len(o.paths))%len(o.paths)]
			if !class(p) || !o.open(now, p) || o.cfg.Each > 0 && p.Aggregator/o.cfg.Each != primary.Aggregator/o.cfg.Each {
				continue
			}
			if _, until := o.failure(p); now < until {
				late = append(late, p)
			} else {
				order = append(order, p)
			}
		}
	}
	slices.SortStableFunc(late, func(a, b Path) int {
		fa, _ := o.failure(a)
		fb, _ := o.failure(b)
		return int(fa - fb)
	})
	return append(order, late...)
}

// want is what a lane should do; a wait has no end here.
func (o *oracle) want(now int64, lane int) (Action, Path) {
	if o.state[lane] == trying {
		return Wait, Path{}
	}
	if o.state[lane] == broken && now > o.since[lane]+o.cfg.Timeout {
		return GiveUp, Path{}
	}
	order := o.inOrder(now, lane)
	if len(order) == 0 {
		return Wait, Path{}
	}
	failed, until := o.failure(order[0])
	if o.state[lane] == connected && (order[0] == o.at[lane] || now < until && o.open(now, o.at[lane])) {
		return Wait, Path{}
	}
	if now < until && now < failed+20*millisecond {
		return Wait, Path{}
	}
	return Resume, order[0]
}

func TestDecisionsAreTheOnesThatTheWholeHistoryAsksFor(t *testing.T) {
	for seed := range uint64(300) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 1))
			cfg := Config{WorkerNICs: 1 + rng.IntN(3), Settle: testSettle, Timeout: testTimeout}
			aggregatorNICs := 1 + rng.IntN(3)
			for range 1 + rng.IntN(4) {
				cfg.Lanes = append(cfg.Lanes, rng.IntN(aggregatorNICs))
			}
			if rng.IntN(2) == 0 {
				cfg.Each = 1 + rng.IntN(2)
			}
			o := &oracle{cfg: cfg, state: make([]state, len(cfg.Lanes)), since: make([]int64, len(cfg.Lanes))}
			for a := range aggregatorNICs {
				for w := range cfg.WorkerNICs {
					if slices.Contains(cfg.Lanes, a) {
						o.paths = append(o.paths, Path{a, w})
					}
				}
			}
			for lane := range cfg.Lanes {
				o.at = append(o.at, o.primary(lane))
			}
			c := New(cfg)
			now := int64(1)
			for range 120 {
				now += rng.Int64N([]int64{1, 30, 700, 3000}[rng.IntN(4)]*millisecond) + 1
				happen(rng, c, o, now, aggregatorNICs)
				for lane := range cfg.Lanes {
					ask(t, c, o, now, lane)
				}
			}
		})
	}
}

// happen lets a random event happen.
func happen(rng *rand.Rand, c *Chooser, o *oracle, now int64, aggregatorNICs int) {
	lane := rng.IntN(len(o.at))
	switch rng.IntN(6) {
	case 0:
		nic, up := rng.IntN(o.cfg.WorkerNICs), rng.IntN(2) == 0
		c.WorkerLink(now, nic, up)
		o.note(happening{at: now, kind: map[bool]string{true: "up", false: "down"}[up], nic: nic})
	case 1:
		var down []int
		for nic := range aggregatorNICs {
			if rng.IntN(3) == 0 {
				down = append(down, nic)
			}
		}
		c.AggregatorLinks(down)
		o.note(happening{at: now, kind: "aggregator", down: down})
	case 2:
		c.Broke(now, lane)
		if o.state[lane] == connected {
			o.state[lane], o.since[lane] = broken, now
			o.note(happening{at: now, kind: "failed", path: o.at[lane]})
		}
	default:
		if o.state[lane] != trying {
			return
		}
		if rng.IntN(2) == 0 {
			c.Failed(now, lane)
			o.state[lane] = broken
			o.note(happening{at: now, kind: "failed", path: o.at[lane]})
		} else {
			c.Succeeded(now, lane)
			o.state[lane] = connected
			o.note(happening{at: now, kind: "works", path: o.at[lane]})
		}
	}
}

// ask compares a decision with the oracle's.
func ask(t *testing.T, c *Chooser, o *oracle, now int64, lane int) {
	t.Helper()
	got, to := c.Next(now, lane)
	if want, by := o.want(now, lane); got != want || to != by {
		t.Fatalf("%d ms, lane %d: %v %v, the history asks for %v %v", now/millisecond, lane, got, to, want, by)
	}
	if c.At(lane) != o.at[lane] && got != Resume {
		t.Fatalf("%d ms, lane %d: it is on %v, expected %v", now/millisecond, lane, c.At(lane), o.at[lane])
	}
	switch got {
	case Resume:
		if o.state[lane] == connected {
			o.since[lane] = now
		}
		o.state[lane], o.at[lane] = trying, to
	}
}

func TestTheEndOfAnAttemptThatWasNotAskedForPanics(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("no panic")
		}
	}()
	New(Config{Lanes: []int{0}, WorkerNICs: 1}).Succeeded(1, 0)
}

func TestDecidingAllocatesNothing(t *testing.T) {
	c := New(Config{Lanes: []int{0, 1}, WorkerNICs: 2, Settle: testSettle, Timeout: testTimeout})
	now := int64(0)
	if n := testing.AllocsPerRun(100, func() { now++; c.Next(now, 0); c.Next(now, 1) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
