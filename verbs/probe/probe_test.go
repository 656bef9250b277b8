package probe_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/rackweave/rackweave/verbs"
	"github.com/rackweave/rackweave/verbs/probe"
)

// open opens a device on loopback, whose passive queue pairs let their peers in.
func open(t *testing.T, provider string) *verbs.Device {
	t.Helper()
	name := ""
	if provider == verbs.ProviderTCP {
		name = "127.0.0.1"
	}
	d, err := verbs.Open(provider, name, "")
	if err != nil {
		t.Fatal(err)
	}
	var pump sync.WaitGroup
	stop := make(chan struct{})
	pump.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			if _, _, err := d.AsyncEvent(10 * time.Millisecond); err != nil {
				t.Error(err)
				return
			}
		}
	})
	t.Cleanup(func() {
		close(stop)
		pump.Wait()
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

// pair connects two ends, which are 0 and 1.
func pair(t *testing.T, ctx context.Context, provider string) (a, b *probe.Prober) {
	t.Helper()
	a, toB, err := probe.Open(open(t, provider), []int{1})
	if err != nil {
		t.Fatal(err)
	}
	b, toA, err := probe.Open(open(t, provider), []int{0})
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Join(ctx, 1, toA[0], false); err != nil {
		t.Fatal(err)
	}
	if err := b.Join(ctx, 0, toB[1], true); err != nil {
		t.Fatal(err)
	}
	return a, b
}

func TestBothDirectionsOfALinkAreMeasured(t *testing.T) {
	for _, provider := range []string{verbs.ProviderTCP, verbs.ProviderSHM} {
		t.Run(provider, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			a, b := pair(t, ctx, provider)
			for _, end := range []struct {
				*probe.Prober
				other int
			}{{a, 1}, {b, 0}} {
				hop, err := end.Latency(ctx, end.other)
				if err != nil || hop <= 0 {
					t.Errorf("latency to %d: %v, %v", end.other, hop, err)
				}
				rate, err := end.Rate(ctx, end.other, 30*time.Millisecond)
				if err != nil || rate <= 0 {
					t.Errorf("rate to %d: %v, %v", end.other, rate, err)
				}
			}
			if err := errors.Join(a.Close(), b.Close()); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestALinkThatBreaksIsAnError(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	a, b := pair(t, ctx, verbs.ProviderTCP)
	if _, err := b.Latency(ctx, 0); err != nil {
		t.Fatal(err)
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	if rate, err := a.Rate(ctx, 1, 10*time.Second); err == nil {
		t.Errorf("a link without its other end carries %g B/s", rate)
	}
	if _, err := a.Latency(ctx, 7); !errors.Is(err, probe.ErrLink) {
		t.Errorf("a link that was not made: %v", err)
	}
	if err := a.Close(); err != nil {
		t.Error(err)
	}
}

func TestALinkThatDoesNotConnectEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	a, _, err := probe.Open(open(t, verbs.ProviderTCP), []int{1})
	if err != nil {
		t.Fatal(err)
	}
	b, toA, err := probe.Open(open(t, verbs.ProviderTCP), []int{0})
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Join(ctx, 1, toA[0], false); err != nil {
		t.Fatal(err)
	}
	short, cancelShort := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancelShort()
	if _, err := a.Rate(short, 1, time.Second); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("nobody connects: %v", err)
	}
	if err := errors.Join(a.Close(), b.Close()); err != nil {
		t.Error(err)
	}
}

// A measurement is ended while calls are under way, and they end: of a queue that is closed they touch nothing.
func TestAnEndedMeasurementRefusesCalls(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	a, b := pair(t, ctx, verbs.ProviderTCP)
	var calls sync.WaitGroup
	begun := make(chan struct{}, 8)
	for i := range cap(begun) {
		calls.Go(func() {
			for k := 0; ; k++ {
				hurried, cancel := context.WithTimeout(ctx, time.Duration(i*100)*time.Microsecond)
				_, err := a.Latency(hurried, 1)
				cancel()
				if k == 0 {
					begun <- struct{}{}
				}
				if err != nil && !errors.Is(err, context.DeadlineExceeded) {
					return
				}
			}
		})
	}
	for range cap(begun) {
		<-begun
	}
	if err := errors.Join(a.Close(), b.Close()); err != nil {
		t.Error(err)
	}
	calls.Wait()
	if _, err := a.Latency(ctx, 1); err == nil {
		t.Error("the latency of a link was measured that is closed")
	}
}
