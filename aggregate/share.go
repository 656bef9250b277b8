package aggregate

import (
	"github.com/rackweave/rackweave/aggregate/optim"
	"github.com/rackweave/rackweave/cgo/kernel"
	"github.com/rackweave/rackweave/chunk"
)

// message is one message of a worker, as the lane received it.
type message struct {
	conn         *conn
	op           chunk.Op
	epoch        uint8
	slot         uint16
	index        int
	bytes        int
	payload      uint64 // where the payload lies in this process
	source       uint64 // by reference: where it lies in the worker; else 0
	sourceRKey   uint32
	laneTensor   int // of the chunk; -1: the message is not about a chunk
	tensorOffset uint64
}

func (m *message) hasTensor() bool { return m.laneTensor >= 0 }

// chunkState is what a lane keeps of a chunk between steps.
type chunkState struct {
	memory     uint64 // f32 parameters, then each state, then the accumulator, elems apart each; 0: the job keeps none
	elems      uint32
	laneTensor uint32
	global     uint32 // number in the plan
	fold       int32  // in progress, or noFold
	updates    uint32 // optimizer steps so far
	offset     uint64 // first element within its tensor, in bytes on the wire
	epoch      uint8  // of the last fold, modulo the immediate's cycle
	dirty      bool   // two-phase: the accumulator holds gradients since the last commit
}

const noFold = -1

// tensorState is a tensor's part in a lane.
type tensorState struct {
	tensor         int
	first, chunks  uint32
	wire           chunk.DType
	lrMult, wdMult float64
	globalFirst    int // its chunks' numbers in the plan
	globalEnd      int
	hyper          optim.Hyper
	hyperSum       uint32 // checksum of the record it came from; 0: the job's own
	scalars        optim.Scalars
	scalarsFor     uint32 // the update they were derived for; 0: none
}

// share is one job's part of one lane. Only the lane's goroutine touches it, but for what is marked.
type share struct {
	job     *Job
	lane    *Lane
	chunks  []chunkState
	tensors []tensorState
	lkeys   [][]uint32 // by NIC of the engine, by chunk: the key of the segment its parameters lie in
	conns   []*conn    // by rank; nil: not attached

	folds foldPool
	open  int // folds in progress

	// How long the share has not finished a chunk, see stall.go.
	finished, finishedAtStall uint64
	stallRounds, patience     int
	lookedAt                  int64 // ns
	turns                     uint32
	leader                    int   // rank: whose order stalled workers follow
	kept                      int32 // the fold that nobody is given back; noFold: none

	results resultPool
	// What waits for send-queue or result space, oldest first: complete folds, and messages that are no part of one.
	ready    []int32
	deferred []message

	commit commitState
	listed bool // on the lane's busy list
	ended  bool // failed or closed: messages are ignored

	published []WorkerCounters // guarded by lane.mu
}

// waiting reports whether something waits for send-queue or result space.
func (s *share) waiting() bool {
	return !s.ended && (len(s.ready) > 0 || len(s.deferred) > 0 || s.commit.phase != commitIdle)
}

// advance does what was waiting and now can be done.
func (s *share) advance() bool {
	worked := false
	n := 0
	for n < len(s.ready) && !s.ended && s.finish(s.ready[n]) {
		n++
	}
	if n > 0 {
		s.ready = append(s.ready[:0], s.ready[n:]...)
		worked = true
	}
	n = 0
	for n < len(s.deferred) && !s.ended && s.answerAlone(&s.deferred[n]) {
		n++
	}
	if n > 0 {
		s.deferred = append(s.deferred[:0], s.deferred[n:]...)
		worked = true
	}
	if s.commit.phase != commitIdle && !s.ended {
		worked = s.advanceCommit() || worked
	}
	return worked
}

// place fills in what chunk a message is about; false: the job failed.
func (s *share) place(m *message) bool {
	if m.index >= len(s.chunks) {
		m.conn.violate("sent chunk %d of lane %d, which has %d", m.index, s.lane.index, len(s.chunks))
		return false
	}
	c := &s.chunks[m.index]
	m.laneTensor, m.tensorOffset = int(c.laneTensor), c.offset
	m.conn.heard(m.index)
	return true
}

func (s *share) wireBytes(c *chunkState) int {
	return int(c.elems) * s.tensors[c.laneTensor].wire.Size()
}

