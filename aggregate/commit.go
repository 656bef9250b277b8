package aggregate

import (
	"math"

	"github.com/rackweave/rackweave/aggregate/optim"
	"github.com/rackweave/rackweave/cgo/kernel"
	"github.com/rackweave/rackweave/chunk"
)

// The phases of a two-phase step's commit in one lane. All lanes of the job pass each barrier together.
type commitPhase int

const (
	commitIdle     commitPhase = iota
	commitNorm                 // waiting until every lane has the commit of every worker: then all partial norms are there
	commitUpdate               // updating this lane's chunks (LAMB: only the direction and its norms)
	commitTrust                // LAMB: waiting until every lane has its norms
	commitScale                // LAMB: scaling the direction by each tensor's trust ratio
	commitAnswer               // answering the workers
	commitPerRound = 32        // chunks per round, so that other jobs' chunks are not kept waiting
)

type commitState struct {
	phase    commitPhase
	epoch    uint8
	messages []message // by rank
	arrived  int
	record   chunk.TensorRecord
	target   int64 // of job.barrier
	next     int   // chunk to go on with
	norm     float64
	scale    float32
	skip     bool
}

// commitArrived takes one worker's commit. The step is committed when all have sent the same.
func (s *share) commitArrived(m *message) {
	m.laneTensor = -1
	cs := &s.commit
	var r chunk.TensorRecord
	if s.job.mode != TwoPhase {
		m.conn.violate("sent a commit to a job in %v mode", s.job.mode)
		return
	}
	if _, ok := s.readRecord(m, &r); !ok {
		return
	}
	if expect := (cs.epoch + 1) & chunk.EpochMask; m.epoch != expect || cs.messages[m.conn.rank].conn != nil {
		m.conn.violate("sent commit %d, expected %d, once", m.epoch, expect)
		return
	}
	if cs.arrived > 0 && r != cs.record {
		m.conn.violate("sent another commit than the workers before it: every worker must commit with the same values")
		return
	}
	cs.record = r
	cs.messages[m.conn.rank] = *m
	if cs.arrived++; cs.arrived < s.job.workers {
		return
	}
	if s.open > 0 {
		m.conn.violate("and all others committed while %d chunks of lane %d miss gradients of some", s.open, s.lane.index)
		return
	}
	cs.epoch = m.epoch
	s.enter(commitNorm)
	s.lane.list(s)
}

// enter moves to a phase; phases that wait for the other lanes announce this lane first.
func (s *share) enter(p commitPhase) {
	cs := &s.commit
	cs.phase, cs.next = p, 0
	if p != commitNorm && p != commitTrust {
		return
	}
	lanes := int64(len(s.job.shares))
	passed := s.job.barrier.Add(1)
	cs.target = (passed + lanes - 1) / lanes * lanes
	if passed == cs.target {
		s.job.notifyLanes(s.lane)
	}
}

// advanceCommit does one round's part of the commit and reports whether it did anything.
func (s *share) advanceCommit() bool {
	cs := &s.commit
	switch cs.phase {
	case commitNorm:
		if s.job.barrier.Load() < cs.target && planted != plantNoBarrier {
			return false
		}
		s.decide()
		s.enter(commitUpdate)
	case commitUpdate:
		for n := 0; n < commitPerRound && cs.next < len(s.chunks); n, cs.next = n+1, cs.next+1 {
			s.applyChunk(cs.next)
		}
		if cs.next == len(s.chunks) {
			if s.job.rule.NeedsNorms() && !cs.skip {
				s.enter(commitTrust)
			} else {
				s.enter(commitAnswer)
			}
		}
	case commitTrust:
		if s.job.barrier.Load() < cs.target {
			return false
		}
		s.enter(commitScale)
	case commitScale:
		for n := 0; n < commitPerRound && cs.next < len(s.chunks); n, cs.next = n+1, cs.next+1 {
			s.scaleChunk(cs.next)
		}
		if cs.next == len(s.chunks) {
			s.enter(commitAnswer)
		}
	case commitAnswer:
		return s.answerCommit()
	}
	return true
}

