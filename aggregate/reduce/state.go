package reduce

import (
	"errors"
	"fmt"

	"github.com/rackweave/rackweave/chunk"
)

var (
	// ErrProtocol is wrapped by a worker's violation of the protocol.
	ErrProtocol = errors.New("protocol violation")
	// ErrWorkerLost is wrapped by the loss of a worker that the job cannot do without.
	ErrWorkerLost = errors.New("worker lost")
)

// Mode is the aggregator's treatment of gradients.
type Mode uint8

const (
	// Eager updates the parameters when a chunk's last gradient arrives. A pushpull is answered with the new parameters.
	Eager Mode = iota
	// Aggregate only sums. A pushpull is answered with the sum.
	Aggregate
	// TwoPhase accumulates pushes until every worker commits the step, with its learning rate, scale and clipping. Then the parameters
	// are updated and can be pulled.
	TwoPhase
	// Stream updates the parameters with each gradient when it arrives, or with a set of several workers' whole gradients. A worker
	// ends its step with a commit of its own, which is answered when it may begin the next.
	Stream
)

var modeNames = [...]string{"eager", "aggregate", "two-phase", "stream"}

func (m Mode) String() string { return modeNames[m] }

// ParseMode returns the mode of a name.
func ParseMode(s string) (Mode, error) {
	for i, name := range modeNames {
		if name == s {
			return Mode(i), nil
		}
	}
	return 0, fmt.Errorf("unknown mode %q: use eager, aggregate, two-phase or stream", s)
}

// Config describes a machine.
type Config struct {
	Lane    int // for error messages
	Workers int
	Window  int // slots of each worker
	Sends   int // entries of each worker's send queue
	Results int // result buffers
	Mode    Mode
	Norms   bool // the update rule needs whole tensors' norms, so a commit takes a second pass
	Above   bool // complete chunks go to a reducer above the rack
	Maps    bool // blocks of rows are written where workers fetch them, so that a new one waits for a fetch of each
	// Inner reports, with Above, whether the next step of a chunk stays in the rack. If nil, every step leaves it.
	Inner      func(index uint32) bool
	Standing   Standing // stream: of every worker's first step
	RootWorker int      // the root of broadcasts, whose values they take, or negative if it is in another rack
}

// Tensor is the part of a tensor in the lane.
type Tensor struct {
	Name string
	// Direct reports that answers with data lie in the chunk's parameters. Other answers need a result buffer.
	Direct bool
	// Rows is the number of rows of a sparse tensor, or 0 for a dense one. The chunks of a sparse tensor follow each other from First,
	// and its rows travel in streams. A merge covers at most MergeMost rows. If 0, messages alone bound it.
	Rows, First, MergeMost uint32
}

// State is the state of a machine.
type State uint8

const (
	Running State = iota
	Failing       // a worker broke the protocol in this lane, and messages are ignored
	Ended         // the job failed or was closed, and the workers were notified
)

type tensorState struct {
	Tensor
	stream   int32  // number of a sparse tensor's streams
	hyperSum uint32 // of the hyper-parameters in use, or 0 for the job's own
}

// These constants are numbers of counted ticks without a finished chunk. A rotation begins after rotateAfter. Each rotation that
// workers do not answer, because they seldom poll their queues, doubles the number, up to rotateAtMost.
const (
	rotateAfter  = 8
	rotateAtMost = 256
)

type stall struct {
	doneBefore uint64 // folds finished by the last tick
	idle       int    // counted ticks since a fold was finished
	patience   int    // number of idle ticks before a rotation
	rotations  uint32
	leader     int   // the worker whose order stalled workers follow
	kept       int32 // the fold that is sent no NACK, or none
}

// Phase is the progress of the commit of a two-phase step in one lane. The job's lanes pass the two barriers together.
type Phase uint8

const (
	Collecting Phase = iota // waits for every worker's commit
	AwaitNorms              // waits until every lane has all commits, and with them the norms of the whole model
	Applying                // updates this lane's chunks, or computes the step and its norms for a rule that needs norms
	AwaitTrust              // waits until every lane has its norms
	Scaling                 // scales the step by each tensor's trust ratio
	Refreshing              // waits until all racks have the parameters
	Answering               // waits for room to answer the workers
)

func (p Phase) String() string {
	return [...]string{"collecting", "await-norms", "applying", "await-trust", "scaling", "refreshing", "answering"}[p]
}

