package job

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
	"github.com/rackweave/rackweave/service/rpc"
)

// declared is a tensor as a worker declares it.
type declared struct {
	chunk.Tensor
	aggregate.TensorSpec
	shape []uint64
}

func parseTensors(in []*api.Tensor) ([]declared, error) {
	if len(in) == 0 {
		return nil, errors.New("no tensors to register")
	}
	out := make([]declared, len(in))
	for i, t := range in {
		d := declared{chunk.Tensor{Name: t.Name, Elems: 1}, aggregate.TensorSpec{LRMult: 1, WDMult: 1, Standard: t.Standard}, t.Shape}
		for _, n := range t.Shape {
			hi, lo := bits.Mul64(d.Elems, n)
			if hi != 0 || lo > 1<<50 {
				return nil, fmt.Errorf("tensor %q of shape %v: too large", t.Name, t.Shape)
			}
			d.Elems = lo
		}
		var err error
		if d.DType, err = chunk.ParseDType(t.Dtype); err != nil {
			return nil, fmt.Errorf("tensor %q: %w", t.Name, err)
		}
		if d.Width, err = width(t, d.Elems); err != nil {
			return nil, err
		}
		d.Touches = t.ChunkTouches
		if t.LrMult != nil {
			d.LRMult = *t.LrMult
		}
		if t.WdMult != nil {
			d.WDMult = *t.WdMult
		}
		if !(d.LRMult >= 0 && d.WDMult >= 0) || math.IsInf(d.LRMult+d.WDMult, 0) {
			return nil, fmt.Errorf("tensor %q: multipliers %v of lr and %v of wd: use finite numbers of at least 0", t.Name, d.LRMult, d.WDMult)
		}
		out[i] = d
	}
	return out, nil
}

// width returns the number of elements in a row of a tensor of so many, or 0 if it is dense.
func width(t *api.Tensor, elems uint64) (uint32, error) {
	switch {
	case !t.Sparse && t.Standard:
		return 0, fmt.Errorf("tensor %q is dense, and standard is about rows of sparse tensors: set sparse, too, or neither", t.Name)
	case !t.Sparse || elems == 0: // which the plan refuses
		return 0, nil
	case len(t.Shape) == 0:
		return 0, fmt.Errorf("tensor %q is sparse, and a scalar has no rows: declare it dense", t.Name)
	}
	return uint32(min(elems/t.Shape[0], math.MaxUint32)), nil // the plan refuses rows that are larger than chunks
}

// mismatch names the first tensor that two workers declare differently.
func mismatch(a int, as []declared, b int, bs []declared) error {
	for i := range min(len(as), len(bs)) {
		x, y := &as[i], &bs[i]
		var field string
		var xv, yv any
		switch {
		case x.Name != y.Name:
			return fmt.Errorf("tensor %d is %q at worker %d and %q at worker %d: all workers must register the same tensors in the same order", i, x.Name, a, y.Name, b)
		case !slices.Equal(x.shape, y.shape):
			field, xv, yv = "shape", x.shape, y.shape
		case x.DType != y.DType:
			field, xv, yv = "dtype", x.DType, y.DType
		case x.LRMult != y.LRMult:
			field, xv, yv = "lr_mult", x.LRMult, y.LRMult
		case x.WDMult != y.WDMult:
			field, xv, yv = "wd_mult", x.WDMult, y.WDMult
		case x.Width != y.Width: // of one shape
			field, xv, yv = "sparse", x.Width > 0, y.Width > 0
		case x.Standard != y.Standard:
			field, xv, yv = "standard", x.Standard, y.Standard
		case len(x.Touches) != len(y.Touches):
			field, xv, yv = "frequencies of rows for so many chunks:", len(x.Touches), len(y.Touches)
		case !slices.Equal(x.Touches, y.Touches):
			k := 0
			for x.Touches[k] == y.Touches[k] {
				k++
			}
			field, xv, yv = fmt.Sprintf("frequencies in chunk %d that add up to", k), x.Touches[k], y.Touches[k]
		default:
			continue
		}
		return fmt.Errorf("tensor %q has %s %v at worker %d and %v at worker %d", x.Name, field, xv, a, yv, b)
	}
	if len(as) < len(bs) {
		a, as, b, bs = b, bs, a, as
	}
	if len(as) > len(bs) {
		return fmt.Errorf("worker %d registers %d tensors, worker %d %d: worker %d lacks %q", a, len(as), b, len(bs), b, as[len(bs)].Name)
	}
	return nil
}

