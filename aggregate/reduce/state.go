package reduce

import (
	"errors"
	"fmt"

	"github.com/rackweave/rackweave/chunk"
)

// ErrProtocol is what a worker's violation of the protocol wraps.
var ErrProtocol = errors.New("protocol violation")

// Config is what a machine is made of.
type Config struct {
	Lane     int // for the texts of errors
	Workers  int
	Window   int // slots of each worker
	Sends    int // entries of each worker's send queue
	Results  int // result buffers
	Mode     Mode
	Norms    bool     // the update rule needs whole tensors' norms: a commit takes a second pass
	Above    bool     // complete chunks go to a reducer above the rack
	Inner    Inner    // with Above; nil: no step of a chunk stays in the rack
	Gate     Gate     // nil: Lockstep
	Standing Standing // stream: of every worker's first step
	Root     int      // the worker whose values a broadcast takes; negative: it is in another rack
}

// Tensor is a tensor's part in the lane.
type Tensor struct {
	Name string
	// Direct: answers with data lie in the chunk's parameters. Else they need a result buffer.
	Direct bool
}

// State is the state of a machine.
type State uint8

// The states of a machine.
const (
	Running State = iota
	Failing       // a worker broke the protocol here: what arrives is ignored
	Ended         // the job failed or was closed, and the workers were told
)

type tensorState struct {
	Tensor
	hyperSum uint32 // of the hyper-parameters in use; 0: the job's own
}

// alone is an answer that is no part of a fold, and waits for room.
type alone struct {
	worker int32
	kind   Kind
	epoch  uint8
	index  uint32
	held   Held
}

// How many counted ticks without a finished chunk pass before a rotation. While workers do not answer the last rotation,
// because they seldom look at their queues, it takes twice as many the next time, up to rotateAtMost.
const (
	rotateAfter  = 8
	rotateAtMost = 256
)

type stall struct {
	doneBefore uint64 // folds finished by the last tick
	idle       int    // counted ticks since one was
	patience   int    // how many make a rotation
	rotations  uint32
	leader     int   // whose order stalled workers follow
	kept       int32 // the fold that is sent no NACK; none: no fold
}

// Machine is one job's chunks in one lane. One goroutine uses it.
type Machine struct {
	cfg     Config
	state   State
	workers []worker
	chunks  []chunkState
	tensors []tensorState
	guests  guests
	folds   folds
	ready   queue[int32] // complete and returned folds, oldest first
	alone   queue[alone]
	commit  commit
	sets    sets
	stall   stall
	results int // free result buffers
	now     int64
	done    uint64 // folds finished
	waited  uint64 // folds and answers that had to wait for room

	actions []Action
}

// New makes a machine without chunks or workers.
func New(cfg Config) *Machine {
	if cfg.Gate == nil {
		cfg.Gate = Lockstep
	}
	m := &Machine{
		cfg: cfg, workers: make([]worker, cfg.Workers), folds: newFolds(cfg.Workers), results: cfg.Results,
		stall: stall{kept: none, patience: rotateAfter},
	}
	m.commit.held = make([]Held, cfg.Workers)
	m.commit.has = make([]bool, cfg.Workers)
	m.sets.addends = make([]addend, 0, 2*cfg.Workers)
	m.alone.grow(cfg.Workers * cfg.Window) // everything that waits holds a slot
	return m
}

// Add appends tensors and their chunks. Everything is allocated here: events allocate nothing.
func (m *Machine) Add(tensors []Tensor, chunks []Chunk) {
	for _, t := range tensors {
		m.guests.homes = append(m.guests.homes, uint32(len(m.tensors)))
		m.tensors = append(m.tensors, tensorState{Tensor: t})
	}
	for _, c := range chunks {
		m.chunks = append(m.chunks, chunkState{Chunk: c, fold: none})
	}
	for w := range m.workers {
		m.fit(&m.workers[w])
	}
	m.fitFolds()
	// A tick can send every worker a NACK for what it holds, and requests.
	if most := m.cfg.Workers*(m.cfg.Window+SendMargin) + 2; cap(m.actions) < most {
		m.actions = make([]Action, 0, most)
	}
}

// fitFolds makes room for as many folds as can be in progress.
func (m *Machine) fitFolds() {
	held := m.cfg.Workers * m.cfg.Window
	m.folds.grow(min(len(m.chunks)+len(m.guests.all), held))
	m.ready.grow(len(m.folds.all))
}

// fit gives a worker room for the chunks and tensors there are.
func (m *Machine) fit(w *worker) {
	if w.state == Absent {
		return
	}
	w.requested.grow(2 * max(len(m.chunks), len(m.guests.all)))
	if m.cfg.Mode == Stream {
		w.pushed.grow(len(m.chunks))
		w.epochs = append(w.epochs, make([]uint8, len(m.chunks)-len(w.epochs))...)
	}
	w.hyperSum = append(w.hyperSum, make([]uint32, len(m.tensors)-len(w.hyperSum))...)
}

// Attach lets a worker take part. It has this many staging buffers.
func (m *Machine) Attach(rank, staging int) {
	w := &m.workers[rank]
	if w.state != Absent {
		panic(fmt.Sprintf("reduce: worker %d attached twice", rank))
	}
	*w = worker{state: Attached, standing: m.cfg.Standing, slots: newSlots(m.cfg.Window), staging: staging, sends: m.cfg.Sends}
	m.fit(w)
}

// Leave takes note that a worker has left or is lost: nothing is sent to it any more.
func (m *Machine) Leave(rank int) { m.workers[rank].state = Gone }

// Worker returns the state of a worker.
func (m *Machine) Worker(rank int) WorkerState { return m.workers[rank].state }

