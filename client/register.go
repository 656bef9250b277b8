package client

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"

	cworker "github.com/rackweave/rackweave/cgo/worker"
	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/client/membership"
	"github.com/rackweave/rackweave/service/api"
)

// Tensor is one parameter of the model.
type Tensor struct {
	Name  string
	Shape []uint64 // elements in each dimension; if empty, a scalar
	// Multiply the job's learning rate and weight decay. If nil, 1.
	LRMult, WDMult *float64
	WireType       chunk.DType // how elements travel; if 0, Config.WireType
	MemoryType     chunk.DType // how they lie in this worker's buffers; if 0, Config.MemoryType
	// Sparse declares that a gradient may have only some of the rows. A row is one index of the first dimension.
	Sparse bool
	// Standard makes the rule update rows of a sparse tensor that have no gradient as if it were 0. Otherwise such rows do not change.
	Standard bool
	// Frequencies, if not nil, holds for each of the Shape[0] rows of a sparse tensor how often a worker touches it: finite numbers of
	// at least 0, in a unit common to the job's tensors, and the same at every worker. Rows are placed by them so that lanes are
	// touched alike. If nil, rows are dealt evenly.
	Frequencies []float32
}

// touches returns the sum of the frequencies of each chunk's rows, or nil if none are given.
func (t *Tensor) touches(chunkBytes int) ([]float32, error) {
	if t.Frequencies == nil {
		return nil, nil
	}
	of := chunk.Tensor{DType: t.WireType, Width: t.width()}
	if of.Width == 0 || uint64(len(t.Frequencies)) != t.Shape[0] {
		return nil, fmt.Errorf("tensor %q of shape %v has %d frequencies of rows: give one for each row of a sparse tensor, or none",
			t.Name, t.Shape, len(t.Frequencies))
	}
	rows := max(int(of.PerChunk(chunkBytes))/int(of.Width), 1)
	sums := make([]float32, 0, len(t.Frequencies)/rows+1)
	for part := range slices.Chunk(t.Frequencies, rows) {
		sum := 0.0
		for i, f := range part {
			if !(f >= 0 && f <= math.MaxFloat32) {
				return nil, fmt.Errorf("tensor %q: row %d has the frequency %v: use finite numbers of at least 0", t.Name, len(sums)*rows+i, f)
			}
			sum += float64(f)
		}
		sums = append(sums, float32(sum))
	}
	return sums, nil
}

// width returns the number of elements in a row of a sparse tensor, or 0.
func (t *Tensor) width() uint32 {
	if !t.Sparse || len(t.Shape) == 0 || t.Shape[0] == 0 {
		return 0
	}
	return uint32(t.Elems() / t.Shape[0])
}

// Elems returns how many elements the tensor has.
func (t *Tensor) Elems() uint64 {
	n := uint64(1)
	for _, d := range t.Shape {
		n *= d
	}
	return n
}

// Register declares the model's next tensors and waits until all workers have declared the same, in the same order. Tensors are
// numbered from 0 in the order of registration. Tensors that differ between workers fail the job, and the error names them.
func (w *Worker) Register(ctx context.Context, tensors []Tensor) error {
	w.using.RLock()
	defer w.using.RUnlock()
	if err := w.Err(); err != nil {
		return fmt.Errorf("register: %w", err)
	}
	w.registering.Lock()
	defer w.registering.Unlock()
	tensors = slices.Clone(tensors)
	batch := make([]chunk.Tensor, len(tensors))
	descs := make([]cworker.Tensor, len(tensors))
	req := &api.RegisterRequest{Tensors: make([]*api.Tensor, len(tensors))}
	for i := range tensors {
		t := &tensors[i]
		t.Shape = slices.Clone(t.Shape)
		t.WireType, t.MemoryType = cmp.Or(t.WireType, w.cfg.WireType), cmp.Or(t.MemoryType, w.cfg.MemoryType)
		if t.MemoryType.Size() == 0 {
			return fmt.Errorf("register: tensor %q has %v in memory: use f32, bf16 or f16", t.Name, t.MemoryType)
		}
		batch[i] = chunk.Tensor{Name: t.Name, Elems: t.Elems(), DType: t.WireType, Width: t.width()}
		descs[i] = cworker.Tensor{
			Elems: t.Elems(), WireType: uint8(t.WireType), MemoryType: uint8(t.MemoryType), Width: t.width(),
		}
		touches, err := t.touches(w.plan.ChunkBytes())
		if err != nil {
			return fmt.Errorf("register: %w", err)
		}
		req.Tensors[i] = &api.Tensor{
			Name: t.Name, Shape: t.Shape, Dtype: t.WireType.String(), LrMult: t.LRMult, WdMult: t.WDMult, Sparse: t.Sparse,
			Standard: t.Standard, ChunkTouches: touches,
		}
	}
	call, cancel, ms := membership.Bound(ctx, w.cfg.Timeout)
	defer cancel()
	req.TimeoutMs = ms
	answer, err := w.member.Register(call, req)
	if err != nil {
		return err
	}
	if err := w.plan.Follow(batch, answer.ChunkLanes); err != nil {
		return fmt.Errorf("register: %w", err)
	}
	if hash := w.plan.Hash(); !bytes.Equal(hash[:], answer.PlanHash) {
		err := fmt.Errorf("register: this worker's plan (%x…) is not that of the aggregator at %s (%x…): they are of different versions",
			hash[:4], w.member.All[0].Server, answer.PlanHash[:min(4, len(answer.PlanHash))])
		w.member.GiveUp(err)
		return err
	}
	return w.take(tensors, descs, answer.ChunkLanes)
}

// Plan returns which lane has which of the registered tensors' chunks. Register adds to it.
func (w *Worker) Plan() *chunk.Plan { return w.plan }

// take hands tensors that the aggregator has accepted to the C worker.
func (w *Worker) take(tensors []Tensor, descs []cworker.Tensor, chunkLanes []uint32) error {
	if err := w.session.Call("register", func() int { return cworker.Add(w.session.C, descs, chunkLanes) }); err != nil {
		return w.dataError("", err)
	}
	if err := w.compress(len(w.registered()), len(tensors)); err != nil {
		return err
	}
	w.submitting.Lock()
	w.pins = append(w.pins, make([]pin, len(descs))...)
	w.submitting.Unlock()
	all := slices.Concat(w.registered(), tensors)
	w.tensors.Store(&all)
	if !w.info.LiveHyper {
		return nil
	}
	return w.sendHyper(len(all)-len(tensors), len(all), w.Hyper())
}

// compress gives n tensors from first on the codec of the job's gradients.
func (w *Worker) compress(first, n int) error {
	up := w.info.Gradients
	if up == nil {
		return nil
	}
	c := codecOf(up)
	for t := range n {
		err := w.session.Call("register", func() int { return cworker.Compress(w.session.C, uint32(first+t), c) })
		if err != nil {
			return w.dataError("", err)
		}
	}
	return nil
}

func codecOf(c *api.Codec) cworker.Codec {
	return cworker.Codec{ID: uint8(c.Id), Stochastic: c.Stochastic, Param: c.Param}
}
