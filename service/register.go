package service

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"slices"

	"connectrpc.com/connect"

	"github.com/rackweave/rackweave/aggregate"
	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/numa"
	"github.com/rackweave/rackweave/service/api"
)

// declared is a tensor as a worker declares it.
type declared struct {
	name           string
	shape          []uint64
	elems          uint64
	dtype          chunk.DType
	lrMult, wdMult float64
}

func parseTensors(in []*api.Tensor) ([]declared, error) {
	if len(in) == 0 {
		return nil, errors.New("no tensors to register")
	}
	out := make([]declared, len(in))
	for i, t := range in {
		d := declared{name: t.Name, shape: t.Shape, elems: 1, lrMult: 1, wdMult: 1}
		for _, n := range t.Shape {
			hi, lo := bits.Mul64(d.elems, n)
			if hi != 0 || lo > 1<<50 {
				return nil, fmt.Errorf("tensor %q of shape %v: too large", t.Name, t.Shape)
			}
			d.elems = lo
		}
		var err error
		if d.dtype, err = chunk.ParseDType(t.Dtype); err != nil {
			return nil, fmt.Errorf("tensor %q: %w", t.Name, err)
		}
		if t.LrMult != nil {
			d.lrMult = *t.LrMult
		}
		if t.WdMult != nil {
			d.wdMult = *t.WdMult
		}
		if !(d.lrMult >= 0 && d.wdMult >= 0) || math.IsInf(d.lrMult+d.wdMult, 0) {
			return nil, fmt.Errorf("tensor %q: multipliers %v of lr and %v of wd: use finite numbers of at least 0", t.Name, d.lrMult, d.wdMult)
		}
		out[i] = d
	}
	return out, nil
}

// mismatch names the first tensor that two workers declare differently.
func mismatch(a int, as []declared, b int, bs []declared) error {
	for i := range min(len(as), len(bs)) {
		x, y := &as[i], &bs[i]
		var field string
		var xv, yv any
		switch {
		case x.name != y.name:
			return fmt.Errorf("tensor %d is %q at worker %d and %q at worker %d: all workers must register the same tensors in the same order", i, x.name, a, y.name, b)
		case !slices.Equal(x.shape, y.shape):
			field, xv, yv = "shape", x.shape, y.shape
		case x.dtype != y.dtype:
			field, xv, yv = "dtype", x.dtype, y.dtype
		case x.lrMult != y.lrMult:
			field, xv, yv = "lr_mult", x.lrMult, y.lrMult
		case x.wdMult != y.wdMult:
			field, xv, yv = "wd_mult", x.wdMult, y.wdMult
		default:
			continue
		}
		return fmt.Errorf("tensor %q has %s %v at worker %d and %v at worker %d", x.name, field, xv, a, yv, b)
	}
	if len(as) < len(bs) {
		a, as, b, bs = b, bs, a, as
	}
	if len(as) > len(bs) {
		return fmt.Errorf("worker %d registers %d tensors, worker %d %d: worker %d lacks %q", a, len(as), b, len(bs), b, as[len(bs)].name)
	}
	return nil
}

// Register implements the schema's Register.
func (s *Service) Register(ctx context.Context, r *api.RegisterRequest) (*api.RegisterResponse, error) {
	m, err := s.active(ctx)
	if err != nil {
		return nil, err
	}
	j := m.job
	if !m.isAttached() {
		return nil, refuse(connect.CodeFailedPrecondition, "register with job %q: %v is not connected: call Connect first", j.name, m)
	}
	tensors, err := parseTensors(r.Tensors)
	if err != nil {
		return nil, refuse(connect.CodeInvalidArgument, "register with job %q: %w", j.name, err)
	}
	ctx, cancel := bounded(ctx, r.TimeoutMs)
	defer cancel()
	answer, err := j.gather(ctx, "register tensors", m.rank, tensors,
		func(first int, brought any) error {
			err := mismatch(first, brought.([]declared), m.rank, tensors)
			if err != nil {
				err = refuse(connect.CodeFailedPrecondition, "register with job %q: %w", j.name, err)
				j.agg.Fail(m.rank, reason(err))
			}
			return err
		},
		func() (any, error) {
			var answer *api.RegisterResponse
			err := j.takeShape(ctx, tensors)
			if err == nil {
				answer, err = j.add(tensors)
			}
			if err == nil {
				err = j.acrossRacks(ctx, "tensors", "the plan and multipliers", digest(answer.PlanHash, tensors))
			}
			if err != nil {
				j.agg.Fail(-1, reason(err))
			}
			return answer, err
		})
	if err != nil {
		return nil, err
	}
	return answer.(*api.RegisterResponse), nil
}