type commit struct {
	phase Phase
	epoch uint8
	from  []arrival          // by worker: its commit; in mode stream once the gradients before it are applied, added or dropped
	first chunk.TensorRecord // the record that all workers must send
	next  uint32             // index of the next chunk
}

func (c *commit) arrived() (n int) {
	for i := range c.from {
		if c.from[i].present {
			n++
		}
	}
	return n
}

type addend struct {
	worker int32
	set    uint64
	ended  bool // all its chunks were added
}

type sets struct {
	addends []addend // in the order in which they are added: the current set's, then those of later sets
	current uint64   // number of the set that is collected
}

func (s *sets) size() (n int) {
	for n < len(s.addends) && s.addends[n].set == s.current {
		n++
	}
	return n
}

// Chunk is a chunk of the lane, by its lane index.
type Chunk struct {
	Tensor uint32 // number in the order of Add, over all calls
	Bytes  uint32 // on the wire
}

type chunkState struct {
	Chunk
	fold  int32  // in progress, or none
	epoch uint8  // the last epoch that the chunk has finished
	added uint16 // stream: number of the set's addends that were added to its accumulator, or never will be
}

// takes reports whether a gradient has the chunk's length. A gradient in a form is shorter.
func (c *chunkState) takes(msg *Message) bool {
	return msg.Bytes == c.Bytes && msg.Where.Form == 0 || msg.Bytes < c.Bytes && msg.Where.Form != 0
}

// Machine is one job's chunks in one lane. One goroutine uses it. Callers only read the exported fields.
type Machine struct {
	State    State
	Actions  []Action // of the last event, in order
	Finished uint64   // folds finished
	Deferred uint64   // number of folds and answers that had to wait for room

	cfg      Config
	workers  []worker
	chunks   []chunkState
	tensors  []tensorState
	folds    folds
	ready    Queue[int32] // complete and returned folds, oldest first
	replying Queue[int32] // workers with replies, in turns
	adds     Queue[int32] // the workers whose replies are additions to sets, in the order of the sums
	commit   commit
	sets     sets
	rows     rowStreams
	stall    stall
	lost     int // the last worker that was lost while the job went on. If negative, all go on
	results  int // free result buffers
	now      int64
}

// New makes a machine without chunks or workers.
func New(cfg Config) *Machine {
	m := &Machine{
		cfg: cfg, workers: make([]worker, cfg.Workers), folds: newFolds(cfg.Workers), results: cfg.Results,
		stall: stall{kept: none, patience: rotateAfter}, lost: none,
	}
	m.commit.from = make([]arrival, cfg.Workers)
	m.sets.addends = make([]addend, 0, 2*cfg.Workers)
	m.replying.grow(cfg.Workers)
	for rank := range m.workers {
		m.workers[rank].replies.grow(cfg.Window) // every waiting answer holds a slot
	}
	if cfg.Mode == Stream {
		m.adds.grow(cfg.Workers * cfg.Window)
	}
	return m
}

// Add appends tensors and their chunks. It allocates all memory, so that events allocate nothing.
func (m *Machine) Add(tensors []Tensor, chunks []Chunk) {
	for _, t := range tensors {
		number := uint32(len(m.tensors))
		m.tensors = append(m.tensors, tensorState{Tensor: t})
		if t.Rows > 0 {
			m.tensors[number].stream = m.rows.add(number, m.cfg.Workers, m.cfg.Window, m.cfg.Results)
			for w := range m.workers {
				m.workers[w].kept += keptPerStream
			}
		}
	}
	for _, c := range chunks {
		m.chunks = append(m.chunks, chunkState{Chunk: c, fold: none})
	}
	for w := range m.workers {
		m.fit(&m.workers[w])
	}
	m.folds.grow(min(len(m.chunks), m.cfg.Workers*m.cfg.Window)) // as many as can be in progress
	m.ready.grow(len(m.folds.all))
	// A tick can send every worker a NACK for each held message, and requests.
	if most := m.cfg.Workers*(m.cfg.Window+SendMargin) + 2; cap(m.Actions) < most {
		m.Actions = make([]Action, 0, most)
	}
}

// fit makes room in a worker's state for the present chunks and tensors.
func (m *Machine) fit(w *worker) {
	if w.state == Absent {
		return
	}
	w.requested.grow(len(m.chunks))
	if m.cfg.Mode == Stream {
		w.pushed.grow(len(m.chunks))
		w.epochs = append(w.epochs, make([]uint8, len(m.chunks)-len(w.epochs))...)
	}
	w.hyperSum = append(w.hyperSum, make([]uint32, len(m.tensors)-len(w.hyperSum))...)
}

