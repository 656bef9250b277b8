package hierarchy

import (
	"errors"
	"fmt"
	"math/bits"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// tell gives the leader events: "RACK@TIME" comes to fragment 0, or to F with "RACK/F@TIME"; "t@TIME" is a tick, "a", "b" and "l"
// with a rack are away, back and left. It returns the words.
func tell(t *testing.T, l *Leader, events string) string {
	t.Helper()
	var out []string
	for event := range strings.FieldsSeq(events) {
		var at int64
		what, when, _ := strings.Cut(event, "@")
		fmt.Sscan(when, &at)
		var rack, fragment int
		switch what[0] {
		case 't':
			l.Tick(at)
		case 'a', 'b':
			fmt.Sscan(what[1:], &rack)
			l.Away(at, rack, what[0] == 'a')
		case 'l':
			l.Leave()
		default:
			if n, _ := fmt.Sscanf(what, "%d/%d", &rack, &fragment); n == 0 {
				t.Fatalf("event %q", event)
			}
			if !l.Come(at, rack, fragment) {
				out = append(out, "twice")
			}
		}
		for _, w := range l.Words() {
			switch w.Kind {
			case Held:
				out = append(out, fmt.Sprintf("held/%d:%b", w.Fragment, w.Racks))
			case Over:
				out = append(out, "over")
			default:
				out = append(out, fmt.Sprintf("%v/%d:%d", w.Kind, w.Fragment, w.Rack))
			}
		}
	}
	return strings.Join(out, " ")
}

func TestALeaderHoldsMeetingsOfAQuorum(t *testing.T) {
	for _, tc := range []struct {
		name          string
		racks, quorum int
		grace         time.Duration
		events, want  string
	}{
		{"all have come", 3, 2, 10, "0@0 2@5 1@9", "held/0:111"},
		{"time is up", 3, 2, 10, "0@0 2@5 t@14 t@15", "held/0:101"},
		{"no quorum", 3, 2, 10, "0@0 t@100", ""},
		{"the grace begins with the quorum", 3, 2, 10, "0@0 1@90 t@99 t@100", "held/0:11"},
		{"no grace", 3, 2, 0, "0@0 1@1", "held/0:11"},
		{"one is late, and comes to the next", 3, 2, 0, "0@0 1@1 2@2 2@3 0@4", "held/0:11 late/0:2 held/0:101"},
		{"one that misses several is late once", 3, 2, 0, "0@0 1@1 0@2 1@3 2@4 2@5 0@6", "held/0:11 held/0:11 late/0:2 held/0:101"},
		{"the leader's rack is late", 3, 2, 0, "2@0 1@1 0@2", "held/0:110 late/0:0"},
		{"fragments are apart", 3, 2, 0, "0/0@0 1/1@1 1/0@2 0/1@3", "held/0:11 held/1:11"},
		{"twice", 3, 2, 0, "0@0 0@1", "twice"},
		{"all of all", 3, 3, 10, "0@0 1@1 t@100 2@101", "held/0:111"},
		{"nobody waits for those who are away", 3, 2, 10, "a2@0 0@1 1@2", "held/0:11"},
		{"nor when they go away", 3, 2, 10, "0@1 1@2 a2@3", "held/0:11"},
		{"too few are left", 3, 2, 10, "a2@0 a1@1 0@2 0@3", "alone/0:0 alone/0:0"},
		{"too few are left for one that waits", 3, 2, 10, "0@0 a2@1 a1@2", "alone/0:0"},
		{"one comes back", 3, 2, 0, "a2@0 a1@1 0@2 b1@3 0@4 1@5", "alone/0:0 held/0:11"},
		{"left", 3, 2, 0, "0@0 l1@1 2@2 l0@3", "over"},
		{"64 racks", 64, 33, 0, manyCome(33), "held/0:" + strings.Repeat("1", 33)},
	} {
		t.Run(tc.name, func(t *testing.T) {
			o := Outer{Every: 2, Fragments: 2, Rule: OuterSGD, LR: 1, Quorum: tc.quorum, Grace: tc.grace}
			if got := tell(t, NewLeader(o, tc.racks), tc.events); got != tc.want {
				t.Errorf("%s: %q, want %q", tc.events, got, tc.want)
			}
		})
	}
}

func manyCome(n int) string {
	var events []string
	for r := range n {
		events = append(events, fmt.Sprintf("%d@%d", r, r))
	}
	return strings.Join(events, " ")
}

// follower is a rack in plain words: what it waits for, and what has become of it.
type follower struct {
	turns         *Turns
	waits, missed bool
	done          uint32
	met           int
}

// Whatever comes when, every meeting has a quorum, a rack takes part in just those that it waits for, one that has missed some
// catches up once, all agree on each meeting's weights, and nobody waits when a meeting can be held.
func TestRacksAndTheirLeaderAgree(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		racks := rapid.IntRange(1, 6).Draw(t, "racks")
		o := Outer{Every: 1, Rule: OuterSGD, LR: 1, Grace: time.Duration(rapid.IntRange(0, 20).Draw(t, "grace")),
			Quorum: rapid.IntRange(racks/2+1, racks).Draw(t, "quorum")}
		if err := o.CheckRacks(racks); err != nil {
			t.Fatal(err)
		}
		workers := make([]int, racks)
		for r := range workers {
			workers[r] = 1 + r
		}
		l := NewLeader(o, racks)
		all := make([]follower, racks)
		for r := range all {
			all[r].turns = NewTurns(o, r, workers)
		}
		now, away := int64(0), uint64(0)
		for range rapid.IntRange(1, 60).Draw(t, "events") {
			now += int64(rapid.IntRange(0, 15).Draw(t, "later"))
			r := rapid.IntRange(0, racks-1).Draw(t, "rack")
			l.Tick(now)
			for _, w := range l.Words() {
				hearWord(t, all, w, o.Quorum)
			}
			switch f := &all[r]; {
			case rapid.IntRange(0, 9).Draw(t, "what") == 0:
				away ^= 1 << r
				l.Away(now, r, away>>r&1 == 1)
			case f.waits || away>>r&1 == 1:
				l.Tick(now)
			default:
				f.waits = true
				if !l.Come(now, r, 0) {
					t.Fatalf("rack %d cannot come", r)
				}
			}
			for _, w := range l.Words() {
				hearWord(t, all, w, o.Quorum)
			}
			l.Tick(now)
			for _, w := range l.Words() {
				t.Fatalf("%+v comes a tick late", w)
			}
			if at, ok := l.Deadline(); ok != l.Waiting() || ok && (at <= now || at > now+int64(o.Grace)) {
				t.Fatalf("at %d the deadline is %d, %v", now, at, ok)
			}
			n, here := 0, uint64(0)
			for r := range all {
				if all[r].waits {
					n, here = n+1, here|1<<r
				}
			}
			if others := (uint64(1)<<racks - 1) &^ away &^ here; n > 0 && n+bits.OnesCount64(others) < o.Quorum {
				t.Fatalf("racks %b wait, %b may come, and a quorum is %d", here, others, o.Quorum)
			}
		}
		l.Leave()
		for _, w := range l.Words() {
			hearWord(t, all, w, o.Quorum)
		}
		for r := range all {
			if _, ok := all[r].turns.Turn(0, all[r].done); !ok {
				t.Fatalf("rack %d waits when all is over", r)
			}
			if all[r].missed {
				t.Fatalf("rack %d has not got the last meeting's result when all is over", r)
			}
		}
	})
}