// arrive takes a gradient, or a part of a broadcast, into its chunk's fold.
func (s *share) arrive(m *message) {
	if !s.place(m) {
		return
	}
	c := &s.chunks[m.index]
	expect := c.epoch
	if m.op != chunk.OpBroadcast {
		expect = (c.epoch + 1) & chunk.EpochMask
	}
	if m.epoch != expect && planted != plantAnyEpoch {
		m.conn.violate("sent chunk %d of lane %d for epoch %d, expected %d", m.index, s.lane.index, m.epoch, expect)
		return
	}
	if want := s.wireBytes(c); m.bytes != want && (m.op != chunk.OpBroadcast || m.conn.rank == rootRank) {
		m.conn.violate("sent %d bytes for chunk %d of lane %d, expected %d", m.bytes, m.index, s.lane.index, want)
		return
	}
	if s.job.mode == TwoPhase && m.op == chunk.OpPushPull {
		m.conn.violate("sent a pushpull to a two-phase job: push, commit, then pull")
		return
	}
	if s.commit.phase != commitIdle {
		m.conn.violate("sent a gradient while the step is being committed")
		return
	}
	if c.fold == noFold {
		c.fold = s.folds.take(uint32(m.index), s.lane.stamp)
		s.open++
		s.lane.local.FoldsOpen++
	}
	f := s.folds.at(c.fold)
	if f.init != (m.op == chunk.OpBroadcast) && f.count > 0 {
		m.conn.violate("sent %v of chunk %d of lane %d while others broadcast or push it", m.op, m.index, s.lane.index)
		return
	}
	f.init = m.op == chunk.OpBroadcast
	a := s.folds.arrival(c.fold, m.conn.rank)
	if a.present && planted == plantTwice {
		f.count--
		m.conn.folded--
	} else if a.present {
		m.conn.violate("sent chunk %d of lane %d for epoch %d twice", m.index, s.lane.index, m.epoch)
		return
	}
	*a = arrival{present: true, op: m.op, slot: m.slot, payload: m.payload, source: m.source, sourceRKey: m.sourceRKey}
	f.count++
	m.conn.folded++
	m.conn.counters.Chunks++
	m.conn.counters.LatenessNS += uint64(s.lane.stamp - f.since)
	if f.count < s.job.workers {
		return
	}
	m.conn.counters.LastArrivals++
	if first := s.folds.arrival(c.fold, 0); planted == plantArrivalOrder && !f.init {
		first.payload, a.payload = a.payload, first.payload
	}
	if len(s.ready) > 0 || !s.finish(c.fold) {
		s.lane.local.Deferred++
		s.ready = append(s.ready, c.fold)
		s.lane.list(s)
	}
}

// finish sums a complete fold, updates, and answers every worker. False: a queue is full, try later.
func (s *share) finish(fold int32) bool {
	l := s.lane
	f := s.folds.at(fold)
	c := &s.chunks[f.chunk]
	t := &s.tensors[c.laneTensor]
	for _, conn := range s.conns {
		if !conn.canAnswer() {
			return false
		}
	}
	var result int32 = noResult
	out := c.memory
	// The parameters themselves are the answer when they are f32: no worker can push the chunk again before it has it. A push
	// of a two-phase step has no answer.
	if (s.job.mode != TwoPhase || f.init) && (c.memory == 0 || t.wire != chunk.F32) {
		var ok bool
		if result, ok = s.results.take(); !ok {
			return false
		}
		out = s.results.addr(result)
	}
	timed := l.sample == 0
	if l.sample++; l.sample == SampleEvery {
		l.sample = 0
	}
	var t0, t1 int64
	if timed {
		t0 = l.now()
	}
	if !s.compute(f, fold, c, t, out) {
		return true // the job failed
	}
	if timed {
		t1 = l.now()
	}
	if !f.init {
		c.epoch = (c.epoch + 1) & chunk.EpochMask
	}
	bytes := s.wireBytes(c)
	for rank, conn := range s.conns {
		a := s.folds.arrival(fold, rank)
		conn.folded--
		m := message{
			conn: conn, op: a.op, epoch: c.epoch, index: int(f.chunk), slot: a.slot, source: a.source, sourceRKey: a.sourceRKey,
			laneTensor: int(c.laneTensor), tensorOffset: c.offset,
		}
		if a.op == chunk.OpPush {
			conn.answer(&m, 0, 0, noResult)
		} else {
			conn.answer(&m, out, bytes, result)
		}
	}
	if result != noResult {
		s.results.release(result)
	}
	if timed {
		l.local.FoldNS += uint64(t1 - t0)
		l.local.PostNS += uint64(l.now() - t1)
		l.local.Samples++
	}
	s.finished++
	l.local.Chunks++
	l.local.observe(l.stamp - f.since)
	s.closeFold(fold)
	return true
}

// closeFold ends a fold that is finished, or given back to all.
func (s *share) closeFold(fold int32) {
	s.chunks[s.folds.at(fold).chunk].fold = noFold
	s.folds.put(fold)
	s.open--
	s.lane.local.FoldsOpen--
	if s.kept == fold {
		s.kept = noFold
	}
}

