package reduce

import (
	"fmt"
	"slices"

	"github.com/rackweave/rackweave/chunk"
)

// merging is the part of a machine that merges streams of rows.
type merging struct{ *Machine }

// takes reports whether a push of a chunk is a message about rows.
func (m merging) takes(index uint32) bool {
	return len(m.rows.all) > 0 && index < uint32(len(m.chunks)) && m.tensors[m.chunks[index].Tensor].Rows > 0
}

// receive records a message about rows. [Machine.Advance] merges and answers.
func (m merging) receive(rank int, msg *Message, h Held) {
	i := m.tensors[m.chunks[msg.Index].Tensor].stream
	s := &m.rows.all[i]
	t, r, g := &m.tensors[s.tensor], &s.of[rank], RowMessage{h, msg.Rows}
	switch {
	case msg.Op != chunk.OpPush || msg.Index != t.First:
		m.violate(rank, "sent %v of chunk %d of lane %d whole: rows of the sparse tensor %q are pushed by chunk %d", msg.Op, msg.Index,
			m.cfg.Lane, t.Name, t.First)
	case g.Rows.Kind == RowsPull:
		singles(m).pull(rank, msg, h)
	case g.Rows.Kind == RowsFetch && (!r.wants || msg.Epoch != r.epoch):
		m.violate(rank, "fetched results of tensor %q in lane %d for epoch %d without gradients of that epoch that want results", t.Name,
			m.cfg.Lane, msg.Epoch)
	case g.Rows.Kind == RowsFetch:
		m.hold(&r.fetches, rank, g)
		m.rows.queue(i)
	case g.Rows.Kind > RowsPull:
		m.violate(rank, "sent rows of tensor %q in lane %d with kind %d, which workers do not send", t.Name, m.cfg.Lane, g.Rows.Kind)
	case m.follows(s, rank, msg):
		m.join(i, rank, msg, g)
	}
}

// follows reports whether a gradient message continues its worker's stream, or begins the next. If not, the job fails.
func (m merging) follows(s *rowStream, rank int, msg *Message) bool {
	t, r, w, g := &m.tensors[s.tensor], &s.of[rank], &m.workers[rank], &msg.Rows
	mode, expect := m.cfg.Mode, m.chunks[t.First].epoch
	if mode == Stream {
		expect = w.epochs[t.First]
	}
	wants, wrong := g.Kind == RowsWanted, ""
	switch expect = epochAfter(expect); {
	case msg.Epoch != expect:
		wrong = fmt.Sprintf("for epoch %d, expected %d", msg.Epoch, expect)
	case r.sent == t.Rows:
		wrong = fmt.Sprintf("after the last of its %d", t.Rows)
	case g.From != r.sent || g.To <= g.From || g.To > t.Rows:
		wrong = fmt.Sprintf("instead of rows from %d on and at most to %d", r.sent, t.Rows)
	case r.sent > 0 && wants != r.wants:
		wrong = fmt.Sprintf("with kind %d, unlike those before", g.Kind)
	case wants && (mode == TwoPhase || mode == Stream):
		wrong = fmt.Sprintf("and wants their results in %v mode: push, then pull rows", mode)
	case mode == TwoPhase && m.commit.phase != Collecting:
		wrong = "while the step is being committed"
	case w.ending:
		wrong = "before the end of its last step was answered"
	case r.sent == 0 && (r.wants && !r.took || r.fetches.first != none):
		wrong = fmt.Sprintf("for epoch %d before it has fetched the last block of epoch %d", msg.Epoch, r.epoch)
	case (r.sent == 0 || mode == Stream) && m.broadcast(s.tensor):
		wrong = "while others broadcast it"
	default:
		return true
	}
	m.violate(rank, "sent rows %d to %d of tensor %q in lane %d %s", g.From, g.To, t.Name, m.cfg.Lane, wrong)
	return false
}

// broadcast reports whether a chunk of a tensor is being broadcast.
func (m merging) broadcast(tensor uint32) bool {
	for i := m.folds.first; i != none; i = m.folds.at(i).next {
		if m.chunks[m.folds.at(i).chunk].Tensor == tensor {
			return true
		}
	}
	return false
}

