package simrack

import (
	"github.com/rackweave/rackweave/aggregate"
	"github.com/rackweave/rackweave/aggregate/optim"
	"github.com/rackweave/rackweave/aggregate/racktest"
	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/codec"
)

// oracle is a job in plain Go. It computes a phase's answers on the first request.
type oracle struct {
	job   *JobSchedule
	key   uint64 // of the job's gradients
	elems []uint64
	ref   *racktest.Reference
	hyper []optim.Hyper // by tensor
	done  int           // number of phases computed
	data  [][][]float32 // by phase, then tensor: the results that the workers must get
	norms []float32     // by phase: the norm in the answer to a commit

	plan   *chunk.Plan                   // after the job has started
	widths []uint32                      // by tensor: of a sparse one's rows, or 0
	unions []map[int]map[int64][]float32 // by phase, then sparse tensor: the rows that the workers must get
}

func newOracle(j *JobSchedule, key uint64) *oracle {
	o := &oracle{job: j, key: key, ref: racktest.NewReference(j.Mode, j.Rule, j.Hyper, j.Wire, nil)}
	if j.Codecs != (codec.Pair{}) {
		o.ref.Compress(j.Codecs, len(j.Workers), chunkBytes)
	}
	for _, b := range j.Batches {
		o.elems = append(o.elems, b...)
	}
	for _, n := range o.elems {
		o.ref.Add(make([]float32, n))
		o.hyper = append(o.hyper, o.ref.Hyper)
	}
	o.addTables()
	o.data = make([][][]float32, len(j.Phases))
	o.norms = make([]float32, len(j.Phases))
	return o
}

// result returns the result that a worker must get for a tensor in a phase, or nil for none.
func (o *oracle) result(phase, tensor int) []float32 {
	o.reach(phase)
	return o.data[phase][tensor]
}

// norm returns the norm in the answer to a phase of commits.
func (o *oracle) norm(phase int) float32 {
	o.reach(phase)
	return o.norms[phase]
}

func (o *oracle) reach(phase int) {
	for ; o.done <= phase; o.done++ {
		o.data[o.done] = make([][]float32, len(o.elems))
		if p := &o.job.Phases[o.done]; p.kind == phaseCommit {
			o.norms[o.done] = o.ref.Commit(p.commit, chunkBytes)
		} else {
			for _, t := range p.tensors {
				o.data[o.done][t] = o.run(o.done, p, t)
			}
		}
	}
}

// run computes one tensor's part of a phase.
func (o *oracle) run(n int, p *phase, t int) []float32 {
	if p.hyper != nil {
		o.hyper[t] = o.job.Rule.Rounded(*p.hyper)
	}
	o.ref.Hyper = o.hyper[t]
	if o.widths[t] > 0 {
		return o.runRows(n, p, t)
	}
	switch p.kind {
	case phaseBroadcast:
		o.ref.Broadcast(t, racktest.OnWire(o.job.Wire, o.gradient(n, 0, t)))
		return clone(racktest.OnWire(o.job.Type, o.ref.W[t]))
	case phasePushPull:
		return racktest.OnWire(o.job.Type, o.ref.StepTensor(t, o.gradients(n, t)))
	case phasePush:
		if o.job.Mode == aggregate.TwoPhase {
			o.ref.Push(t, o.gradients(n, t))
		} else {
			o.ref.PushTensor(t, o.gradients(n, t))
		}
		return nil
	}
	return clone(racktest.OnWire(o.job.Type, racktest.OnWire(o.job.Wire, o.ref.W[t])))
}

func clone(x []float32) []float32 { return append([]float32(nil), x...) }

func (o *oracle) gradients(phase, tensor int) [][]float32 {
	g := make([][]float32, len(o.job.Workers))
	for w := range g {
		g[w] = o.gradient(phase, w, tensor)
	}
	return g
}

// gradient returns a worker's gradient in a phase, as in the worker's memory. Its numbers have both signs and many magnitudes, so
// that the order of a sum shows.
func (o *oracle) gradient(phase, worker, tensor int) []float32 {
	g := make([]float32, o.elems[tensor])
	z := o.key ^ uint64(phase)<<40 ^ uint64(worker)<<20 ^ uint64(tensor)
	for i := range g {
		// This is SplitMix64 (Steele, Lea, Flood, OOPSLA 2014).
		z += 0x9e3779b97f4a7c15
		x := (z ^ z>>30) * 0xbf58476d1ce4e5b9
		x = (x ^ x>>27) * 0x94d049bb133111eb
		x ^= x >> 31
		g[i] = float32(int32(x)) / (1 << 31) / float32(uint64(1)<<(x>>60))
	}
	return racktest.OnWire(o.job.Type, g)
}

// chunks returns the number of a tensor's chunks.
func (o *oracle) chunks(t int) uint64 {
	first, end := o.plan.TensorChunks(t)
	return uint64(end - first)
}
