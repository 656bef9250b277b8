package checkpoint

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"github.com/rackweave/rackweave/aggregate"
	"github.com/rackweave/rackweave/service/api"
	"github.com/rackweave/rackweave/service/job"
	"github.com/rackweave/rackweave/service/rpc"
)

// model is a job's parameters and optimizer state. A job over several racks keeps the state of each chunk at the rack that
// owns it, or has a state in each rack. An aggregator that has a part of a job knows the state of its own chunks.
type model struct {
	*aggregate.Snapshot
	s      *State
	others Racks
	marks  []*api.StateMarks // by rack. If nil, steps may be under way.
}

func (OneRack) Names() []string                                                     { return []string{""} }
func (OneRack) Buddies() bool                                                       { return false }
func (OneRack) Run() string                                                         { return "" }
func (OneRack) Ask(context.Context, func(int) *api.StateQuestion) ([][]byte, error) { return nil, nil }

// snapshot starts a snapshot of a job in which nothing is under way. The caller has locked the job's model.
func (s *State) snapshot(ctx context.Context) (*model, error) {
	own, err := s.Agg.Snapshot(ctx, s.Model.Plan)
	if err != nil {
		return nil, err
	}
	m := &model{Snapshot: own, s: s, others: s.others}
	s.Model.Turn.Store(marking)
	answers, err := m.ask(ctx, func(int) *api.StateQuestion { return &api.StateQuestion{Kind: api.StateQuestion_MARK} })
	if err != nil {
		return nil, err
	}
	m.marks = make([]*api.StateMarks, len(answers))
	for i, a := range answers {
		m.marks[i] = &api.StateMarks{}
		if err := proto.Unmarshal(a, m.marks[i]); err != nil {
			return nil, m.misunderstood(i)
		}
	}
	s.Model.Turn.Store(marked)
	return m, nil
}

// peek starts a snapshot that is only read, for a worker that has nothing under way.
func (s *State) peek(context.Context) (*model, error) {
	own, err := s.Agg.Reopen(s.Model.Plan, nil)
	if err != nil {
		return nil, err
	}
	return &model{Snapshot: own, s: s, others: s.others}, nil
}

// ask asks the other racks with the marks.
func (m *model) ask(ctx context.Context, about func(i int) *api.StateQuestion) ([][]byte, error) {
	return m.others.Ask(ctx, m.marking(about))
}

// marking adds the marks to questions.
func (m *model) marking(about func(i int) *api.StateQuestion) func(i int) *api.StateQuestion {
	return func(i int) *api.StateQuestion {
		q := about(i)
		if q != nil && m.marks != nil {
			q.Marks = m.marks[i]
		}
		return q
	}
}

func (m *model) misunderstood(i int) error {
	return fmt.Errorf("the answer of rack %q about the state of job %q cannot be read: %w", m.others.Names()[i], m.s.Name, rpc.ErrVersions)
}

// about returns a question about pieces, or nil without pieces.
func about(kind api.StateQuestion_Kind, pieces []aggregate.Piece) *api.StateQuestion {
	if len(pieces) == 0 {
		return nil
	}
	q := &api.StateQuestion{Kind: kind}
	for i := range pieces {
		q.Chunks, q.Arrays = append(q.Chunks, uint32(pieces[i].Chunk)), append(q.Arrays, uint32(pieces[i].Array))
	}
	return q
}

// from returns the pieces of which a rack is the source.
func (m *model) from(rack int, pieces []aggregate.Piece) (of []aggregate.Piece) {
	for _, p := range pieces {
		if m.Source(p) == rack {
			of = append(of, p)
		}
	}
	return of
}

// Read copies pieces out of the job.
func (m *model) Read(ctx context.Context, pieces []aggregate.Piece) error {
	if err := m.Snapshot.Read(ctx, pieces); err != nil {
		return err
	}
	answers, err := m.ask(ctx, func(rack int) *api.StateQuestion { return about(api.StateQuestion_READ, m.from(rack, pieces)) })
	if err != nil {
		return err
	}
	for i, a := range answers {
		if i == m.others.Own() {
			continue
		}
		for _, p := range m.from(i, pieces) {
			var ok bool
			if a, ok = readValues(p.Data, a); !ok {
				return m.misunderstood(i)
			}
		}
	}
	return nil
}

// Write copies pieces into the job.
func (m *model) Write(ctx context.Context, pieces []aggregate.Piece) error {
	own := func() error { return m.Snapshot.Write(ctx, pieces) }
	// A rack that keeps any of the pieces gets all of them, so that all racks get one payload.
	keepers := func(rack int) *api.StateQuestion {
		if !slices.ContainsFunc(pieces, func(p aggregate.Piece) bool { return m.Keeps(rack, p) }) {
			return nil
		}
		return about(api.StateQuestion_WRITE, pieces)
	}
	payload := func() (b []byte) {
		for _, p := range pieces {
			b = appendValues(b, p.Data)
		}
		return b
	}
	return m.replace(ctx, keepers, payload, own)
}