// digest is what the racks of a job compare of what was registered.
func digest(plan []byte, tensors []declared) string {
	h := sha256.New()
	for i := range tensors {
		t := &tensors[i]
		fmt.Fprintln(h, t.name, t.shape, t.lrMult, t.wdMult)
	}
	return fmt.Sprintf("%x and %x of %d tensors", plan[:4], h.Sum(nil)[:4], len(tensors))
}

// orSpread is the remedy for a model that one aggregator cannot hold, for a job that can be spread.
func (j *job) orSpread() string {
	if m := j.spec.mode; j.spec.racks != nil || j.spec.among != nil || m == aggregate.Stream || m == aggregate.TwoPhase {
		return ""
	}
	return ", or spread the job over several aggregators: name them all as its server, with commas (rackweave bench --spread)"
}

// add adds tensors to the plan and the engine, and returns the answer to the workers.
func (j *job) add(tensors []declared) (*api.RegisterResponse, error) {
	j.model.Lock()
	defer j.model.Unlock()
	if err := j.reshaped(); err != nil {
		return nil, err
	}
	release, err := j.hold()
	if err != nil {
		return nil, err
	}
	defer release()
	batch := make([]chunk.Tensor, len(tensors))
	specs := make([]aggregate.TensorSpec, len(tensors))
	elems := make([]uint64, len(tensors))
	model := j.modelBytes
	for i, t := range tensors {
		batch[i] = chunk.Tensor{Name: t.name, Elems: t.elems, DType: t.dtype}
		specs[i] = aggregate.TensorSpec{LRMult: t.lrMult, WDMult: t.wdMult}
		elems[i] = t.elems
		model += int64(t.elems) * 4
	}
	first, firstChunk := j.plan.NumTensors(), j.plan.NumChunks()
	switch q := j.policy.Quota; {
	case q.Tensors > 0 && first+len(tensors) > q.Tensors:
		return nil, refuse(connect.CodeResourceExhausted, "job %q registers %d tensors: its quota is %d", j.name, first+len(tensors),
			q.Tensors)
	case q.ModelBytes > 0 && model/int64(max(j.spec.parts, 1)) > q.ModelBytes:
		return nil, refuse(connect.CodeResourceExhausted, "job %q registers %d bytes of parameters: its quota is %d: raise it%s", j.name, model,
			q.ModelBytes, j.orSpread())
	}
	need := j.engine.amounts(j.engine.agg.TensorsNeed(j.config(), elems))
	if err := j.charge("tensors", need); err != nil {
		return nil, refuse(connect.CodeOf(err), "%w%s", reason(err), j.orSpread())
	}
	if err := j.plan.Add(batch); err != nil {
		j.account.Return(need)
		return nil, connect.NewError(connect.CodeInvalidArgument, err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), maxWait)
	defer cancel()
	if err := j.agg.AddTensors(ctx, j.plan, first, specs); err != nil {
		code := connect.CodeInternal
		if errors.Is(err, numa.ErrNoMemory) {
			code = connect.CodeResourceExhausted
		}
		return nil, connect.NewError(code, err)
	}
	j.mu.Lock()
	j.modelBytes, j.tensors = model, first+len(tensors)
	j.mu.Unlock()
	j.s.log.Info("tensors registered", "job", j.name, "tensors", len(tensors), "model_bytes", model, "chunks", j.plan.NumChunks())
	hash := j.plan.Hash()
	lanes := make([]uint32, j.plan.NumChunks()-firstChunk)
	for i := range lanes {
		lanes[i] = uint32(j.plan.Chunk(firstChunk + i).Lane)
	}
	return &api.RegisterResponse{PlanHash: hash[:], ChunkLanes: lanes}, nil
}
