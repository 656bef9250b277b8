package reduce

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/rackweave/rackweave/chunk"
)

// oracle knows only the gradients of every worker that lie at the aggregator. A chunk is finished when all of them lie there and
// every worker has room for an answer.
type oracle struct {
	cfg         Config
	present     []map[uint32]uint16 // by worker: the slots of the chunks that lie at the aggregator
	forms       []map[uint32]uint64 // by worker: the forms of the last gradients that it sent
	outstanding []int               // by worker: messages sent to it that have not arrived
	results     int                 // buffers in use
	finished    []int               // by chunk
}

func (o *oracle) observe(r *rig, a *Action) error {
	switch a.Kind {
	case Sum:
		if a.Epoch != uint8(o.finished[a.Index]+1)&chunk.EpochMask {
			return fmt.Errorf("chunk %d finished for epoch %d after %d", a.Index, a.Epoch, o.finished[a.Index])
		}
		for rank, there := range o.present {
			if slot, ok := there[a.Index]; !ok || slot != r.MessageOf(a, rank).Slot {
				return fmt.Errorf("chunk %d of worker %d summed from slot %d: %v lie there", a.Index, rank,
					r.MessageOf(a, rank).Slot, there)
			}
			if form := r.MessageOf(a, rank).Form; form != o.forms[rank][a.Index] {
				return fmt.Errorf("chunk %d of worker %d summed in form %d: it sent form %d", a.Index, rank, form, o.forms[rank][a.Index])
			}
			delete(there, a.Index)
			o.outstanding[rank]++
		}
		o.finished[a.Index]++
		o.results++
	case NACK:
		if slot, ok := o.present[a.Worker][a.Index]; !ok || slot != a.Message.Slot {
			return fmt.Errorf("NACK of chunk %d in slot %d to worker %d: %v lie there", a.Index, a.Message.Slot,
				a.Worker, o.present[a.Worker])
		}
		delete(o.present[a.Worker], a.Index)
		o.outstanding[a.Worker]++
	case Request:
		if _, ok := o.present[a.Worker][a.Index]; ok {
			return fmt.Errorf("chunk %d requested of worker %d, which has sent it", a.Index, a.Worker)
		}
		o.outstanding[a.Worker]++
	default:
		return fmt.Errorf("action %s: %v", kindNames[a.Kind], a.Err)
	}
	return nil
}

// check compares the machine's state after an event with the expected one.
func (o *oracle) check(r *rig) error {
	room := o.results < o.cfg.Results
	for rank, n := range o.outstanding {
		room = room && n < o.cfg.Sends-SendMargin
		if n > o.cfg.Sends {
			return fmt.Errorf("%d messages sent to worker %d, whose queue takes %d", n, rank, o.cfg.Sends)
		}
		if r.Held(rank) != len(o.present[rank]) {
			return fmt.Errorf("worker %d holds %d slots, %d gradients lie there", rank, r.Held(rank),
				len(o.present[rank]))
		}
	}
	for c := range o.finished {
		complete := true
		for _, there := range o.present {
			_, ok := there[uint32(c)]
			complete = complete && ok
		}
		if complete && room {
			return fmt.Errorf("chunk %d is complete, there is room, and it was not finished", c)
		}
	}
	return r.Audit()
}

// member is a worker that pushes every chunk once per step in an order of its own, requested ones first.
type member struct {
	todo      []uint32
	requested []uint32
	inflight  int
}

func (m *member) next(room bool) (uint32, bool) {
	for i := len(m.requested) - 1; i >= 0; i-- {
		if at := slices.Index(m.todo, m.requested[i]); at >= 0 {
			return m.take(at), true
		}
	}
	if len(m.todo) == 0 || len(m.requested) > 0 && !room {
		return 0, false
	}
	return m.take(0), true
}

func (m *member) take(at int) uint32 {
	c := m.todo[at]
	m.todo = slices.Delete(m.todo, at, at+1)
	m.requested = slices.DeleteFunc(m.requested, func(r uint32) bool { return r == c })
	return c
}

