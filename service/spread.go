package service

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
)

// modelState is a job's parameters and optimizer state, wherever they are: a job over several racks keeps the state of each chunk
// at the rack that owns it, or has a state in each rack, and one in parts keeps all of a chunk.
type modelState struct {
	*aggregate.Snapshot
	j      *job
	others elsewhere         // nil: everything is here
	marks  []*api.StateMarks // by aggregator; nil: steps may be under way
}

// elsewhere is a job's other aggregators, as they are asked about its state: those of other racks, or of the job's other parts.
type elsewhere interface {
	// own is this one's place among them.
	own() int
	names() []string
	// replicated reports whether several of them may keep the same.
	replicated() bool
	// ask puts questions to all others at once, by their places; nil asks one nothing. So are the answers.
	ask(ctx context.Context, about func(i int) *api.StateQuestion) ([][]byte, error)
	// replace has those that are asked replace what the questions name by payloads, of which there is one for all where they are
	// replicated. It reports whether some may have done so.
	replace(ctx context.Context, about func(i int) *api.StateQuestion, payload func(i int) []byte) (some bool, err error)
}

// snapshot starts a snapshot of a job in which nothing is under way, for who has locked its model.
func (j *job) snapshot(ctx context.Context, others elsewhere) (*modelState, error) {
	own, err := j.agg.Snapshot(ctx, j.plan)
	if err != nil {
		return nil, err
	}
	m := &modelState{Snapshot: own, j: j, others: others}
	j.turn.Store(marking)
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
	j.turn.Store(marked)
	return m, nil
}

// peek starts a snapshot that is only read, for a worker that has nothing under way.
func (j *job) peek(others elsewhere) (*modelState, error) {
	own, err := j.agg.Peek(j.plan)
	if err != nil {
		return nil, err
	}
	return &modelState{Snapshot: own, j: j, others: others}, nil
}

// ask is [elsewhere]'s, with the marks. It returns nothing if everything is here.
func (m *modelState) ask(ctx context.Context, about func(i int) *api.StateQuestion) ([][]byte, error) {
	if m.others == nil {
		return nil, nil
	}
	return m.others.ask(ctx, m.marking(about))
}

// marking adds the marks to questions.
func (m *modelState) marking(about func(i int) *api.StateQuestion) func(i int) *api.StateQuestion {
	return func(i int) *api.StateQuestion {
		q := about(i)
		if q != nil && m.marks != nil {
			q.Marks = m.marks[i]
		}
		return q
	}
}

func (m *modelState) misunderstood(i int) error {
	return fmt.Errorf("%s says of the state of job %q what cannot be read: %w", m.others.names()[i], m.j.name, errProtocolOfRacks)
}

// otherRacks is the aggregators of a job's other racks.
type otherRacks struct {
	*cluster
	j *job
}

func (o otherRacks) own() int { return o.cluster.own }

func (o otherRacks) names() (names []string) {
	for _, name := range o.Names() {
		names = append(names, fmt.Sprintf("rack %q", name))
	}
	return names
}

func (o otherRacks) replicated() bool { return true }

func (o otherRacks) ask(ctx context.Context, about func(rack int) *api.StateQuestion) ([][]byte, error) {
	u := o.run(o.j)
	if u == nil {
		return nil, o.j.failureError()
	}
	return o.askAll(ctx, o.j, u, func(rack int) *api.AskRequest {
		if q := about(rack); q != nil {
			return &api.AskRequest{State: q}
		}
		return nil
	})
}

// replace lets the other racks ask back for the payload, as a question must be small.
func (o otherRacks) replace(ctx context.Context, about func(int) *api.StateQuestion, payload func(int) []byte) (some bool,
	err error) {
	u := o.run(o.j)
	if u == nil {
		return false, o.j.failureError()
	}
	stage := "state " + newSession()
	questions := make([]*api.StateQuestion, len(o.Racks))
	var asked []string
	var given []byte
	for rack, name := range o.Names() {
		if rack == o.own() {
			continue
		}
		if questions[rack] = about(rack); questions[rack] != nil {
			if questions[rack].Stage = stage; asked == nil {
				given = payload(rack)
			}
			asked = append(asked, name)
		}
	}
	if asked == nil {
		return false, nil
	}
	o.board.Post(o.j.name, u.id, stage, given, asked)
	_, err = o.ask(ctx, func(rack int) *api.StateQuestion { return questions[rack] })
	return o.board.Withdraw(o.j.name, u.id, stage), err
}

