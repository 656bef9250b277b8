package client

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
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
		batch[i] = chunk.Tensor{Name: t.Name, Elems: t.Elems(), DType: t.WireType}
		descs[i] = cworker.Tensor{Elems: t.Elems(), WireType: uint8(t.WireType), MemoryType: uint8(t.MemoryType)}
		req.Tensors[i] = &api.Tensor{Name: t.Name, Shape: t.Shape, Dtype: t.WireType.String(), LrMult: t.LRMult, WdMult: t.WDMult}
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
