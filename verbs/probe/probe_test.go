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

// pair connects two ends, of which the second serves the first until end closes it.
func pair(t *testing.T, ctx context.Context, provider string) (a *probe.Prober, end func() error) {
	t.Helper()
	a, err := probe.Open(open(t, provider))
	if err != nil {
		t.Fatal(err)
	}
	b, err := probe.Open(open(t, provider))
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Connect(ctx, a.End, false); err != nil {
		t.Fatal(err)
	}
	serving, stop := context.WithCancel(ctx)
	var served sync.WaitGroup
	served.Go(func() { b.Serve(serving) })
	if err := a.Connect(ctx, b.End, true); err != nil {
		t.Fatal(err)
	}
	return a, func() error {
		stop()
		served.Wait()
		return b.Close()
	}
}

func TestALinkIsMeasured(t *testing.T) {
	for _, provider := range []string{verbs.ProviderTCP, verbs.ProviderSHM} {
		t.Run(provider, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
			defer cancel()
			a, end := pair(t, ctx, provider)
			if hop, err := a.Latency(ctx); err != nil || hop <= 0 {
				t.Errorf("latency %v, %v", hop, err)
			}
			if rate, err := a.Rate(ctx, 30*time.Millisecond); err != nil || rate <= 0 {
				t.Errorf("rate %v, %v", rate, err)
			}
			if err := errors.Join(a.Close(), end()); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestALinkThatBreaksIsAnError(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	a, end := pair(t, ctx, verbs.ProviderTCP)
	if _, err := a.Latency(ctx); err != nil {
		t.Fatal(err)
	}
	if err := end(); err != nil {
		t.Fatal(err)
	}
	if rate, err := a.Rate(ctx, 10*time.Second); err == nil {
		t.Errorf("a link without its other end carries %g B/s", rate)
	}
	if err := a.Close(); err != nil {
		t.Error(err)
	}
}

func TestALinkThatIsNotServedEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	a, err := probe.Open(open(t, verbs.ProviderTCP))
	if err != nil {
		t.Fatal(err)
	}
	b, err := probe.Open(open(t, verbs.ProviderTCP))
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Connect(ctx, a.End, false); err != nil {
		t.Fatal(err)
	}
	short, cancelShort := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancelShort()
	err = a.Connect(short, b.End, true)
	if err == nil {
		_, err = a.Rate(short, time.Second)
	}
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("nobody serves: %v", err)
	}
	if err := errors.Join(a.Close(), b.Close()); err != nil {
		t.Error(err)
	}
}