// join adds a gradient message to its stream.
func (m merging) join(i int32, rank int, msg *Message, g RowMessage) {
	s := &m.rows.all[i]
	t, r, w := &m.tensors[s.tensor], &s.of[rank], &m.workers[rank]
	w.stats.Chunks++
	if m.cfg.Mode == Stream {
		if r.sent = g.Rows.To; r.sent == t.Rows {
			r.sent = 0
			for c := t.First; m.isOf(c, s.tensor); c++ {
				w.epochs[c] = msg.Epoch
			}
		}
		m.reply(&Action{Kind: MergeOne, Worker: int32(rank), Index: t.First, Rows: g.Rows, Message: g.Held})
		return
	}
	if r.sent == 0 {
		r.epoch, r.wants, r.took = msg.Epoch, g.Rows.Kind == RowsWanted, false
		if s.begun++; s.begun == 1 {
			s.since = m.now
			m.rows.open++
		}
		if r.wants {
			s.takers++
		}
		w.stats.LatenessNS += uint64(m.now - s.since)
		if s.begun == m.cfg.Workers {
			w.stats.LastArrivals++
		}
	}
	r.sent = g.Rows.To
	if m.hold(&r.gradients, rank, g) {
		if s.ready++; s.ready == m.cfg.Workers {
			m.rows.queue(i)
		}
	}
}

// hold appends a message to a list. It reports whether the message is the first, which takes a slot that its worker keeps for it.
func (m merging) hold(l *slots, rank int, g RowMessage) (first bool) {
	if first = m.rows.put(l, rank, g); first {
		m.workers[rank].kept--
	}
	return first
}

// drop takes the oldest message off a list. It reports whether the list is empty now.
func (m merging) drop(l *slots, rank int) (empty bool) {
	l.first = m.rows.at(rank, l.first).next
	if empty = l.first == none; empty {
		m.workers[rank].kept++
	}
	return empty
}

// isOf reports whether a chunk is one of a sparse tensor's, which follow each other.
func (m merging) isOf(chunk, tensor uint32) bool {
	return int(chunk) < len(m.chunks) && m.chunks[chunk].Tensor == tensor
}

// advance answers the fetches of a stream, or begins a merge, and reports whether it did. The streams take turns.
func (m merging) advance() bool {
	for range m.rows.pending.Len() {
		i := m.rows.pending.Take()
		s := &m.rows.all[i]
		s.queued = false
		did, waits := m.answerFetches(s)
		if !did {
			var full bool
			did, full = m.merge(i)
			waits = waits || full
		}
		if did || waits {
			m.rows.queue(i)
		}
		if did {
			return true
		}
	}
	return false
}

// answerFetches answers all fetches for which there is a block. waits reports whether some wait for room.
func (m merging) answerFetches(s *rowStream) (did, waits bool) {
	for rank := range s.of {
		for r := &s.of[rank]; r.fetches.first != none; did = true {
			h := m.rows.at(rank, r.fetches.first).Held
			a := Action{Kind: AnswerRows, Worker: int32(rank), Index: m.tensors[s.tensor].First, Block: none, Message: h}
			a.Op, a.Epoch = h.Op, h.Epoch
			if a.Buffered = r.took; !r.took {
				if r.next == none {
					break
				}
				a.Block, a.Last = r.next, m.rows.blocks[r.next].left == 1
			}
			if !m.answer(&a) {
				waits = true
				break
			}
			m.drop(&r.fetches, rank)
			if a.Block != none {
				m.rows.take(s, r)
			}
		}
	}
	return did, waits
}

// merge begins the merge of the rows that the oldest messages of all workers cover. waits reports whether it waits for a block.
func (m merging) merge(i int32) (did, waits bool) {
	s := &m.rows.all[i]
	t := &m.tensors[s.tensor]
	if s.ready < m.cfg.Workers || s.waits > 0 {
		return false, false
	}
	if s.done == 0 && m.cfg.Mode == Eager && !(folding(m)).agree(s.tensor) {
		return true, false
	}
	fresh := s.takers > 0 && s.block == none && !m.cfg.Above
	if fresh && m.cfg.Maps && slices.ContainsFunc(s.of, func(r rowRank) bool { return !r.awaits() }) {
		return false, false
	}
	if fresh && !m.takeBlock(s) {
		return false, true
	}
	s.to = t.Rows
	if t.MergeMost > 0 {
		s.to = s.done + min(t.MergeMost, t.Rows-s.done)
	}
	for rank := range s.of {
		s.to = min(s.to, m.rows.at(rank, s.of[rank].gradients.first).Rows.To)
	}
	m.rows.merging = i
	a := Action{Kind: MergeRows, Index: t.First, Block: s.block, Buffered: fresh, Since: s.since}
	a.Rows.From, a.Rows.To = s.done, s.to
	m.emit(a)
	return true, false
}

