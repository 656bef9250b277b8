package racks

import (
	"context"
	"errors"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rackweave/rackweave/bench/models"
	"github.com/rackweave/rackweave/chunk"
)

// pair builds two racks of two workers.
func pair(t *testing.T) *Lab {
	t.Helper()
	l := &Lab{Program: program(t), Log: os.Stderr, Warmup: 1}
	l.Fabric = up(t, Config{Racks: 2, Workers: 2, Rate: 80e6, Core: 2})
	return l
}

const smallModel = 500_000 // bytes; it takes 50 ms

// trial is an exchange through a cluster that something happens to.
type trial struct {
	*Lab
	*Cluster
	ctx     context.Context
	outcome chan error
	stop    func() // ends the exchange and the cluster
}

// running starts an exchange between two racks and returns when the first steps are done.
func running(t *testing.T, l *Lab, iters int, verify bool) *trial {
	t.Helper()
	l.Iters, l.Verify = iters, verify
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	c, err := l.Serve(ctx, "sharded")
	if err != nil {
		cancel()
		t.Fatal(err)
	}
	r := &trial{Lab: l, Cluster: c, ctx: ctx, outcome: make(chan error, 1)}
	done := make(chan struct{})
	go func() {
		r.outcome <- r.exchangeOnce(t)
		close(done)
	}()
	r.stop = sync.OnceFunc(func() {
		cancel()
		<-done
		_ = c.Stop() // an aggregator that was killed has failed
	})
	t.Cleanup(r.stop)
	r.crossing(t, 3*smallModel)
	return r
}

// exchangeOnce exchanges a small model among all workers.
func (r *trial) exchangeOnce(t *testing.T) error {
	m, err := models.FromBytes("500KB", chunk.F32)
	if err != nil {
		t.Error(err)
	}
	_, err = r.exchange(r.ctx, r.spec(m, r.Servers()))
	return err
}

// crossing waits until so many bytes more have left the first rack.
func (r *trial) crossing(t *testing.T, bytes uint64) {
	t.Helper()
	began := r.sent(t)
	for deadline := time.Now().Add(time.Minute); r.sent(t) < began+bytes; time.Sleep(50 * time.Millisecond) {
		select {
		case err := <-r.outcome:
			t.Fatalf("the exchange ended: %v", err)
		default:
		}
		if time.Now().After(deadline) {
			t.Fatal("nothing crosses the core")
		}
	}
}

// sent is what has left the first rack.
func (r *trial) sent(t *testing.T) uint64 {
	t.Helper()
	ports, err := r.Counters(r.ctx)
	if err != nil {
		t.Fatal(err)
	}
	return ports[UplinkPort(0)].Sent
}

// ends waits for the end of the exchange.
func (r *trial) ends(t *testing.T, within time.Duration) error {
	t.Helper()
	select {
	case err := <-r.outcome:
		return err
	case <-time.After(within):
		t.Fatalf("workers hang: %v have passed", within)
		return nil
	}
}

// names checks that an error says all of wants.
func names(t *testing.T, err error, wants ...string) {
	t.Helper()
	if err == nil || errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("the exchange ended with %v, expected a failure that says why", err)
	}
	for _, want := range wants {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%v\nwant it to say %q", err, want)
		}
	}
}

// Both racks' workers learn who is gone. The aggregator that is left serves the next job, with the other started again.
func TestAKilledAggregatorEndsTheJobInBothRacks(t *testing.T) {
	r := running(t, pair(t), 10_000, false)
	if err := r.PowerOff(r.ctx, r.Aggregator(1)); err != nil {
		t.Fatal(err)
	}
	names(t, r.ends(t, 30*time.Second), `aggregator lost: rack "rack1"`, "the connection to "+r.URL(1)+" broke")
	<-r.Aggregators[1].Ended()
	if err := r.start(r.ctx, 1); err != nil {
		t.Fatal(err)
	}
	r.Iters, r.Verify = 3, true
	if err := r.exchangeOnce(t); err != nil {
		t.Errorf("after the aggregator was started again: %v", err)
	}
}

