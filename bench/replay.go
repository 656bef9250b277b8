package bench

import (
	"context"
	"time"

	"github.com/rackweave/rackweave/bench/report"
	"github.com/rackweave/rackweave/client"
)

// trace has the times of a worker in a replay. Times are nanoseconds of the machine's clock, which all workers share.
type trace struct {
	Starts    []int64   `json:"starts"`    // of each step, and the end of the last
	Filled    []int64   `json:"filled"`    // how long gradients to verify took to make, by step: no part of a step
	Submitted [][]int64 `json:"submitted"` // when each tensor's gradient was there, by step
	Blocked   [][]block `json:"blocked"`   // by step
}

// block is a time in which the forward pass waited for a tensor.
type block struct {
	Tensor int   `json:"t"`
	From   int64 `json:"from"`
	To     int64 `json:"to"`
}

// held is the least that counts as waiting: to see that a tensor is there takes less.
const held = 20 * time.Microsecond

// replayer trains without a GPU: it sleeps as long as each layer computes. A gradient is pushed when its layer's backward pass is
// done, and a layer's forward pass waits for its own parameters only.
type replayer struct {
	*exchanger
	say func(workerReport) error

	last  []client.Handle // of the last step's tensors
	ready []client.Op     // gradients that are not submitted yet
	clock time.Time       // when the computation so far is done
}

func (r *replayer) run(ctx context.Context) (*trace, error) {
	tensors := len(r.s.Model.Tensors)
	tr := &trace{}
	for step := range r.s.Steps() {
		r.clock = time.Now()
		tr.Starts = append(tr.Starts, r.clock.UnixNano())
		blocked, err := r.forward(ctx, step)
		if err != nil {
			return nil, err
		}
		tr.Blocked = append(tr.Blocked, blocked)
		filling := time.Now()
		if r.s.Verify && step > 0 {
			r.fill(step)
			r.clock = time.Now()
		}
		tr.Filled = append(tr.Filled, int64(time.Since(filling)))
		r.last = make([]client.Handle, tensors)
		submitted, err := r.backward(ctx)
		if err != nil {
			return nil, err
		}
		tr.Submitted = append(tr.Submitted, submitted)
		if err := r.say(workerReport{Step: step + 1}); err != nil {
			return nil, err
		}
	}
	tr.Starts = append(tr.Starts, time.Now().UnixNano())
	err := r.w.WaitAll(ctx, r.last)
	if err == nil {
		err = r.ended(r.s.Steps() - 1)
	}
	return tr, err
}

// compute returns when a layer's time has passed since the last one's. A sleep that was too long shortens the next.
func (r *replayer) compute(ctx context.Context, d time.Duration) error {
	r.clock = r.clock.Add(d)
	left := time.Until(r.clock)
	if left <= 0 {
		return ctx.Err()
	}
	select {
	case <-time.After(left):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (r *replayer) forward(ctx context.Context, step int) (blocked []block, err error) {
	for t, tensor := range r.s.Model.Tensors {
		if r.last != nil {
			from := time.Now()
			if err := r.last[t].Wait(ctx); err != nil {
				return nil, err
			}
			if err := r.took(step-1, t); err != nil {
				return nil, err
			}
			if to := time.Now(); to.Sub(from) > held {
				blocked = append(blocked, block{t, from.UnixNano(), to.UnixNano()})
				r.clock = to
			}
		}
		if err := r.compute(ctx, tensor.Forward); err != nil {
			return nil, err
		}
	}
	return blocked, nil
}

func (r *replayer) backward(ctx context.Context) (submitted []int64, err error) {
	submitted = make([]int64, len(r.last))
	for t := len(r.last) - 1; t >= 0; t-- {
		if d := r.s.Model.Tensors[t].Backward; d > 0 {
			if err := r.submit(ctx, submitted); err != nil {
				return nil, err
			}
			if err := r.compute(ctx, d); err != nil {
				return nil, err
			}
		}
		r.ready = append(r.ready, r.b.op(client.PushPull, t))
	}
	return submitted, r.submit(ctx, submitted)
}

func (r *replayer) submit(ctx context.Context, submitted []int64) error {
	handles, err := r.w.Submit(r.ready...)
	if err != nil {
		return err
	}
	go func() { _ = r.w.WaitAll(ctx, handles) }() // makes progress while this worker computes; other waits report the error
	now := time.Now().UnixNano()
	for i, h := range handles {
		t := r.ready[i].Tensor
		r.last[t], submitted[t] = h, now
	}
	r.ready = r.ready[:0]
	return nil
}

// times are the measured steps in microseconds.
func (tr *trace) times(warmup int) (us []float64) {
	for step := warmup; step+1 < len(tr.Starts); step++ {
		us = append(us, float64(tr.Starts[step+1]-tr.Starts[step]-tr.Filled[step])/1e3)
	}
	return us
}

// breakdown sums up what all workers did in the measured steps.
func breakdown(s *Spec, traces []*trace) *report.Replay {
	var exposed, wait int64
	for step := s.Warmup; step < s.Steps(); step++ {
		for _, tr := range traces {
			for _, b := range tr.Blocked[step] {
				exposed += b.To - b.From
				var last int64 // when the slowest worker had this gradient
				for _, other := range traces {
					last = max(last, other.Submitted[step-1][b.Tensor])
				}
				wait += min(max(last-b.From, 0), b.To-b.From)
			}
		}
	}
	n := float64(s.Iters*len(traces)) * 1e3
	c := s.Model.Compute
	return &report.Replay{ComputeUS: float64(c.Time) / 1e3, ComputeSource: c.Source, Batch: c.Batch,
		ExposedUS: float64(exposed) / n, WaitUS: float64(wait) / n}
}
