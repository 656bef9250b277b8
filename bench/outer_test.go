package bench

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/service"
	"github.com/rackweave/rackweave/service/racks"
	"github.com/rackweave/rackweave/verbs"
)

// serveRacks runs the aggregators of a cluster of so many racks, and returns their URLs.
func serveRacks(t *testing.T, n int, provider string, c racks.Cluster) string {
	t.Helper()
	c.Secret = "a secret of the racks"
	listeners := make([]net.Listener, n)
	var urls []string
	for i := range listeners {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		listeners[i] = l
		urls = append(urls, "http://"+l.Addr().String())
		c.Racks = append(c.Racks, racks.Rack{Name: fmt.Sprintf("r%d", i), URL: urls[i]})
	}
	for i, l := range listeners {
		own := c
		own.Own = c.Racks[i].Name
		s, err := service.New(service.Options{Listener: l, Providers: []string{provider}, Cores: 1, Unpinned: true, Cluster: &own})
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() { done <- s.Serve(context.Background()) }()
		t.Cleanup(func() {
			if err := errors.Join(s.Close(), <-done); err != nil {
				t.Error(err)
			}
		})
	}
	return strings.Join(urls, ",")
}

// Racks that train on their own end with plain Go's bits over every software transport, as their cluster says or as a job does.
func TestRacksThatMeetAreVerified(t *testing.T) {
	const nesterov = "every=2,rule=nesterov,lr=0.7,momentum=0.9"
	for _, tc := range []struct{ provider, cluster, job string }{
		{verbs.ProviderSHM, "", nesterov},
		{verbs.ProviderTCP, nesterov, ""},
	} {
		t.Run(tc.provider, func(t *testing.T) {
			s := momentumSpec(tc.provider)
			s.Server, s.Outer = serveRacks(t, 2, tc.provider, racks.Cluster{Outer: tc.cluster}), tc.job
			exchange(t, s)
			s.Iters++ // ends between two meetings
			_, err := testRunner(t).Run(t.Context(), s)
			if err == nil || !strings.Contains(err.Error(), "a multiple of 2 exchanges") {
				t.Errorf("5 exchanges are verified: %v", err)
			}
			s.Iters--
			s.Outer = "every=2,rule=nesterov,drift=0.1"
			if _, err = testRunner(t).Run(t.Context(), s); err == nil || !strings.Contains(err.Error(), "no drift") {
				t.Errorf("meetings that follow the drift are verified: %v", err)
			}
			s.Optimizer, s.Hyper, s.Outer = "sum", nil, nesterov
			_, err = testRunner(t).Run(t.Context(), s)
			if err == nil || !strings.Contains(err.Error(), "which mode aggregate cannot: use mode eager, or outer none") {
				t.Errorf("sums are trained: %v", err)
			}
		})
	}
}

// Sums that cross between racks in bf16 are rounded by plain Go as by the racks, in every type on the wire.
func TestSumsThatCrossInBF16AreVerified(t *testing.T) {
	server := serveRacks(t, 2, verbs.ProviderSHM, racks.Cluster{Core: "bf16", Shape: "sharded"})
	rounded := ""
	for _, tc := range []struct {
		optimizer string
		dtype     chunk.DType
	}{{"sgd_torch", chunk.F32}, {"sum", chunk.F32}, {"sgd_torch", chunk.F16}, {"adamw_torch", chunk.BF16}} {
		t.Run(fmt.Sprintf("%s over %v", tc.optimizer, tc.dtype), func(t *testing.T) {
			s := momentumSpec(verbs.ProviderSHM)
			s.Server, s.Optimizer, s.Hyper, s.DType = server, tc.optimizer, nil, tc.dtype
			if res := exchange(t, s); tc.optimizer == "sum" {
				rounded = res.Checksum
			}
		})
	}
	s := momentumSpec(verbs.ProviderSHM)
	s.Optimizer, s.Hyper = "sum", nil
	if plain := exchange(t, s).Checksum; plain == rounded {
		t.Errorf("sums have checksum %s in one rack and in two that exchange bf16", plain)
	}
}
