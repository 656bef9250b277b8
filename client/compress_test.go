package client_test

import (
	"strings"
	"testing"

	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/client"
	"github.com/rackweave/rackweave/service"
	"github.com/rackweave/rackweave/verbs"
)

// Gradients and answers take fewer bytes, and the worker counts both. A tensor that cannot be compressed is refused.
func TestAWorkerCompressesWhatItsJobSays(t *testing.T) {
	s := serve(t, service.Options{Providers: []string{verbs.ProviderTCP}})
	for _, mode := range []string{"eager", "aggregate"} {
		cfg := client.Config{Server: s.URL(), Job: mode, Workers: 1, Mode: mode, Provider: verbs.ProviderTCP, Compress: "int4/int8"}
		if mode == "eager" {
			cfg.Optimizer = "sgd_torch"
		}
		ctx := bounded(t)
		w, err := client.Join(ctx, cfg)
		if err != nil {
			t.Fatal(err)
		}
		if w.Compress() != "int4/int8" {
			t.Errorf("codecs %s", w.Compress())
		}
		const elems, payload = 1000, 16 + 2*4 // without the codes
		if err := w.Register(ctx, []client.Tensor{{Name: "t", Shape: []uint64{elems}}}); err != nil {
			t.Fatal(err)
		}
		buf, err := w.Alloc(4 * elems)
		if err != nil {
			t.Fatal(err)
		}
		for _, op := range []func() (client.Handle, error){
			func() (client.Handle, error) { return w.Broadcast(0, buf) },
			func() (client.Handle, error) { return w.PushPull(0, buf, buf, 0) },
		} {
			h, err := op()
			if err == nil {
				err = h.Wait(ctx)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		got, err := w.Stats()
		if err != nil {
			t.Fatal(err)
		}
		// The broadcast is raw.
		if got.SentBytes != 4*elems+payload+elems/2 || got.ReceivedBytes != 4*elems+payload+elems || got.SentRawBytes != 8*elems ||
			got.ReceivedRawBytes != 8*elems {
			t.Errorf("mode %s: %+v", mode, got)
		}
		err = w.Register(ctx, []client.Tensor{{Name: "half", Shape: []uint64{5}, WireType: chunk.BF16}})
		for _, want := range []string{`tensor "half" has wire type bf16`, "use wire type f32"} {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%v, want %q", err, want)
			}
		}
		_ = w.Close()
	}
}
