package reduce

import (
	"fmt"
	"strings"

	"github.com/rackweave/rackweave/chunk"
)

// rig is a machine with workers that keep to the protocol unless a script says otherwise. Each knows its own slots and epochs.
type rig struct {
	*Machine
	cfg    Config
	manual bool // messages arrive, and result buffers are freed, only by a script's command
	now    int64
	at     []peer
	rows   rowModel
	failed error
}

// peer is the worker's end.
type peer struct {
	slots  []uint16 // free ones, in the order in which it fills them
	epochs []uint8  // by chunk: the epoch of the last gradient that was answered
	begun  []uint8  // by chunk: the epoch of the stream that it began last
	steps  uint8    // the epoch of the last commit that was answered, in stream mode
}

const chunkBytes = 100

func newRig(cfg Config, chunks, tensors, staging int, direct bool) *rig {
	ts := make([]Tensor, tensors)
	for i := range ts {
		ts[i] = Tensor{Name: fmt.Sprintf("t%d", i), Direct: direct}
	}
	cs := make([]Chunk, chunks)
	for i := range cs {
		cs[i] = Chunk{Tensor: uint32(i * tensors / chunks), Bytes: chunkBytes}
	}
	return newRigOf(cfg, ts, cs, staging)
}

func newRigOf(cfg Config, ts []Tensor, cs []Chunk, staging int) *rig {
	r := &rig{Machine: New(cfg), cfg: cfg, rows: rowModel{lists: map[uint64][]uint32{}, blocks: map[int32][]uint32{}}}
	for rank := range cfg.Workers {
		p := peer{epochs: make([]uint8, len(cs)), begun: make([]uint8, len(cs))}
		for i := range cfg.Window {
			p.slots = append(p.slots, uint16(i))
		}
		r.at = append(r.at, p)
		r.Attach(rank, staging)
	}
	r.Add(ts, cs)
	return r
}

// send delivers a message. Its payload's address encodes its worker, chunk and slot.
func (r *rig) send(rank int, m Message) string {
	p := &r.at[rank]
	if len(p.slots) > 0 {
		m.Where.Payload = payloadOf(rank, m.Index, p.slots[0])
		p.slots = p.slots[1:]
	}
	r.Receive(r.now, rank, &m)
	return r.settle()
}

func payloadOf(rank int, index uint32, slot uint16) uint64 {
	return uint64(rank+1)<<48 | uint64(index)<<16 | uint64(slot)
}

// settle carries out the actions as the lane does, and describes them.
func (r *rig) settle() string {
	var b strings.Builder
	actions := r.Actions
	if len(actions) == 1 && actions[0].Kind == MergeRows {
		text, reached, full := r.rows.merge(r, &actions[0])
		r.RowsMerged(r.now, reached, full)
		return text + "\n" + r.settle()
	}
	for i := range actions {
		a := &actions[i]
		b.WriteString(r.carryOut(a) + "\n")
	}
	for i := range actions {
		r.arrive(&actions[i])
	}
	return b.String()
}

var kindNames = [...]string{
	Update: "update", Sum: "sum", Accumulate: "accumulate", Broadcast: "broadcast", HandUp: "hand-up", Deliver: "deliver",
	Pull: "pull", Configure: "configure", Acknowledge: "acknowledge", NACK: "nack", Request: "request", Abort: "abort",
	Fail: "fail",
	Add:  "add", Drop: "drop", Announce: "announce", Updated: "updated",
	UpdateOne: "update-one", EndStep: "end-step", AnswerStep: "answer-step",
	ReachBarrier: "reach-barrier", Decide: "decide", Apply: "apply", Scale: "scale", AnswerCommit: "answer-commit", Refresh: "refresh",
	MergeRows: "merge", MergeOne: "merge-one", AnswerRows: "answer-rows", PullRows: "pull-rows",
}

func name(rank int32) string { return string(rune('A' + rank)) }