// In any order of pushes and arrivals, the machine agrees with the oracle, and every chunk is finished.
func TestMachineAgreesWithTheOracleAndFinishes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg := Config{
			Workers: rapid.IntRange(1, 4).Draw(t, "workers"), Window: rapid.IntRange(2, 6).Draw(t, "window"),
			Mode:    Aggregate,
			Results: rapid.IntRange(1, 3).Draw(t, "results"),
		}
		cfg.Sends = 2*cfg.Window + 2*SendMargin
		chunks := rapid.IntRange(1, 10).Draw(t, "chunks")
		steps := rapid.IntRange(1, 3).Draw(t, "steps")
		r := newRig(cfg, chunks, 1, cfg.Window, false)
		r.manual = true
		o := &oracle{cfg: cfg, outstanding: make([]int, cfg.Workers), finished: make([]int, chunks)}
		members := make([]member, cfg.Workers)
		order := make([]uint32, chunks)
		for c := range order {
			order[c] = uint32(c)
		}
		step := make([]int, cfg.Workers)
		for range members {
			o.present = append(o.present, map[uint32]uint16{})
			o.forms = append(o.forms, map[uint32]uint64{})
		}
		settle := func() {
			actions := slices.Clone(r.Actions)
			for i := range actions {
				a := &actions[i]
				if err := o.observe(r, a); err != nil {
					t.Fatal(err)
				}
				r.carryOut(a)
				switch a.Kind {
				case Sum:
					for i := range members {
						members[i].inflight--
					}
				case NACK:
					members[a.Worker].inflight--
					members[a.Worker].todo = append(members[a.Worker].todo, a.Index)
				case Request:
					members[a.Worker].requested = append(members[a.Worker].requested, a.Index)
				}
			}
		}
		advance := func() {
			for r.Advance(r.now) {
				settle()
			}
		}
		act := func(rank int) bool {
			m := &members[rank]
			if len(m.todo) == 0 && m.inflight == 0 && step[rank] < steps {
				step[rank]++
				m.requested = nil
				m.todo = rapid.Permutation(order).Draw(t, "order")
			}
			if m.inflight == cfg.Window {
				return false
			}
			c, ok := m.next(m.inflight < cfg.Window-1)
			if !ok {
				return false
			}
			m.inflight++
			o.present[rank][c] = r.at[rank].slots[0]
			msg := r.message(chunk.OpPushPull, rank, c, nil)
			msg.Where.Payload = payloadOf(rank, c, r.at[rank].slots[0])
			r.at[rank].slots = r.at[rank].slots[1:]
			if rapid.Bool().Draw(t, "coded") {
				msg.Where.Form, msg.Bytes = msg.Where.Payload, chunkBytes/4
			}
			o.forms[rank][c] = msg.Where.Form
			r.Receive(r.now, rank, &msg)
			settle()
			return true
		}
		arrive := func(rank int) {
			if n := o.outstanding[rank]; n > 0 {
				o.outstanding[rank] = 0
				r.Delivered(rank, n)
			}
		}
		free := func() {
			for ; o.results > 0; o.results-- {
				r.Freed()
			}
		}
		for range rapid.IntRange(0, 80).Draw(t, "events") {
			r.now++
			switch rank := rapid.IntRange(0, cfg.Workers-1).Draw(t, "worker"); rapid.IntRange(0, 7).Draw(t, "event") {
			case 0:
				arrive(rank)
				advance()
			case 1:
				free()
				advance()
			case 2:
				r.Tick(r.now, rapid.Bool().Draw(t, "counts"))
				settle()
			default:
				act(rank)
			}
			if err := o.check(r); err != nil {
				t.Fatal(err)
			}
		}
		for rounds := 0; slices.Contains(o.finished, steps) == false || slices.Min(o.finished) < steps; rounds++ {
			if rounds > 4000 {
				t.Fatalf("stuck: chunks were finished %v times", o.finished)
			}
			free()
			for rank := range members {
				arrive(rank)
			}
			advance()
			worked := false
			for rank := range members {
				worked = act(rank) || worked
			}
			if !worked {
				r.Tick(r.now, true)
				settle()
			}
			if err := o.check(r); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// Steps may end before a tensor is registered, and the worker need not acknowledge anything.
func TestStepsThatEndBeforeTensorsAreRegisteredWaitForRoom(t *testing.T) {
	m := New(Config{Workers: 1, Window: 8, Sends: 80, Results: 4, Mode: Stream})
	m.Attach(0, 8)
	for epoch := uint8(1); !m.Waiting(); epoch++ {
		if m.State != Running || epoch > 40 {
			t.Fatalf("epoch %d: %v, and nothing waits", epoch, m.State)
		}
		m.Receive(0, 0, &Message{Op: chunk.OpCommit, Epoch: epoch, Record: &chunk.TensorRecord{}})
		m.Release(0, 0, Alone)
	}
}

// Events allocate nothing, from a chunk's first gradient to its last.
func TestEventsAllocateNothing(t *testing.T) {
	r := newRig(Config{Workers: 4, Window: 8, Sends: 80, Results: 4, Mode: Eager}, 8, 1, 8, true)
	msgs := make([]Message, 4)
	epoch := uint8(0)
	allocs := testing.AllocsPerRun(200, func() {
		epoch = epochAfter(epoch)
		for c := range uint32(8) {
			for rank := range msgs {
				msgs[rank] = Message{Op: chunk.OpPushPull, Epoch: epoch, Index: c, Bytes: chunkBytes}
				r.Receive(0, rank, &msgs[rank])
			}
			for i := range r.Actions {
				for rank := range msgs {
					if r.Actions[i].Kind == Update {
						r.Delivered(rank, 1)
					}
				}
			}
			r.Tick(0, true)
		}
	})
	if allocs != 0 || r.Finished == 0 {
		t.Errorf("%v allocations, %d chunks finished", allocs, r.Finished)
	}
}

func BenchmarkCompleteChunk(b *testing.B) {
	const workers = 4
	r := newRig(Config{Workers: workers, Window: 8, Sends: 80, Results: 4, Mode: Eager}, 8, 1, 8, true)
	msg := Message{Op: chunk.OpPushPull, Bytes: chunkBytes}
	for i := 0; b.Loop(); i++ {
		if msg.Index = uint32(i % 8); msg.Index == 0 {
			msg.Epoch = epochAfter(msg.Epoch)
		}
		for rank := range workers {
			r.Receive(0, rank, &msg)
		}
		for rank := range workers {
			r.Delivered(rank, 1)
		}
	}
}