// about is a question about pieces; nil: it is about none.
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

// bySource returns the pieces that each aggregator is the source of, by its place.
func (m *modelState) bySource(pieces []aggregate.Piece) [][]aggregate.Piece {
	of := make([][]aggregate.Piece, len(m.others.names()))
	for _, p := range pieces {
		source := m.Source(p)
		of[source] = append(of[source], p)
	}
	return of
}

// byKeeper returns what each aggregator is given to replace pieces: those of its own, or, where several keep the same, all if it
// keeps any.
func (m *modelState) byKeeper(pieces []aggregate.Piece) [][]aggregate.Piece {
	if !m.others.replicated() {
		return m.bySource(pieces)
	}
	of := make([][]aggregate.Piece, len(m.others.names()))
	for i := range of {
		if slices.ContainsFunc(pieces, func(p aggregate.Piece) bool { return m.Keeps(i, p) }) {
			of[i] = pieces
		}
	}
	return of
}

// Read copies pieces out of the job.
func (m *modelState) Read(ctx context.Context, pieces []aggregate.Piece) error {
	if err := m.Snapshot.Read(ctx, pieces); err != nil || m.others == nil {
		return err
	}
	of := m.bySource(pieces)
	answers, err := m.ask(ctx, func(i int) *api.StateQuestion { return about(api.StateQuestion_READ, of[i]) })
	if err != nil {
		return err
	}
	for i, a := range answers {
		if i == m.others.own() {
			continue
		}
		for _, p := range of[i] {
			if len(a) < 4*len(p.Data) {
				return m.misunderstood(i)
			}
			readFloats(p.Data, a)
			a = a[4*len(p.Data):]
		}
	}
	return nil
}

// Write copies pieces into the job.
func (m *modelState) Write(ctx context.Context, pieces []aggregate.Piece) error {
	own := func() error { return m.Snapshot.Write(ctx, pieces) }
	if m.others == nil {
		return own()
	}
	of := m.byKeeper(pieces)
	return m.replace(ctx, func(i int) *api.StateQuestion { return about(api.StateQuestion_WRITE, of[i]) },
		func(i int) []byte {
			n := 0
			for _, p := range of[i] {
				n += 4 * len(p.Data)
			}
			b := make([]byte, 0, n)
			for _, p := range of[i] {
				b = appendFloats(b, p.Data)
			}
			return b
		}, own)
}

// SetUpdates sets how many optimizer steps each tensor has had.
func (m *modelState) SetUpdates(ctx context.Context, updates []uint32) error {
	own := func() error { return m.j.setUpdates(ctx, m.Snapshot, updates) }
	if m.others == nil {
		return own()
	}
	return m.replace(ctx, func(int) *api.StateQuestion { return &api.StateQuestion{Kind: api.StateQuestion_SET_UPDATES} },
		func(int) (b []byte) {
			for _, n := range updates {
				b = binary.LittleEndian.AppendUint32(b, n)
			}
			return b
		}, own)
}

// setUpdates ends the replacing of what this aggregator has of the state.
func (j *job) setUpdates(ctx context.Context, snap *aggregate.Snapshot, updates []uint32) error {
	err := snap.SetUpdates(ctx, updates)
	if err == nil && len(updates) > 0 {
		step := slices.Max(updates)
		j.restored.Store(&step)
	}
	return err
}

// replace has all aggregators replace a part of the state, this one by own. If some have and some have not, the job ends.
func (m *modelState) replace(ctx context.Context, about func(int) *api.StateQuestion, payload func(int) []byte,
	own func() error) error {
	some, err := m.others.replace(ctx, m.marking(about), payload)
	if err == nil {
		err, some = own(), true
	}
	switch {
	case err == nil:
		return nil
	case !some:
		return fmt.Errorf("%w: %w", errUnwritten, err)
	}
	m.j.agg.Fail(-1, fmt.Errorf("its state was replaced at some aggregators only: %w", err))
	return err
}

// errUnwritten says that no aggregator has replaced anything.
var errUnwritten = errors.New("nothing was replaced")