// Stats returns what a worker did.
func (m *Machine) Stats(rank int) WorkerStats { return m.workers[rank].stats }

// State returns the machine's state.
func (m *Machine) State() State { return m.state }

// Held returns how many slots of a worker are held.
func (m *Machine) Held(rank int) int { return m.workers[rank].slots.held }

// Deferred returns how many folds and answers have had to wait for room.
func (m *Machine) Deferred() uint64 { return m.waited }

// Sends returns how many entries of a worker's send queue are free.
func (m *Machine) Sends(rank int) int { return m.workers[rank].sends }

// Open returns how many folds are in progress.
func (m *Machine) Open() int {
	if m.state != Running {
		return 0
	}
	return m.folds.open()
}

// Finished returns how many folds were finished.
func (m *Machine) Finished() uint64 { return m.done }

// HyperSum returns the checksum of the hyper-parameters in use for a chunk; 0: the job's own.
func (m *Machine) HyperSum(index uint32) uint32 { return m.tensors[m.chunk(index).Tensor].hyperSum }

// CommitEpoch returns the epoch of the last commit that every worker has sent.
func (m *Machine) CommitEpoch() uint8 { return m.commit.epoch }

// CommitPhase returns how far the commit under way is.
func (m *Machine) CommitPhase() Phase { return m.commit.phase }

// CommitRecord returns what every worker has sent with the commit under way.
func (m *Machine) CommitRecord() *chunk.TensorRecord { return &m.commit.first }

// Quiet reports whether no gradient and no commit is under way.
func (m *Machine) Quiet() bool {
	return m.folds.open() == 0 && m.commit.phase == Collecting && m.commit.arrived() == 0
}

// Missing adds to counts, by worker, the open folds that miss its gradient, and a two-phase step that misses its commit. It returns
// when the oldest of the folds began, in ns; 0: there is none.
func (m *Machine) Missing(counts []int) (since int64) {
	for rank, has := range m.commit.has {
		if !has && m.cfg.Mode == TwoPhase && m.commit.arrived() > 0 {
			counts[rank]++
		}
	}
	for i := m.folds.first; i != none; i = m.folds.at(i).next {
		if since == 0 {
			since = m.folds.at(i).since
		}
		for rank := range counts {
			if !m.folds.has(i, rank) && m.folds.at(i).state != Waiting {
				counts[rank]++
			}
		}
	}
	return since
}

// Sources are the messages of an action on a whole chunk, or of [AnswerCommit], by worker.
func (m *Machine) Sources(a *Action, rank int) *Held {
	if a.Kind == AnswerCommit {
		return &m.commit.held[rank]
	}
	return &m.folds.row(a.fold)[rank].Held
}

// NextSlot returns the slot that a worker's next message lies in.
func (m *Machine) NextSlot(rank int) uint16 { return m.workers[rank].slots.next() }

// Actions returns what the last event asks for, in order.
func (m *Machine) Actions() []Action { return m.actions }

// Waiting reports whether something waits for room or for other lanes: [Machine.Advance] and [Machine.AdvanceCommit] go on.
func (m *Machine) Waiting() bool {
	return m.state == Running && (m.ready.len() > 0 || m.alone.len() > 0 || m.commit.phase != Collecting)
}

// violate fails the job because of what a worker did.
func (m *Machine) violate(rank int, format string, args ...any) {
	if m.state != Running {
		return
	}
	m.state = Failing
	m.emit(Action{Kind: Fail, Worker: int32(rank),
		Err: fmt.Errorf("%w: worker %d %w", ErrProtocol, rank, fmt.Errorf(format, args...))})
}

func (m *Machine) emit(a Action) { m.actions = append(m.actions, a) }

// canAnswerAll reports whether one more answer to every worker fits, with a result buffer if it needs one.
func (m *Machine) canAnswerAll(result bool) bool {
	if result && m.results == 0 {
		return false
	}
	for w := range m.workers {
		if w := &m.workers[w]; w.state != Gone && !w.canAnswer() {
			return false
		}
	}
	return true
}

// chunk returns a chunk by its index; nil: the lane never had it.
func (m *Machine) chunk(index uint32) *chunkState {
	if int(index) < len(m.chunks) {
		return &m.chunks[index]
	}
	return m.guests.chunk(index)
}

// bit is a chunk's place in sets of chunks: the plan's and guests take turns, as each can become more.
func (m *Machine) bit(index uint32) int {
	if int(index) < len(m.chunks) {
		return int(index) * 2
	}
	return m.guests.at[index]*2 + 1
}

// place finds the message's chunk, and takes note that its worker has sent it. nil: the lane does not have it.
func (m *Machine) place(rank int, msg *Message) *chunkState {
	c := m.chunk(msg.Index)
	if c == nil {
		m.violate(rank, "sent chunk %d of lane %d, which has %d", msg.Index, m.cfg.Lane, len(m.chunks))
		return nil
	}
	if c.fold == moved {
		m.violate(rank, "sent chunk %d of lane %d, which has moved to another", msg.Index, m.cfg.Lane)
		return nil
	}
	m.workers[rank].requested.remove(m.bit(msg.Index))
	return c
}

// broadcasting reports whether a broadcast is in progress.
func (m *Machine) broadcasting() bool {
	for i := m.folds.first; i != none; i = m.folds.at(i).next {
		if m.folds.at(i).broadcast {
			return true
		}
	}
	return false
}

// committing reports whether two-phase gradients are being committed, so that no other may come.
func (m *Machine) committing() bool { return m.commit.phase != Collecting }

// epochAfter is the epoch that follows e.
func epochAfter(e uint8) uint8 { return (e + 1) & chunk.EpochMask }