// Register registers tensors with all workers of the job.
func (m *Member) Register(ctx context.Context, r *api.RegisterRequest) (*api.RegisterResponse, error) {
	j := m.Job
	j.mu.Lock()
	attached := m.attached
	j.mu.Unlock()
	if !attached {
		return nil, rpc.Refuse(connect.CodeFailedPrecondition, "register with job %q: %v is not connected: call Connect first", j.Name, m)
	}
	tensors, err := parseTensors(r.Tensors)
	if err != nil {
		return nil, rpc.Refuse(connect.CodeInvalidArgument, "register with job %q: %w", j.Name, err)
	}
	ctx, cancel := rpc.Bounded(ctx, r.TimeoutMs)
	defer cancel()
	return j.gather(ctx, "register tensors", m.Rank, tensors, func() (answer *api.RegisterResponse, err error) {
		elems := uint64(0)
		for i := range tensors {
			elems += tensors[i].Elems
		}
		if err = j.Spec.Racks.Shape(ctx, elems); err == nil {
			answer, err = j.add(tensors)
		}
		if err == nil {
			err = j.Spec.Racks.Agree(ctx, "tensors", "the plan and declarations", digest(answer.PlanHash, tensors))
		}
		if err != nil {
			j.Agg.Fail(-1, rpc.Reason(err))
		}
		return answer, err
	})
}

// digest returns the text by which the racks of a job compare registered tensors.
func digest(plan []byte, tensors []declared) string {
	h := sha256.New()
	for i := range tensors {
		t := &tensors[i]
		fmt.Fprintln(h, t.Name, t.shape, t.LRMult, t.WDMult)
		if t.Standard { // the plan has what else is declared
			fmt.Fprintln(h, "standard")
		}
	}
	return fmt.Sprintf("%x and %x of %d tensors", plan[:4], h.Sum(nil)[:4], len(tensors))
}

// orSpread is the remedy for a model that one aggregator cannot hold, for a job that can be spread.
func orSpread(j *Job) string {
	_, alone := j.Spec.Racks.(OneRack)
	if m := j.Spec.Mode; !alone || m == aggregate.Stream || m == aggregate.TwoPhase {
		return ""
	}
	return ", or spread the job over several aggregators: name them all as its server, with commas (rackweave bench --spread)"
}

// add adds tensors to the plan and the engine, and returns the answer to the workers.
func (j *Job) add(tensors []declared) (*api.RegisterResponse, error) {
	j.Model.Lock()
	defer j.Model.Unlock()
	release, err := j.Hold()
	if err != nil {
		return nil, err
	}
	defer release()
	batch := make([]chunk.Tensor, len(tensors))
	specs := make([]aggregate.TensorSpec, len(tensors))
	model := j.Model.bytes
	config := j.config()
	for i, t := range tensors {
		if err := config.CheckTensor(t.Tensor, t.Standard); err != nil {
			return nil, connect.NewError(connect.CodeInvalidArgument, err)
		}
		batch[i], specs[i] = t.Tensor, t.TensorSpec
		model += int64(t.Elems) * 4
	}
	first, firstChunk := j.Model.Plan.NumTensors(), j.Model.Plan.NumChunks()
	need := j.Engine.Amounts(j.Engine.Agg.TensorsNeed(config, batch))
	if err := j.Charge("tensors", need); err != nil {
		return nil, rpc.Refuse(connect.CodeOf(err), "%w%s", rpc.Reason(err), orSpread(j))
	}
	if err := j.Model.Plan.Add(batch); err != nil {
		j.Account.Return(need)
		return nil, connect.NewError(connect.CodeInvalidArgument, err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), rpc.MaxWait)
	defer cancel()
	for i := range tensors {
		j.Model.Shapes = append(j.Model.Shapes, tensors[i].shape)
	}
	if err := j.Agg.AddTensors(ctx, j.Model.Plan, first, specs); err != nil {
		code := connect.CodeInternal
		if errors.Is(err, numa.ErrNoMemory) {
			code = connect.CodeResourceExhausted
		}
		return nil, connect.NewError(code, err)
	}
	j.mu.Lock()
	j.Model.bytes, j.Model.tensors = model, first+len(tensors)
	j.mu.Unlock()
	j.Table.Log.Info("tensors registered", "job", j.Name, "tensors", len(tensors), "model_bytes", model, "chunks",
		j.Model.Plan.NumChunks())
	hash := j.Model.Plan.Hash()
	lanes := make([]uint32, j.Model.Plan.NumChunks()-firstChunk)
	for i := range lanes {
		lanes[i] = uint32(j.Model.Plan.Chunk(firstChunk + i).Lane)
	}
	return &api.RegisterResponse{PlanHash: hash[:], ChunkLanes: lanes}, nil
}