// Updates returns how many optimizer steps each tensor has had, by its number in the plan.
func (m *modelState) Updates(ctx context.Context) ([]uint32, error) {
	out, err := m.Snapshot.Updates(ctx)
	if err != nil {
		return nil, err
	}
	answers, err := m.ask(ctx, func(int) *api.StateQuestion { return &api.StateQuestion{Kind: api.StateQuestion_UPDATES} })
	if err != nil {
		return nil, err
	}
	for i, a := range answers {
		if i == m.others.own() {
			continue
		}
		if len(a) != 4*len(out) {
			return nil, m.misunderstood(i)
		}
		for t := range out {
			switch n := binary.LittleEndian.Uint32(a[4*t:]); {
			case n == aggregate.NoUpdates || n == out[t]:
			case out[t] == aggregate.NoUpdates:
				out[t] = n
			default:
				return nil, fmt.Errorf("job %q: %w: tensor %q has had %d updates here and %d at %s", m.j.name, aggregate.ErrNotQuiet,
					m.j.plan.Tensor(t).Name, out[t], n, m.others.names()[i])
			}
		}
	}
	for t := range out {
		if out[t] == aggregate.NoUpdates {
			out[t] = 0 // it has no elements
		}
	}
	return out, nil
}

// answerState answers another rack's question about a job's state.
func (k *cluster) answerState(ctx context.Context, r *api.AskRequest) ([]byte, error) {
	j := k.named(r.Job, r.Run)
	if j == nil {
		return nil, k.endedHere(r.Job)
	}
	if !j.model.TryRLock() {
		return nil, j.busy(r)
	}
	defer j.model.RUnlock()
	release, err := j.hold()
	if err != nil {
		return nil, err
	}
	defer release()
	if err := j.chargeCall(ctx, "an answer about the state", j.answerCost(r.State)); err != nil {
		return nil, refuse(connect.CodeFailedPrecondition, "%w", reason(err)) // asked again it might wait for who waits for it
	}
	payload, err := j.answerState(ctx, r.State, func(bytes int) ([]byte, error) { return j.askBack(ctx, r, bytes) })
	if err != nil {
		return nil, refuse(connect.CodeFailedPrecondition, "state of job %q: %w", j.name, err)
	}
	return payload, nil
}

// How far this rack's worker has got that has the job's state to itself.
const (
	idle    = iota // or is at this rack only
	marking        // it asks the other racks
	marked         // they have answered
)

// busy tells another rack that a worker of this one has the job's state to itself. The other asks again, or, where its own worker
// wants the state too, may have to give up: of two who would wait for each other, who has all marks goes on, else the first rack's.
func (j *job) busy(r *api.AskRequest) error {
	code, k := connect.CodeUnavailable, j.spec.racks
	if r.State.Kind == api.StateQuestion_MARK {
		switch j.turn.Load() {
		case marking:
			if slices.Index(k.Names(), r.From) > k.own {
				code = connect.CodeFailedPrecondition
			}
		case marked:
			code = connect.CodeFailedPrecondition
		}
	}
	return refuse(code, "tensors of job %q are being registered, saved or restored in rack %q: try again", j.name, k.Own)
}

// unlockModel ends what locked the job's model.
func (j *job) unlockModel() {
	j.turn.Store(idle)
	j.model.Unlock()
}

// named returns the job of a run that is under way.
func (k *cluster) named(name, id string) *job {
	k.mu.Lock()
	defer k.mu.Unlock()
	for j, u := range k.runs {
		if j.name == name && u.id == id && j.state() == "running" {
			return j
		}
	}
	return nil
}

// mark starts a snapshot and returns its marks.
func (j *job) mark(ctx context.Context) ([]byte, error) {
	snap, err := j.agg.Snapshot(ctx, j.plan)
	if err != nil {
		return nil, err
	}
	marks := &api.StateMarks{}
	for _, m := range snap.Marks() {
		marks.Finished, marks.Epochs = append(marks.Finished, m.Finished), append(marks.Epochs, uint32(m.Epoch))
	}
	return proto.Marshal(marks)
}