// takeBlock takes a block to be filled, and a result buffer for it, or reports that none is free.
func (m merging) takeBlock(s *rowStream) bool {
	last := len(m.rows.unused) - 1
	if last < 0 || m.results == 0 {
		return false
	}
	m.results--
	s.block, m.rows.unused = m.rows.unused[last], m.rows.unused[:last]
	return true
}

// RowsOf returns the message of one worker that a [MergeRows] takes. A merge from its first row is the first that takes it.
func (m *Machine) RowsOf(a *Action, rank int) *RowMessage {
	s := &m.rows.all[m.tensors[m.chunks[a.Index].Tensor].stream]
	return &m.rows.at(rank, s.of[rank].gradients.first).RowMessage
}

// FetchOf returns the fetch of one worker that the block of a [MergeRows] will answer, and whether the worker wants the results.
// The fetch is nil if it has yet to come, or if other blocks answer it.
func (m *Machine) FetchOf(a *Action, rank int) (fetch *Held, wants bool) {
	r := &m.rows.all[m.tensors[m.chunks[a.Index].Tensor].stream].of[rank]
	if !r.wants || !r.awaits() {
		return nil, r.wants
	}
	return &m.rows.at(rank, r.fetches.first).Held, true
}

// RowsMerged ends a [MergeRows], which has merged the rows before reached. full reports that the block has no room for another row.
// The workers whose messages are merged are answered.
func (m *Machine) RowsMerged(now int64, reached uint32, full bool) {
	m.begin(now)
	i := m.rows.merging
	if m.rows.merging = none; m.State != Running {
		return
	}
	if i == none || reached < m.rows.all[i].done || reached > m.rows.all[i].to || reached < m.rows.all[i].to && !full {
		panic("reduce: rows were merged that no action names")
	}
	s := &m.rows.all[i]
	t := &m.tensors[s.tensor]
	if s.done = reached; s.block != none && (full || reached == t.Rows) {
		m.rows.fill(s, reached == t.Rows)
	}
	switch {
	case !m.cfg.Above:
		merging{m}.acknowledge(s, t, reached)
		if reached == t.Rows {
			merging{m}.endStep(s, t)
		}
	case reached == t.Rows:
		s.waits = 2
	default:
		merging{m}.acknowledge(s, t, reached)
		if full {
			s.waits = 1
		}
	}
	m.rows.queue(i)
}

// acknowledge answers the gradients of the rows before one.
func (m merging) acknowledge(s *rowStream, t *tensorState, end uint32) {
	for rank := range s.of {
		l := &s.of[rank].gradients
		for l.first != none && m.rows.at(rank, l.first).Rows.To <= end {
			h := m.rows.at(rank, l.first).Held
			if m.drop(l, rank) {
				s.ready--
			}
			m.answerOrWait(rank, Acknowledge, t.First, h)
		}
	}
}

// RowsReturned takes the next block of results of a sparse tensor, by its first chunk, from the racks above. taken reports that
// they have taken the full block of sums, so that there is room for the next. last reports that the results end at the last row:
// then the last gradients are answered. It returns the place into which the caller copies the block before it carries out the
// actions, or a negative one if no worker wants it. ok is false if no block is free, and nothing has changed.
func (m *Machine) RowsReturned(now int64, index uint32, taken, last bool) (block int32, ok bool) {
	m.begin(now)
	t := &m.tensors[m.chunks[index].Tensor]
	s := &m.rows.all[t.stream]
	if block = none; m.State != Running {
		return block, false
	}
	if s.takers > 0 {
		if !(merging{m}).takeBlock(s) {
			return block, false
		}
		block = s.block
		m.rows.fill(s, last)
	}
	if taken {
		s.waits--
	}
	if last {
		s.waits--
		merging{m}.acknowledge(s, t, t.Rows)
		merging{m}.endStep(s, t)
	}
	m.rows.queue(t.stream)
	return block, true
}

// endStep lets the streams of the next step begin. Workers may still fetch the results of this one.
func (m merging) endStep(s *rowStream, t *tensorState) {
	for c := t.First; m.isOf(c, s.tensor); c++ {
		m.chunks[c].epoch = epochAfter(m.chunks[c].epoch)
	}
	for rank := range s.of {
		s.of[rank].sent = 0
	}
	s.begun, s.takers, s.done = 0, 0, 0
	m.rows.open--
	m.Finished++
}