// SetUpdates sets the number of optimizer steps of each tensor.
func (m *model) SetUpdates(ctx context.Context, updates []uint32) error {
	own := func() error { return m.s.setUpdates(ctx, m.Snapshot, updates) }
	return m.replace(ctx, func(int) *api.StateQuestion { return &api.StateQuestion{Kind: api.StateQuestion_SET_UPDATES} },
		func() []byte { return appendValues(nil, updates) }, own)
}

// setUpdates sets the number of optimizer steps of each tensor at this aggregator, as the last change of a restore.
func (s *State) setUpdates(ctx context.Context, snap *aggregate.Snapshot, updates []uint32) error {
	err := snap.SetUpdates(ctx, updates)
	if err == nil && len(updates) > 0 {
		step := slices.Max(updates)
		s.Model.Restored.Store(&step)
	}
	return err
}

// replace replaces a part of the state at all racks, at this one by own. If only some have replaced it, the job fails.
func (m *model) replace(ctx context.Context, about func(int) *api.StateQuestion, payload func() []byte,
	own func() error) error {
	some, err := m.others.Replace(ctx, m.marking(about), payload)
	if err == nil {
		err, some = own(), true
	}
	switch {
	case err == nil:
		return nil
	case !some:
		return fmt.Errorf("%w: %w", errUnwritten, err)
	}
	m.s.Agg.Fail(-1, fmt.Errorf("its state was replaced in part, by a restore or a write that ended midway: %w", err))
	return err
}

// errUnwritten is the error of a change that no aggregator has made.
var errUnwritten = errors.New("nothing was replaced")

// Updates returns the number of optimizer steps of each tensor, by its number in the plan.
func (m *model) Updates(ctx context.Context) ([]uint32, error) {
	out, err := m.Snapshot.Updates(ctx)
	if err != nil {
		return nil, err
	}
	answers, err := m.ask(ctx, func(int) *api.StateQuestion { return &api.StateQuestion{Kind: api.StateQuestion_UPDATES} })
	if err != nil {
		return nil, err
	}
	return m.merge(out, answers, func(rack int) bool { return rack != m.others.Own() })
}

// merge adds the counts of updates in the answers of racks that were asked to counts, of which those of tensors without elements
// become 0. It returns an error if they differ.
func (m *model) merge(counts []uint32, answers [][]byte, asked func(rack int) bool) ([]uint32, error) {
	for rack, a := range answers {
		if !asked(rack) {
			continue
		}
		theirs := make([]uint32, len(counts))
		if rest, ok := readValues(theirs, a); !ok || len(rest) > 0 {
			return nil, m.misunderstood(rack)
		}
		for t, n := range theirs {
			switch {
			case n == aggregate.NoUpdates || n == counts[t]:
			case counts[t] == aggregate.NoUpdates:
				counts[t] = n
			default:
				return nil, fmt.Errorf("job %q: %w: tensor %q has had %d updates and, in rack %q, %d", m.s.Name, aggregate.ErrNotQuiet,
					m.s.Model.Plan.Tensor(t).Name, counts[t], m.others.Names()[rack], n)
			}
		}
	}
	for t := range counts {
		if counts[t] == aggregate.NoUpdates {
			counts[t] = 0
		}
	}
	return counts, nil
}

// Answer answers another rack's question about a job's state. payload returns so many bytes of the values to write.
func (st *Store) Answer(ctx context.Context, j *job.Job, from int, q *api.StateQuestion,
	payload func(bytes int) ([]byte, error)) ([]byte, error) {
	s := st.Of(j)
	if !s.Model.TryRLock() {
		return nil, s.busy(from, q)
	}
	defer s.Model.RUnlock()
	release, err := s.Hold()
	if err != nil {
		return nil, err
	}
	defer release()
	if err := s.ChargeCall(ctx, "an answer about the state", s.answerCost(q)); err != nil {
		// Asked again, it might wait for a call that waits for it.
		return nil, rpc.Refuse(connect.CodeFailedPrecondition, "%w", rpc.Reason(err))
	}
	out, err := s.answerState(ctx, q, payload)
	if err != nil {
		return nil, rpc.Refuse(connect.CodeFailedPrecondition, "state of job %q: %w", s.Name, err)
	}
	return out, nil
}

// These are the phases of the worker of this rack that has locked the job's state.
const (
	idle    = iota // it asks no other rack
	marking        // it asks the other racks for their marks
	marked         // they have answered
)