func (r *rig) carryOut(a *Action) string {
	switch a.Kind {
	case Update, Sum, Accumulate, Broadcast, Deliver, HandUp:
		out := fmt.Sprintf("%s %d epoch %d from", kindNames[a.Kind], a.Index, a.Epoch)
		for rank := range r.at {
			h := r.MessageOf(a, rank)
			if want := payloadOf(rank, a.Index, h.Slot); h.Payload != want {
				out += fmt.Sprintf(" [payload of %s is 0x%x, not 0x%x]", name(int32(rank)), h.Payload, want)
			}
			out += fmt.Sprintf(" %s/%d%s", name(int32(rank)), h.Slot, formText(h))
			if a.Kind != HandUp {
				r.free(rank, h.Slot)
				if a.Kind != Broadcast {
					r.at[rank].epochs[a.Index] = a.Epoch
				}
			}
		}
		return out
	case AnswerCommit:
		for rank := range r.at {
			r.free(rank, r.MessageOf(a, rank).Slot)
		}
		return fmt.Sprintf("%s epoch %d", kindNames[a.Kind], a.Epoch)
	case UpdateOne:
		p := &r.at[a.Worker]
		r.free(int(a.Worker), a.Message.Slot)
		p.epochs[a.Index] = a.Epoch
		return fmt.Sprintf("update-one %d epoch %d from %s/%d%s", a.Index, a.Epoch, name(a.Worker), a.Message.Slot, formText(&a.Message))
	case Add, Drop:
		p := &r.at[a.Worker]
		r.free(int(a.Worker), a.Message.Slot)
		p.epochs[a.Index] = a.Epoch
		out := fmt.Sprintf("%s %d of %s/%d%s", kindNames[a.Kind], a.Index, name(a.Worker), a.Message.Slot, formText(&a.Message))
		if want := payloadOf(int(a.Worker), a.Index, a.Message.Slot); a.Message.Payload != want || a.Op != chunk.OpPush {
			out += fmt.Sprintf(" [answered as %v, payload 0x%x, not 0x%x]", a.Op, a.Message.Payload, want)
		}
		return out
	case Announce:
		return "announce " + name(a.Worker)
	case EndStep:
		return "end-step of " + name(a.Worker)
	case AnswerStep:
		r.free(int(a.Worker), a.Message.Slot)
		r.at[a.Worker].steps = a.Epoch
		return fmt.Sprintf("answer-step epoch %d to %s/%d", a.Epoch, name(a.Worker), a.Message.Slot)
	case Pull, Acknowledge:
		if a.Op == chunk.OpPush {
			return r.rows.answer(r, a)
		}
		r.free(int(a.Worker), a.Message.Slot)
		if a.Index == chunk.IndexMask {
			return fmt.Sprintf("acknowledge step to %s/%d", name(a.Worker), a.Message.Slot)
		}
		return fmt.Sprintf("%s %d to %s/%d", kindNames[a.Kind], a.Index, name(a.Worker), a.Message.Slot)
	case MergeOne, AnswerRows, PullRows:
		return r.rows.answer(r, a)
	case NACK:
		r.free(int(a.Worker), a.Message.Slot)
		return fmt.Sprintf("nack %d to %s", a.Index, name(a.Worker))
	case Request, Configure:
		out := fmt.Sprintf("%s %d to %s", kindNames[a.Kind], a.Index, name(a.Worker))
		if a.New {
			out += " new"
		}
		return out
	case Abort:
		if a.Index == chunk.IndexMask {
			return "abort to " + name(a.Worker)
		}
		return fmt.Sprintf("abort to %s, blames %s", name(a.Worker), name(int32(a.Index)))
	case Fail:
		r.failed = a.Err
		return fmt.Sprintf("fail: %v", a.Err)
	case Apply, Scale:
		return fmt.Sprintf("%s %d..%d", kindNames[a.Kind], a.Index, a.End-1)
	}
	return kindNames[a.Kind]
}

// formText returns the form of a message that a codec has shortened.
func formText(h *Held) string {
	if h.Form == 0 {
		return ""
	}
	return fmt.Sprintf(":form%d", h.Form)
}

func (r *rig) free(rank int, slot uint16) { r.at[rank].slots = append(r.at[rank].slots, slot) }

// arrive frees the resources of an arrived message, unless the script does.
func (r *rig) arrive(a *Action) {
	if r.manual {
		return
	}
	switch a.Kind {
	case Update, Sum, Accumulate, Broadcast, Deliver, AnswerCommit:
		for rank := range r.at {
			if r.workers[rank].state == Attached {
				r.Delivered(rank, 1)
			}
		}
	case Pull, UpdateOne, Add, Drop, AnswerStep, Acknowledge, NACK, Request, Abort, MergeOne, AnswerRows, PullRows:
		r.Delivered(int(a.Worker), 1)
	}
	if a.Buffered || a.Last {
		r.Freed()
	}
}
