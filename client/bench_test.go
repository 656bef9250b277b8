package client_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/rackweave/rackweave/client"
	"github.com/rackweave/rackweave/service"
	"github.com/rackweave/rackweave/verbs"
)

// BenchmarkPushPull exchanges 16 MiB in 16 tensors between 4 workers of one process: it shows the cost of the client, not of a
// network.
func BenchmarkPushPull(b *testing.B) {
	const tensors, elems, workers = 16, 1 << 18, 4
	for _, provider := range []string{verbs.ProviderSHM, verbs.ProviderTCP} {
		for _, arena := range []bool{false, true} {
			b.Run(fmt.Sprintf("%s/arena=%v", provider, arena), func(b *testing.B) {
				s := serve(b, service.Options{Providers: []string{provider}})
				ws := joinAll(b, s, client.Config{Job: "bench", Workers: workers, Provider: provider})
				ops := make([][]client.Op, workers)
				each(b, ws, func(rank int, w *client.Worker) error {
					var model []client.Tensor
					for i := range tensors {
						buf := make([]byte, elems*4)
						if arena {
							var err error
							if buf, err = w.Alloc(len(buf)); err != nil {
								return err
							}
						}
						model = append(model, client.Tensor{Name: fmt.Sprint(i), Shape: []uint64{elems}})
						ops[rank] = append(ops[rank], client.Op{Kind: client.PushPull, Tensor: i, Src: buf, Dst: buf})
					}
					return w.Register(bounded(b), model)
				})
				b.SetBytes(tensors * elems * 4)
				b.ReportAllocs()
				for b.Loop() {
					each(b, ws, func(rank int, w *client.Worker) error {
						handles, err := w.Submit(ops[rank]...)
						if err != nil {
							return err
						}
						return w.WaitAll(context.Background(), handles)
					})
				}
			})
		}
	}
}
