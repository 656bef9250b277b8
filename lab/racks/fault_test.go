package racks

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/rackweave/rackweave/bench/models"
	"github.com/rackweave/rackweave/chunk"
)

// running starts two racks that exchange more than a test waits for, and returns when the first steps are done. The outcome comes
// when the exchange has ended.
func running(t *testing.T, iters int, verify bool) (l *Lab, outcome chan error) {
	t.Helper()
	l = &Lab{Program: program(t), Log: os.Stderr, Iters: iters, Warmup: 1, Verify: verify}
	l.Fabric = up(t, Config{Racks: 2, Workers: 2, Rate: 80e6, Core: 2})
	m, err := models.FromBytes("500KB", chunk.F32)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	cluster, err := l.Serve(ctx, "sharded")
	if err != nil {
		t.Fatal(err)
	}
	outcome = make(chan error, 1)
	done := make(chan struct{})
	go func() {
		_, err := l.exchange(ctx, l.spec(m, l.Servers()))
		outcome <- err
		close(done)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
		_ = cluster.Stop() // an aggregator that was killed has failed
	})
	// The core carries something when workers exchange.
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		ports, err := l.Counters(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if ports[UplinkPort(0)].Sent > 3*500_000 {
			return l, outcome
		}
		select {
		case err := <-outcome:
			t.Fatalf("the exchange ended: %v", err)
		default:
		}
		if time.Now().After(deadline) {
			t.Fatal("nothing crosses the core")
		}
	}
}

// fails waits for the failure of an exchange.
func fails(t *testing.T, outcome chan error) {
	t.Helper()
	select {
	case err := <-outcome:
		if err == nil || errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the exchange ended with %v, expected a failure that says why", err)
		}
		t.Log(err)
	case <-time.After(time.Minute):
		t.Error("workers hang")
	}
}

func TestAKilledAggregatorEndsTheJobInBothRacks(t *testing.T) {
	l, outcome := running(t, 10_000, false)
	if err := l.PowerOff(t.Context(), l.Aggregator(1)); err != nil {
		t.Fatal(err)
	}
	fails(t, outcome)
}

func TestACoreThatIsCutForGoodEndsTheJob(t *testing.T) {
	l, outcome := running(t, 10_000, false)
	if err := l.CutUplink(t.Context(), 1, true); err != nil {
		t.Fatal(err)
	}
	fails(t, outcome)
}

func TestARackTenTimesSlowerChangesNoBit(t *testing.T) {
	l, outcome := running(t, 10, true)
	if err := l.SetRate(t.Context(), 1, l.Rate/10); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-outcome:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Error("workers hang")
	}
}