// Workers of both racks learn in bounded time that the other rack cannot be reached.
func TestACoreThatIsCutForGoodEndsTheJob(t *testing.T) {
	r := running(t, pair(t), 10_000, false)
	if err := r.CutUplink(r.ctx, 1, true); err != nil {
		t.Fatal(err)
	}
	names(t, r.ends(t, 90*time.Second), `aggregator lost: rack "rack1"`, `aggregator lost: rack "rack0"`)
}

func TestACoreThatIsCutForFiveSecondsChangesNoBit(t *testing.T) {
	l := pair(t)
	for range 3 {
		if cutForFiveSeconds(t, l) {
			return
		}
	}
	t.Error("a cut of five seconds lasted far longer, three times")
}

// cutForFiveSeconds cuts the core during an exchange. It returns false if the machine was too busy to end the cut in time.
func cutForFiveSeconds(t *testing.T, l *Lab) bool {
	t.Helper()
	r := running(t, l, 100, true) // these take 5 s without the cut
	defer r.stop()
	cut := time.Now()
	if err := r.CutUplink(r.ctx, 1, true); err != nil {
		t.Fatal(err)
	}
	time.Sleep(time.Second) // what is under way arrives or is lost
	before := r.sent(t)
	time.Sleep(4 * time.Second)
	crossed := r.sent(t) - before
	if err := r.CutUplink(r.ctx, 1, false); err != nil {
		t.Fatal(err)
	}
	if time.Since(cut) > 15*time.Second { // a core link may be down for half a minute
		return false
	}
	if crossed > smallModel {
		t.Errorf("%d bytes crossed a core that is cut", crossed)
	}
	r.crossing(t, smallModel)
	if err := r.ends(t, time.Minute); err != nil {
		t.Error(err)
	}
	return true
}

// The first rack's status says that its chunks wait for the other, which is ten times slower.
func TestARackTenTimesSlowerIsNamedAndChangesNoBit(t *testing.T) {
	l := pair(t)
	if err := l.SetRate(t.Context(), 1, l.Rate/10); err != nil {
		t.Fatal(err)
	}
	r := running(t, l, 20, true)
	var own, other int
	for deadline := time.Now().Add(20 * time.Second); other < 20 && time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
		s, err := r.Status(r.ctx, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, j := range s.Jobs {
			own += j.Racks[0].Awaited
			other += j.Racks[1].Awaited
		}
	}
	if other < 20 || other < 2*own {
		t.Errorf("%d times a chunk waited for the slow rack, %d times for the fast one", other, own)
	}
	if err := r.SetRate(r.ctx, 1, r.Rate); err != nil {
		t.Fatal(err)
	}
	if err := r.ends(t, time.Minute); err != nil {
		t.Error(err)
	}
}

func TestAggregatorsThatDoNotAgreeAreRefusedByName(t *testing.T) {
	l := pair(t)
	l.Iters = 1
	const secret = "a secret that the two share"
	for name, tc := range map[string]struct {
		file func(rack int) string
		want []string
	}{
		"without the cluster's secret": {
			func(rack int) string { return l.file("sharded", "f32", secret[rack:]) },
			[]string{`rack "rack1" at ` + l.URL(1), "has not this cluster's secret"},
		},
		"with another shape": {
			func(rack int) string { return l.file([]string{"sharded", "root"}[rack], "f32", secret) },
			[]string{`rack "rack1" has shape root`, `rack "rack0"`},
		},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			c, err := l.serveEach(ctx, window, tc.file)
			if err != nil {
				t.Fatal(err)
			}
			r := &trial{Lab: l, Cluster: c, ctx: ctx}
			names(t, r.exchangeOnce(t), tc.want...)
			if err := c.Stop(); err != nil {
				t.Error(err)
			}
		})
	}
}
