package client_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rackweave/rackweave/client"
	"github.com/rackweave/rackweave/service"
	"github.com/rackweave/rackweave/verbs"
)

// resetting leads to a service. It resets its first connections: at once, or, if there is reset, when that has returned. Others
// wait for hold, if there is one.
type resetting struct {
	to          string
	first       int32
	reset, hold func()
	came, led   atomic.Int32
}

// before returns the URL by which r leads to a service.
func (r *resetting) before(t *testing.T, s *service.Service) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r.to = strings.TrimPrefix(s.URL(), "http://")
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go r.lead(c.(*net.TCPConn), r.came.Add(1) <= r.first)
		}
	}()
	t.Cleanup(func() { l.Close(); <-done })
	return "http://" + l.Addr().String()
}

func (r *resetting) lead(c *net.TCPConn, reset bool) {
	defer c.Close()
	if reset && r.reset == nil {
		c.Read(make([]byte, 1)) // the request is on its way
		c.SetLinger(0)
		return
	}
	if !reset && r.hold != nil {
		r.hold()
	}
	there, err := net.Dial("tcp", r.to)
	if err != nil {
		return
	}
	defer there.Close()
	go io.Copy(there, c)
	if reset {
		r.reset()
		c.SetLinger(0)
		return
	}
	r.led.Add(1)
	io.Copy(c, there)
}

func TestAFirstContactThatIsResetIsRepeated(t *testing.T) {
	t.Parallel()
	s := serve(t, service.Options{Providers: []string{verbs.ProviderTCP}})
	r := &resetting{first: 3}
	w, err := client.Join(bounded(t), client.Config{Server: r.before(t, s), Job: "j", Workers: 1, Provider: verbs.ProviderTCP})
	if err != nil {
		t.Fatal(err)
	}
	closeAll(t, []*client.Worker{w})
	if n := r.came.Load(); n < 4 {
		t.Errorf("%d connections, the first 3 of which were reset", n)
	}
}

// A worker whose connection is reset while it waits for the others comes again, and has its place.
func TestAWorkerThatIsResetWhileItWaitsHasItsPlaceAgain(t *testing.T) {
	t.Parallel()
	s := serve(t, service.Options{Providers: []string{verbs.ProviderTCP}})
	joined := func(n int) func() {
		return func() { waitFor(t, fmt.Sprint(n, " workers"), func() bool { return forming(t, s) == n }) }
	}
	r := &resetting{first: 1, reset: joined(1), hold: joined(0)}
	servers := []string{r.before(t, s), s.URL()}
	workers := make([]*client.Worker, 2)
	each(t, workers, func(rank int, _ *client.Worker) (err error) {
		if rank == 1 {
			waitFor(t, "the other to come again", func() bool { return r.led.Load() > 0 && forming(t, s) == 1 })
		}
		workers[rank], err = client.Join(bounded(t), client.Config{Server: servers[rank], Job: "j", Rank: rank, Workers: 2,
			Provider: verbs.ProviderTCP})
		return err
	})
	closeAll(t, workers)
}

func TestWhatResetsEveryContactIsAnErrorInTime(t *testing.T) {
	t.Parallel()
	s := serve(t, service.Options{Providers: []string{verbs.ProviderTCP}})
	for _, timeout := range []time.Duration{300 * time.Millisecond, deadline} {
		r := &resetting{first: 1 << 30}
		began := time.Now()
		_, err := client.Join(bounded(t), client.Config{Server: r.before(t, s), Job: "j", Workers: 1, Provider: verbs.ProviderTCP,
			Timeout: timeout})
		if !errors.Is(err, client.ErrServerLost) {
			t.Errorf("%v: want the aggregator lost", err)
		}
		if took := time.Since(began); took > deadline/2 {
			t.Errorf("took %v", took)
		}
		// In a short time one contact may be all, where the machine is busy.
		if n := r.came.Load(); n < 1 || n > 6 || timeout == deadline && n < 2 {
			t.Errorf("it came %d times in %v, want 2 to 6", n, timeout)
		}
	}
}

func TestAnAddressThatDoesNotAnswerIsNamedWithARemedy(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0") // nobody accepts
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, err = client.Status(t.Context(), client.Config{Server: "http://" + l.Addr().String(), Timeout: 50 * time.Millisecond})
	if !errors.Is(err, client.ErrTimeout) || !strings.Contains(err.Error(), l.Addr().String()) ||
		!strings.Contains(err.Error(), "does a firewall let its port through?") {
		t.Errorf("%v", err)
	}
}