// compute does the arithmetic of a complete fold; out is where the answer goes. False: the job failed.
func (s *share) compute(f *fold, index int32, c *chunkState, t *tensorState, out uint64) bool {
	src := s.lane.src[:len(s.conns)]
	if f.init {
		root := s.folds.arrival(index, rootRank).payload
		if c.memory != 0 {
			kernel.Convert(s.lane.isa, c.memory, kernel.F32, root, uint8(t.wire), uint64(c.elems), false)
		}
		if out != c.memory || c.memory == 0 {
			kernel.Convert(s.lane.isa, out, uint8(t.wire), root, uint8(t.wire), uint64(c.elems), false)
		}
		return true
	}
	for rank := range s.conns {
		src[rank] = s.folds.arrival(index, rank).payload
	}
	switch s.job.mode {
	case Aggregate:
		if s.job.scaled == nil {
			kernel.Sum(s.lane.isa, out, uint8(t.wire), src, uint8(t.wire), uint64(c.elems), false)
		} else {
			s.runUpdate(optim.Sum, s.job.scaled, c, src, uint8(t.wire), out, uint8(t.wire))
		}
	case TwoPhase:
		acc := s.accumulator(c)
		kernel.Sum(s.lane.isa, acc, kernel.F32, src, uint8(t.wire), uint64(c.elems), c.dirty)
		c.dirty = true
		s.job.norms[(s.commit.epoch+1)&1][c.global] = kernel.SumSq(s.lane.isa, acc, uint64(c.elems))
	case Eager:
		if !s.agree(t) {
			return false
		}
		c.updates++
		if t.scalarsFor != c.updates {
			h := t.hyper
			h.LR *= t.lrMult
			h.WD *= t.wdMult
			t.scalars = optim.Derive(s.job.rule, h, c.updates)
			t.scalarsFor = c.updates
		}
		if out == c.memory {
			out = 0 // the parameters are the answer
		}
		s.runUpdate(s.job.rule, &t.scalars, c, src, uint8(t.wire), out, uint8(t.wire))
	}
	return true
}

// runUpdate runs a rule over the sources; out takes its result, 0: not wanted.
func (s *share) runUpdate(r optim.Rule, k *optim.Scalars, c *chunkState, src []uint64, srcType uint8, out uint64, outType uint8) {
	u := &s.lane.update
	*u = kernel.Update{W: c.memory, N: uint64(c.elems), SrcType: srcType, OutType: outType, Rule: uint8(r), Scalar: *k}
	stride := s.job.stride(c.elems)
	for i := range s.job.states {
		u.State[i] = c.memory + uint64(i+1)*stride
	}
	outs := [...]uint64{out}
	if err := u.Run(s.lane.isa, src, outs[:min(out, 1)]); err != nil {
		panic(err) // the rule was checked when the job was made
	}
}

// agree checks that every worker sent the same hyper-parameters for the tensor.
func (s *share) agree(t *tensorState) bool {
	index := s.chunks[t.first].laneTensor
	first := s.conns[0].hyperSum[index]
	for _, c := range s.conns[1:] {
		if c.hyperSum[index] != first {
			c.violate("sent other hyper-parameters for tensor %q than worker 0", s.job.tensorName(t.tensor))
			return false
		}
	}
	return true
}

func (s *share) accumulator(c *chunkState) uint64 {
	return c.memory + uint64(1+s.job.states)*s.job.stride(c.elems)
}

// pull answers with the parameters as they are after the worker's last finished push.
func (s *share) pull(m *message) {
	if !s.place(m) {
		return
	}
	c := &s.chunks[m.index]
	if c.memory == 0 {
		m.conn.violate("pulled from an aggregate-only job, which keeps no parameters: use pushpull")
		return
	}
	if m.epoch != c.epoch {
		m.conn.violate("pulled chunk %d of lane %d for epoch %d, which is at %d", m.index, s.lane.index, m.epoch, c.epoch)
		return
	}
	s.answerOrDefer(m)
}

// answerOrDefer answers a message that is no part of a fold, now or when there is room.
func (s *share) answerOrDefer(m *message) {
	if len(s.deferred) > 0 || !s.answerAlone(m) {
		s.lane.local.Deferred++
		s.deferred = append(s.deferred, *m)
		s.lane.list(s)
	}
}

// answerAlone answers a pull with parameters, and a record with an acknowledgement. False: a queue is full, try later.
func (s *share) answerAlone(m *message) bool {
	if !m.conn.canAnswer() {
		return false
	}
	if m.op != chunk.OpPull {
		m.conn.answer(m, 0, 0, noResult)
		return true
	}
	c := &s.chunks[m.index]
	t := &s.tensors[c.laneTensor]
	if t.wire == chunk.F32 {
		m.conn.answer(m, c.memory, s.wireBytes(c), noResult)
		return true
	}
	result, ok := s.results.take()
	if !ok {
		return false
	}
	out := s.results.addr(result)
	kernel.Convert(s.lane.isa, out, uint8(t.wire), c.memory, kernel.F32, uint64(c.elems), false)
	m.conn.answer(m, out, s.wireBytes(c), result)
	s.results.release(result)
	return true
}