// hearWord has all racks hear a word, and take their turns.
func hearWord(t *rapid.T, all []follower, w Word, quorum int) {
	if w.Kind == Held && bits.OnesCount64(w.Racks) < quorum {
		t.Fatalf("a meeting of %b, with a quorum of %d", w.Racks, quorum)
	}
	total, sum, first := 0, 0, Turn{}
	for r := range all {
		f := &all[r]
		if err := f.turns.Hear(w); err != nil {
			t.Fatal(err)
		}
		turn, ok := f.turns.Turn(0, f.done)
		if !ok {
			continue
		}
		f.done++
		f.turns.Taken(0, f.done, false)
		if (turn.Kind == StandIn) == f.waits && w.Kind != Over {
			t.Fatalf("%+v: rack %d has turn %+v and waits: %v", w, r, turn, f.waits)
		}
		switch turn.Kind {
		case CatchUp:
			if !f.missed {
				t.Fatalf("%+v: rack %d catches up and has missed nothing", w, r)
			}
			f.missed = false
		case StandIn:
			f.missed = true
		case TakePart:
			if f.missed || w.Racks>>r&1 == 0 {
				t.Fatalf("%+v: rack %d takes part", w, r)
			}
			sum += turn.Weight
		}
		f.waits = false
		if turn.Kind == TakePart || turn.Kind == StandIn {
			f.met++
			if total == 0 {
				total, first = turn.Total, turn
			}
			if turn.Total != total || turn.Meeting != first.Meeting || f.met != all[0].met {
				t.Fatalf("%+v: rack %d holds %+v, others %+v", w, r, turn, first)
			}
		}
	}
	if w.Kind == Held && sum != total {
		t.Fatalf("%+v: weights are %d in all, said to be %d", w, sum, total)
	}
}

