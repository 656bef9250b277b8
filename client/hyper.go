package client

import (
	"fmt"

	cworker "github.com/rackweave/rackweave/cgo/worker"
	"github.com/rackweave/rackweave/chunk"
)

// Hyper holds the hyper-parameters that travel with a tensor's gradients in mode eager.
type Hyper struct {
	LR, WD    float32 // learning rate and weight decay
	Scale     float32 // multiplies the sum of the gradients
	Clip      float32 // the largest magnitude of a scaled element; 0 or less: any
	Momentum  float32 // beta 1 of rules that have two betas
	Beta2     float32 // alpha of rules that have one
	Eps       float32
	Dampening float32 // of the momentum
}

func (h Hyper) record() [chunk.RecordValues]float32 {
	return [...]float32{h.LR, h.WD, h.Scale, h.Clip, h.Momentum, h.Beta2, h.Eps, h.Dampening}
}

func hyperOf(r []float32) Hyper {
	return Hyper{LR: r[0], WD: r[1], Scale: r[2], Clip: r[3], Momentum: r[4], Beta2: r[5], Eps: r[6], Dampening: r[7]}
}

// AllTensors stands for every registered tensor.
const AllTensors = -1

// SetHyper changes the hyper-parameters of a tensor, or of [AllTensors], from the next gradient on. All workers must set the same
// before they send it, or the job fails and names the tensor; in mode stream each worker's are its own. The tensor's multipliers
// apply on top. Only modes eager and stream have these hyper-parameters; those of a two-phase step come with [Worker.Commit].
func (x *exchange) SetHyper(tensor int, h Hyper) error {
	if !x.info.LiveHyper {
		return fmt.Errorf("set hyper-parameters: mode %s takes none with the gradients", x.info.Mode)
	}
	x.using.RLock()
	defer x.using.RUnlock()
	if err := x.Err(); err != nil {
		return fmt.Errorf("set hyper-parameters: %w", err)
	}
	first, end := tensor, tensor+1
	if tensor == AllTensors {
		first, end = 0, x.NumTensors()
	}
	if first < 0 || end > x.NumTensors() {
		return fmt.Errorf("set hyper-parameters of tensor %d: %d are registered", tensor, x.NumTensors())
	}
	return x.sendHyper(first, end, h)
}

// Flush makes every tensor's next gradient take along, uncompressed, what its codec has left. If all workers call it, what crosses
// between racks in that step, and its answers, leave nothing either. Call it before the last step ahead of [Worker.Save] or the
// worker's end, or that step's residuals are lost: no checkpoint has them.
func (x *exchange) Flush() error {
	x.using.RLock()
	defer x.using.RUnlock()
	if err := x.Err(); err != nil {
		return fmt.Errorf("flush: %w", err)
	}
	cworker.Flush(x.session.C)
	return nil
}

// sendHyper hands the hyper-parameters of tensors to the C worker.
func (x *exchange) sendHyper(first, end int, h Hyper) error {
	record := h.record()
	for t := first; t < end; t++ {
		if err := x.session.Call("", func() int { return cworker.Hyper(x.session.C, uint32(t), &record) }); err != nil {
			return x.dataError(fmt.Sprintf("set hyper-parameters of tensor %q", x.registered()[t].Name), err)
		}
	}
	return nil
}