// Attach adds a worker with so many staging buffers.
func (m *Machine) Attach(rank, staging int) {
	w := &m.workers[rank]
	if w.state != Absent {
		panic(fmt.Sprintf("reduce: worker %d attached twice", rank))
	}
	*w = worker{state: Attached, standing: m.cfg.Standing, staging: staging, sends: m.cfg.Sends,
		kept: keptPerStream * len(m.rows.all)}
	w.slots.grow(m.cfg.Window)
	for slot := range m.cfg.Window {
		w.slots.Put(uint16(slot))
	}
	m.fit(w)
}

// Leave records that a worker has left or is lost. Nothing is sent to it afterwards.
func (m *Machine) Leave(rank int) { m.workers[rank].state = Gone }

// Stats returns a worker's counters.
func (m *Machine) Stats(rank int) WorkerStats { return m.workers[rank].stats }

// Held returns the number of a worker's held slots.
func (m *Machine) Held(rank int) int { return m.workers[rank].held() }

// Sends returns the number of free entries of a worker's send queue.
func (m *Machine) Sends(rank int) int { return m.workers[rank].sends }

// Open returns the number of folds in progress, and of sparse tensors with streams in progress.
func (m *Machine) Open() int {
	if m.State != Running {
		return 0
	}
	return m.folds.open() + m.rows.open
}

// HyperSum returns the checksum of the hyper-parameters in use for a chunk, or 0 if its workers have sent none, and the
// job's are in use.
func (m *Machine) HyperSum(index uint32) uint32 { return m.tensors[m.chunks[index].Tensor].hyperSum }

// CommitEpoch returns the epoch of the last commit that every worker has sent.
func (m *Machine) CommitEpoch() uint8 { return m.commit.epoch }

// CommitPhase returns the phase of the commit under way.
func (m *Machine) CommitPhase() Phase { return m.commit.phase }

// CommitRecord returns the record that every worker has sent with the commit under way.
func (m *Machine) CommitRecord() *chunk.TensorRecord { return &m.commit.first }

// Quiet reports whether no gradient and no commit is under way.
func (m *Machine) Quiet() bool {
	return m.folds.open() == 0 && m.rows.open == 0 && m.commit.phase == Collecting && m.commit.arrived() == 0
}

// Missing adds to counts, by worker, the open folds without its gradient and the streams that wait for it, and to commits a
// two-phase step without its commit. It returns the time at which the oldest of the folds and streams began, in ns, or 0 if none is
// open.
func (m *Machine) Missing(counts, commits []int) (since int64) {
	for rank := range m.commit.from {
		if !m.commit.from[rank].present && m.cfg.Mode == TwoPhase && m.commit.arrived() > 0 {
			commits[rank]++
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
	for i := range m.rows.all {
		s := &m.rows.all[i]
		if s.begun == 0 {
			continue
		}
		if since == 0 || s.since < since {
			since = s.since
		}
		for rank := range counts {
			if s.missing(rank) || m.cfg.Maps && !s.of[rank].awaits() {
				counts[rank]++
			}
		}
	}
	return since
}

// Waiting reports whether work waits for room or for other lanes. [Machine.Advance] and [Machine.AdvanceCommit] continue it.
func (m *Machine) Waiting() bool {
	return m.State == Running && (m.ready.Len() > 0 || m.replying.Len() > 0 || m.rows.pending.Len() > 0 ||
		m.commit.phase != Collecting)
}

func (m *Machine) violate(rank int, format string, args ...any) {
	m.fail(rank, fmt.Errorf("%w: worker %d %w", ErrProtocol, rank, fmt.Errorf(format, args...)))
}

func (m *Machine) fail(rank int, err error) {
	if m.State != Running {
		return
	}
	m.State = Failing
	m.emit(Action{Kind: Fail, Worker: int32(rank), Err: err})
}

func (m *Machine) begin(now int64) { m.now, m.Actions = now, m.Actions[:0] }

// beginFor starts an event for a worker, and reports whether the job goes on with it.
func (m *Machine) beginFor(now int64, rank int) bool {
	m.begin(now)
	return m.State == Running && m.workers[rank].state == Attached
}

func (m *Machine) emit(a Action) { m.Actions = append(m.Actions, a) }

func (m *Machine) broadcasting() bool {
	for i := m.folds.first; i != none; i = m.folds.at(i).next {
		if m.folds.at(i).broadcast {
			return true
		}
	}
	return false
}

func epochAfter(e uint8) uint8 { return (e + 1) & chunk.EpochMask }