// busy refuses a question of another rack while a worker of this one has locked the job's state. The other asks again, unless its
// own worker has locked the state, too. Of two workers that would wait for each other, the one with all marks goes on, or else that
// of the first rack.
func (s *State) busy(from int, q *api.StateQuestion) error {
	code, own := connect.CodeUnavailable, s.others.Own()
	if q.Kind == api.StateQuestion_MARK {
		switch s.Model.Turn.Load() {
		case marking:
			if from > own {
				code = connect.CodeFailedPrecondition
			}
		case marked:
			code = connect.CodeFailedPrecondition
		}
	}
	return rpc.Refuse(code, "tensors of job %q are being registered, saved or restored in rack %q: try again", s.Name, s.others.Names()[own])
}

// unlockModel unlocks the job's model.
func (s *State) unlockModel() {
	s.Model.Turn.Store(idle)
	s.Model.Unlock()
}

// mark starts a snapshot and returns its marks.
func (s *State) mark(ctx context.Context) ([]byte, error) {
	snap, err := s.Agg.Snapshot(ctx, s.Model.Plan)
	if err != nil {
		return nil, err
	}
	marks := &api.StateMarks{}
	for _, m := range snap.Marks {
		marks.Finished, marks.Epochs = append(marks.Finished, m.Finished), append(marks.Epochs, uint32(m.Epoch))
	}
	return proto.Marshal(marks)
}

// answerState answers a question about the part of the job's state at this aggregator. payload returns so many bytes of the values
// to write.
func (s *State) answerState(ctx context.Context, q *api.StateQuestion, payload func(bytes int) ([]byte, error)) ([]byte, error) {
	switch {
	case q.Kind == api.StateQuestion_MARK:
		return s.mark(ctx)
	case q.Kind >= api.StateQuestion_RETAINED:
		return s.answerRetained(ctx, q)
	}
	var marks []aggregate.Mark
	for i, n := range q.Marks.GetFinished() {
		if i < len(q.Marks.Epochs) {
			marks = append(marks, aggregate.Mark{Finished: n, Epoch: uint8(q.Marks.Epochs[i])})
		}
	}
	snap, err := s.Agg.Reopen(s.Model.Plan, marks)
	if err != nil {
		return nil, err
	}
	switch q.Kind {
	case api.StateQuestion_READ:
		pieces, data, err := s.pieces(q, snap.Arrays())
		if err == nil {
			err = snap.Read(ctx, pieces)
		}
		return appendValues(nil, data), err
	case api.StateQuestion_WRITE:
		pieces, data, err := s.pieces(q, snap.Arrays())
		if err != nil {
			return nil, err
		}
		b, err := payload(4 * len(data))
		if err != nil {
			return nil, err
		}
		readValues(data, b)
		return nil, snap.Write(ctx, pieces)
	case api.StateQuestion_UPDATES:
		updates, err := snap.Updates(ctx)
		return appendValues(nil, updates), err
	case api.StateQuestion_SET_UPDATES:
		updates := make([]uint32, s.Model.Plan.NumTensors())
		b, err := payload(4 * len(updates))
		if err != nil {
			return nil, err
		}
		readValues(updates, b)
		return nil, s.setUpdates(ctx, snap, updates)
	}
	return nil, fmt.Errorf("unknown question %v: %w", q.Kind, rpc.ErrVersions)
}

// appendValues appends values as they travel, little-endian.
func appendValues[T float32 | uint32](b []byte, x []T) []byte {
	b, _ = binary.Append(b, binary.LittleEndian, x) // never fails
	return b
}

// readValues fills x from the beginning of b and returns the rest, and false if b is too short.
func readValues[T float32 | uint32](x []T, b []byte) ([]byte, bool) {
	n, err := binary.Decode(b, binary.LittleEndian, x)
	return b[n:], err == nil
}

// stateCopies limits the copies of the state that a call has in memory: the values, their bytes, and the answer, which JSON
// makes longer and writes more than once.
const stateCopies = 6

// stateCost returns the memory for a call that moves so many elements.
func stateCost(elems int) int64 { return 4 * stateCopies * int64(elems) }

// updatesCost returns the memory for the counts of updates of all racks.
func (s *State) updatesCost() int64 {
	return 4 * int64(1+len(s.others.Names())) * int64(s.Model.Plan.NumTensors())
}

// answerCost returns the memory for an answer to a question about the state.
func (s *State) answerCost(q *api.StateQuestion) int64 {
	elems := 0
	switch q.Kind {
	case api.StateQuestion_READ, api.StateQuestion_READ_RETAINED, api.StateQuestion_WRITE:
		for _, id := range q.Chunks {
			if int64(id) < int64(s.Model.Plan.NumChunks()) {
				elems += s.Model.Plan.Chunk(int(id)).Elems
			}
		}
		elems = min(elems, s.mostElems())
	case api.StateQuestion_UPDATES, api.StateQuestion_SET_UPDATES, api.StateQuestion_RETAINED_UPDATES:
		elems = s.Model.Plan.NumTensors()
	}
	return stateCost(elems)
}
