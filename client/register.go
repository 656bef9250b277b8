package client

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"slices"

	cworker "github.com/rackweave/rackweave/cgo/worker"
	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/service/api"
)

// Tensor is one parameter of the model.
type Tensor struct {
	Name  string
	Shape []uint64 // elements in each dimension; empty: a scalar
	// Multiply the job's learning rate and weight decay; nil: 1.
	LRMult, WDMult *float64
	WireType       chunk.DType // how elements travel; 0: Config.WireType
	MemoryType     chunk.DType // how they lie in this worker's buffers; 0: Config.MemoryType
}

// Elems returns how many elements the tensor has.
func (t *Tensor) Elems() uint64 {
	n := uint64(1)
	for _, d := range t.Shape {
		n *= d
	}
	return n
}

// tensorTable is what operations need to know of the registered tensors. It is replaced, never changed.
type tensorTable struct {
	names  map[string]int
	bytes  []uint64 // in this worker's memory
	labels []string
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
	batch := make([]chunk.Tensor, len(tensors))
	descs := make([]cworker.TensorDesc, len(tensors))
	req := &api.RegisterRequest{Tensors: make([]*api.Tensor, len(tensors))}
	for i := range tensors {
		t := &tensors[i]
		wire, mem := cmp.Or(t.WireType, w.cfg.WireType), cmp.Or(t.MemoryType, w.cfg.MemoryType)
		if mem.Size() == 0 {
			return fmt.Errorf("register: tensor %q has %v in memory: use f32, bf16 or f16", t.Name, mem)
		}
		batch[i] = chunk.Tensor{Name: t.Name, Elems: t.Elems(), DType: wire}
		descs[i] = cworker.TensorDesc{Elems: t.Elems(), WireType: uint8(wire), MemoryType: uint8(mem)}
		req.Tensors[i] = &api.Tensor{Name: t.Name, Shape: t.Shape, Dtype: wire.String(), LrMult: t.LRMult, WdMult: t.WDMult}
	}
	call, cancel, ms := callTimeout(ctx, w.cfg.Timeout)
	defer cancel()
	req.TimeoutMs = ms
	answers := make([]*api.RegisterResponse, len(w.aggregators))
	err := w.everywhere(func(i int, a *aggregator) (err error) {
		answers[i], err = a.rpc.Register(call, req)
		return err
	})
	if err != nil {
		return w.callError("register", err)
	}
	first := w.plan.NumTensors()
	if err := w.plan.Follow(batch, answers[0].ChunkLanes); err != nil {
		return fmt.Errorf("register: %w", err)
	}
	hash := w.plan.Hash()
	for i, a := range answers {
		if bytes.Equal(hash[:], a.PlanHash) {
			continue
		}
		err := fmt.Errorf("register: this worker's plan (%x…) is not that of the aggregator at %s (%x…): they are of different versions",
			hash[:4], w.aggregators[i].cfg.Server, a.PlanHash[:min(4, len(a.PlanHash))])
		w.giveUp(err)
		return err
	}
	return w.take(first, tensors, descs)
}

// take hands tensors that the aggregator has accepted to the C worker.
func (w *Worker) take(first int, tensors []Tensor, descs []cworker.TensorDesc) error {
	table := &tensorTable{names: map[string]int{}}
	if old := w.tensors.Load(); old != nil {
		for name, i := range old.names {
			table.names[name] = i
		}
		table.bytes, table.labels = append(table.bytes, old.bytes...), append(table.labels, old.labels...)
	}
	for i := range descs {
		table.names[tensors[i].Name] = first + i
		table.labels = append(table.labels, tensors[i].Name)
		table.bytes = append(table.bytes, descs[i].Elems*uint64(chunk.DType(descs[i].MemoryType).Size()))
	}
	if w.c == nil {
		if err := w.open(); err != nil {
			return err
		}
	}
	var chunks []cworker.ChunkDesc
	counts := make([]uint32, w.plan.NumLanes())
	for l := range counts {
		for _, id := range w.plan.LaneChunks(l) {
			if c := w.plan.Chunk(int(id)); c.Tensor >= first {
				chunks = append(chunks, cworker.ChunkDesc{Offset: c.Offset, Tensor: uint32(c.Tensor), Elems: uint32(c.Elems)})
				counts[l]++
			}
		}
	}
	if rc, text := onThread(func() int { return cworker.Add(w.c, descs, chunks, counts) }); rc < 0 {
		return w.dataError("register", rc, text)
	}
	w.submitting.Lock()
	w.pins = append(w.pins, make([]pin, len(descs))...)
	w.submitting.Unlock()
	w.tensors.Store(table)
	for _, t := range tensors {
		t.Shape = slices.Clone(t.Shape)
		w.declared = append(w.declared, t)
	}
	if !w.info.LiveHyper {
		return nil
	}
	return w.sendHyper(first, first+len(descs), w.hyper)
}

// Lookup returns the number of the tensor with a name, and whether there is one.
func (w *Worker) Lookup(name string) (int, bool) {
	table := w.tensors.Load()
	if table == nil {
		return 0, false
	}
	i, ok := table.names[name]
	return i, ok
}

// NumTensors returns how many tensors are registered.
func (w *Worker) NumTensors() int {
	if table := w.tensors.Load(); table != nil {
		return len(table.bytes)
	}
	return 0
}