// A rack that goes on alone weighs as much more at its next meeting; without lateness racks weigh their workers.
func TestARackWeighsItsWorkersTimesItsPeriods(t *testing.T) {
	o := Outer{Every: 4, Rule: OuterSGD, LR: 1, Quorum: 2}
	turns := NewTurns(o, 1, []int{2, 3, 5})
	for i, w := range []Word{{Kind: Held, Racks: 7}, {Kind: Alone, Rack: 1}, {Kind: Held, Racks: 6}, {Kind: Held, Racks: 5},
		{Kind: Late, Rack: 1}, {Kind: Held, Racks: 7}} {
		if err := turns.Hear(w); err != nil {
			t.Fatal(err)
		}
		turn, ok := turns.Turn(0, uint32(i))
		turn.Meeting = 0
		want := []Turn{{Kind: TakePart, Weight: 3, Total: 10}, {Kind: GoOn}, {Kind: TakePart, Weight: 6, Total: 11},
			{Kind: StandIn, Total: 7}, {Kind: CatchUp}, {Kind: TakePart, Weight: 3, Total: 10}}[i]
		if !ok || turn != want {
			t.Errorf("%+v: turn %+v, want %+v", w, turn, want)
		}
	}
}

// Turns are forgotten that all chunks have taken; for chunks that take none some are kept, but not for ever.
func TestTurnsAreForgottenWhenTaken(t *testing.T) {
	turns := NewTurns(Outer{Every: 4, Rule: OuterSGD, LR: 1, Quorum: 2}, 0, []int{1, 1, 1})
	for n := range uint32(3 * mostTurns) {
		if err := turns.Hear(Word{Kind: Held, Racks: 7}); err != nil {
			t.Fatal(err)
		}
		idle := n < 2*mostTurns // what is taken is forgotten anyway then
		turns.Taken(0, n, idle)
		if turns.Forgotten(0, n) || turns.Told(0) != n+1 || turns.Forgotten(0, 0) != (n >= mostTurns/2) {
			t.Fatalf("after %d meetings turn 0 is forgotten: %v", n, turns.Forgotten(0, 0))
		}
		if turn, ok := turns.Turn(0, n); !ok || turn.Kind != TakePart {
			t.Fatalf("turn %d is %+v, %v", n, turn, ok)
		}
	}
	if len(turns.fragments[0].turns) > 2 {
		t.Errorf("%d turns are kept", len(turns.fragments[0].turns))
	}
}

func TestWordsThatNoLeaderSaysAreRefused(t *testing.T) {
	o := Outer{Every: 4, Fragments: 2, Rule: OuterSGD, LR: 1, Quorum: 2}
	for _, w := range []Word{{Kind: Over + 1}, {Kind: Held}, {Kind: Held, Racks: 8}, {Kind: Held, Fragment: 2, Racks: 3},
		{Kind: Held, Fragment: -1, Racks: 3}, {Kind: Late, Rack: 3}, {Kind: Alone, Rack: -1}} {
		if err := NewTurns(o, 0, []int{1, 1, 1}).Hear(w); !errors.Is(err, ErrProtocol) {
			t.Errorf("%+v: error %v", w, err)
		}
	}
	turns := NewTurns(o, 0, []int{1, 1, 1})
	for n := 0; ; n++ {
		err := turns.Hear(Word{Kind: Held, Racks: 7})
		if err == nil && n < 2*mostTurns {
			continue
		}
		if !errors.Is(err, ErrProtocol) || !strings.Contains(err.Error(), "push all tensors in every step") {
			t.Errorf("after %d meetings that no chunk comes to: error %v", n, err)
		}
		break
	}
}