// decide works out the step's gradient scale from the global norm, the same in every lane: it adds the chunks' partial norms
// in the plan's order, which does not depend on lanes. Clipping is torch.nn.utils.clip_grad_norm_'s.
func (s *share) decide() {
	cs := &s.commit
	total := 0.0
	for _, x := range s.job.norms[cs.epoch&1] {
		total += x
	}
	scale := cs.record.Scale
	if scale == 0 {
		scale = 1
	}
	cs.norm = math.Sqrt(total) * math.Abs(float64(scale))
	cs.scale = scale
	if clip := float64(cs.record.Clip); clip > 0 {
		if coef := clip / (cs.norm + 1e-6); coef < 1 {
			cs.scale = float32(float64(scale) * coef)
		}
	}
	cs.skip = cs.record.Flags&chunk.RecordSkip != 0
}

// hyperFor is the step's hyper-parameters for a tensor: the job's, with what the commit carries.
func (s *share) hyperFor(t *tensorState) optim.Hyper {
	h := s.job.hyper
	h.LR = float64(s.commit.record.LR) * t.lrMult
	h.WD = float64(s.commit.record.WD) * t.wdMult
	h.Scale = float64(s.commit.scale)
	return h
}

// applyChunk updates one chunk with its accumulated gradient, which is dropped then, by LAMB after its second pass.
func (s *share) applyChunk(i int) {
	c := &s.chunks[i]
	s.job.norms[(s.commit.epoch+1)&1][c.global] = 0 // the next step's, which no lane reads yet
	if !c.dirty {
		return
	}
	if s.commit.skip || !s.job.rule.NeedsNorms() {
		c.dirty = false
	}
	if s.commit.skip {
		return
	}
	t := &s.tensors[c.laneTensor]
	c.updates++
	if t.scalarsFor != c.updates {
		t.scalars = optim.Derive(s.job.rule, s.hyperFor(t), c.updates)
		t.scalarsFor = c.updates
	}
	acc := s.accumulator(c)
	src := s.lane.src[:1]
	src[0] = acc
	if !s.job.rule.NeedsNorms() {
		s.runUpdate(s.job.rule, &t.scalars, c, src, kernel.F32, 0, kernel.F32)
		return
	}
	s.runUpdate(s.job.rule, &t.scalars, c, src, kernel.F32, acc, kernel.F32)
	s.job.paramNorms[c.global] = kernel.SumSq(s.lane.isa, c.memory, uint64(c.elems))
	s.job.stepNorms[c.global] = kernel.SumSq(s.lane.isa, acc, uint64(c.elems))
}

// scaleChunk is LAMB's second pass: the step scaled by the tensor's trust ratio, whose norms are added in the plan's order.
func (s *share) scaleChunk(i int) {
	c := &s.chunks[i]
	if !c.dirty {
		return
	}
	c.dirty = false
	t := &s.tensors[c.laneTensor]
	var w, step float64
	for g := t.globalFirst; g < t.globalEnd; g++ {
		w += s.job.paramNorms[g]
		step += s.job.stepNorms[g]
	}
	scalars := optim.DeriveLAMBApply(s.hyperFor(t), c.updates, w, step)
	src := s.lane.src[:1]
	src[0] = s.accumulator(c)
	s.runUpdate(optim.LAMBApply, &scalars, c, src, kernel.F32, 0, kernel.F32)
}

// answerCommit tells every worker the norm and the scale, in a record of the commit's own form.
func (s *share) answerCommit() bool {
	cs := &s.commit
	for _, c := range s.conns {
		if !c.canAnswer() {
			return false
		}
	}
	result, ok := s.results.take()
	if !ok {
		return false
	}
	answer := cs.record
	answer.Scale, answer.Extra = cs.scale, float32(cs.norm)
	s.results.write(result, &answer)
	for rank := range cs.messages {
		m := &cs.messages[rank]
		m.conn.answer(m, s.results.addr(result), chunk.RecordBytes, result)
		*m = message{}
	}
	s.results.release(result)
	cs.arrived = 0
	cs.phase = commitIdle
	return true
}
