package client_test

import (
	"fmt"
	"testing"

	"github.com/rackweave/rackweave/aggregate"
	"github.com/rackweave/rackweave/aggregate/optim"
	"github.com/rackweave/rackweave/aggregate/racktest"
	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/client"
	"github.com/rackweave/rackweave/service"
)

// exchange broadcasts rank 0's parameters, then runs steps of pushpulls, and compares every answer with the plain Go reference.
func exchange(t *testing.T, workers []*client.Worker, tensors []client.Tensor, ref *racktest.Reference, steps int, alloc bool) {
	t.Helper()
	exchangeBy(t, workers, tensors, ref, ref.Step, steps, alloc)
}

// exchangeBy is exchange with a reference that steps in its own way.
func exchangeBy(t *testing.T, workers []*client.Worker, tensors []client.Tensor, ref *racktest.Reference,
	next func([][][]float32) [][]float32, steps int, alloc bool) {
	t.Helper()
	buffers := begin(t, workers, tensors, ref, alloc)
	for step := range steps {
		grads := make([][][]float32, len(workers))
		for rank := range grads {
			grads[rank] = randomModel(uint64(step*100+rank+1), tensors)
		}
		want := next(grads)
		each(t, workers, func(rank int, w *client.Worker) error {
			var ops []client.Op
			for i := range tensors {
				ops = append(ops, client.Op{
					Kind: client.PushPull, Tensor: i, Src: client.Bytes(grads[rank][i]), Dst: client.Bytes(buffers[rank][i]), Priority: int32(-i),
				})
			}
			handles, err := w.Submit(ops...)
			if err != nil {
				return err
			}
			if err := w.WaitAll(bounded(t), handles); err != nil {
				return err
			}
			for i := range tensors {
				if at, same := racktest.SameBits(buffers[rank][i], want[i]); !same {
					return fmt.Errorf("step %d, tensor %d, element %d: %v, the reference has %v", step, i, at, buffers[rank][i][at], want[i][at])
				}
			}
			return nil
		})
	}
}

// begin registers the tensors and broadcasts the reference's parameters. It returns the workers' results, by worker and tensor.
func begin(t *testing.T, workers []*client.Worker, tensors []client.Tensor, ref *racktest.Reference, alloc bool) [][][]float32 {
	t.Helper()
	buffers := make([][][]float32, len(workers))
	each(t, workers, func(rank int, w *client.Worker) error {
		if err := w.Register(bounded(t), tensors); err != nil {
			return err
		}
		var ops []client.Op
		for i := range tensors {
			buf := make([]float32, tensors[i].Elems())
			if alloc {
				b, err := w.Alloc(int(tensors[i].Elems()) * 4)
				if err != nil {
					return err
				}
				buf = client.Floats(b)
			}
			if rank == 0 {
				copy(buf, ref.W[i])
			}
			buffers[rank] = append(buffers[rank], buf)
			ops = append(ops, client.Op{Kind: client.Broadcast, Tensor: i, Src: client.Bytes(buf), Dst: client.Bytes(buf)})
		}
		handles, err := w.Submit(ops...)
		if err != nil {
			return err
		}
		if err := w.WaitAll(bounded(t), handles); err != nil {
			return err
		}
		for i := range tensors {
			if at, same := racktest.SameBits(buffers[rank][i], racktest.OnWire(ref.Wire, ref.W[i])); !same {
				return fmt.Errorf("broadcast of tensor %d: element %d differs", i, at)
			}
		}
		return nil
	})
	return buffers
}

func TestPushPullIsBitEqualToTheReference(t *testing.T) {
	for _, provider := range providers() {
		t.Run(provider, func(t *testing.T) {
			s := serve(t, service.Options{Providers: []string{provider}})
			for _, c := range []struct {
				name  string
				mode  string
				rule  string
				hyper map[string]float64
				wire  chunk.DType
				alloc bool
			}{
				{"sum", "aggregate", "sum", map[string]float64{"scale": 0.25}, chunk.F32, false},
				{"sgd", "eager", "sgd_torch", map[string]float64{"scale": 0.25, "momentum": 0.9}, chunk.F32, true},
				{"adam-bf16", "eager", "adam_mxnet", map[string]float64{"scale": 0.25, "beta1": 0.8}, chunk.BF16, false},
			} {
				t.Run(c.name, func(t *testing.T) {
					cfg := client.Config{
						Job: c.name, Workers: 4, Mode: c.mode, Optimizer: c.rule, Provider: provider, WireType: c.wire,
						Hyper: c.hyper, ChunkBytes: 4096,
					}
					rule, err := optim.Parse(c.rule)
					if err != nil {
						t.Fatal(err)
					}
					h, err := rule.Hyper(c.hyper)
					if err != nil {
						t.Fatal(err)
					}
					mode, err := aggregate.ParseMode(c.mode)
					if err != nil {
						t.Fatal(err)
					}
					tensors := model()
					start := randomModel(7, tensors)
					for i := range start {
						start[i] = racktest.OnWire(c.wire, start[i]) // what the broadcast leaves of it
					}
					exchange(t, joinAll(t, s, cfg), tensors, racktest.NewReference(mode, rule, h, c.wire, start), 3, c.alloc)
				})
			}
		})
	}
}