// answerState answers a question about what this aggregator has of the job's state. payload gets so many bytes that are to be
// written.
func (j *job) answerState(ctx context.Context, q *api.StateQuestion, payload func(bytes int) ([]byte, error)) ([]byte, error) {
	switch {
	case q.Kind == api.StateQuestion_MARK:
		return j.mark(ctx)
	case q.Kind >= api.StateQuestion_KEPT:
		return j.answerKept(ctx, q)
	}
	var marks []aggregate.Mark
	for i, n := range q.Marks.GetFinished() {
		if i < len(q.Marks.Epochs) {
			marks = append(marks, aggregate.Mark{Finished: n, Epoch: uint8(q.Marks.Epochs[i])})
		}
	}
	snap, err := j.agg.Reopen(j.plan, marks)
	if err != nil {
		return nil, err
	}
	switch q.Kind {
	case api.StateQuestion_READ:
		pieces, data, err := j.pieces(q, snap.Arrays())
		if err == nil {
			err = snap.Read(ctx, pieces)
		}
		return appendFloats(make([]byte, 0, 4*len(data)), data), err
	case api.StateQuestion_WRITE:
		pieces, data, err := j.pieces(q, snap.Arrays())
		if err != nil {
			return nil, err
		}
		b, err := payload(4 * len(data))
		if err != nil {
			return nil, err
		}
		readFloats(data, b)
		return nil, snap.Write(ctx, pieces)
	case api.StateQuestion_UPDATES:
		updates, err := snap.Updates(ctx)
		b := make([]byte, 0, 4*len(updates))
		for _, n := range updates {
			b = binary.LittleEndian.AppendUint32(b, n)
		}
		return b, err
	case api.StateQuestion_SET_UPDATES:
		updates := make([]uint32, j.plan.NumTensors())
		b, err := payload(4 * len(updates))
		if err != nil {
			return nil, err
		}
		for t := range updates {
			updates[t] = binary.LittleEndian.Uint32(b[4*t:])
		}
		return nil, j.setUpdates(ctx, snap, updates)
	}
	return nil, fmt.Errorf("unknown question %v: %w", q.Kind, errProtocolOfRacks)
}

// mostElems is how many elements of the state pass at once.
func (j *job) mostElems() int { return max(batchElems, j.plan.ChunkBytes()/2) }

// pieces are those that a question names, with room for their values.
func (j *job) pieces(q *api.StateQuestion, arrays int) (pieces []aggregate.Piece, data []float32, err error) {
	if len(q.Chunks) != len(q.Arrays) || len(q.Chunks) > batchPieces {
		return nil, nil, fmt.Errorf("%d chunks and %d arrays: %w", len(q.Chunks), len(q.Arrays), errProtocolOfRacks)
	}
	n := 0
	for i, id := range q.Chunks {
		if int64(id) >= int64(j.plan.NumChunks()) || int64(q.Arrays[i]) >= int64(arrays) {
			return nil, nil, fmt.Errorf("array %d of chunk %d, there are %d of %d: %w", q.Arrays[i], id, arrays, j.plan.NumChunks(),
				errProtocolOfRacks)
		}
		n += j.plan.Chunk(int(id)).Elems
	}
	if most := j.mostElems(); n > most {
		return nil, nil, fmt.Errorf("%d elements: at most %d are asked for at once: %w", n, most, errProtocolOfRacks)
	}
	data = make([]float32, n)
	rest := data
	for i, id := range q.Chunks {
		elems := j.plan.Chunk(int(id)).Elems
		pieces = append(pieces, aggregate.Piece{Chunk: int(id), Array: int(q.Arrays[i]), Data: rest[:elems]})
		rest = rest[elems:]
	}
	return pieces, data, nil
}

// askBack gets what a question's rack has to say at its stage: so many bytes. The same question asks for it by the same nonce.
func (j *job) askBack(ctx context.Context, r *api.AskRequest, bytes int) ([]byte, error) {
	k := j.spec.racks
	u := k.run(j)
	if u == nil {
		return nil, j.failureError()
	}
	from := slices.Index(k.Names(), r.From)
	b, err := k.ask(ctx, u, from, &api.AskRequest{Job: j.name, Run: u.ids[from], Stage: r.State.Stage, Nonce: r.Nonce + " back"})
	if err == nil && len(b) != bytes {
		err = fmt.Errorf("rack %q gives %d bytes for %d: %w", r.From, len(b), bytes, errProtocolOfRacks)
	}
	return b, err
}
