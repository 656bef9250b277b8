package service

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rackweave/rackweave/client"
	"github.com/rackweave/rackweave/service/api"
	"github.com/rackweave/rackweave/verbs"
)

// enter joins a job of one worker.
func enter(t *testing.T, s *Service, name string, timeout time.Duration) (*client.Worker, error) {
	t.Helper()
	w, err := client.Join(t.Context(), client.Config{Server: s.URL(), Job: name, Workers: 1, Mode: "aggregate",
		Provider: verbs.ProviderTCP, Timeout: timeout})
	if err == nil {
		t.Cleanup(func() { w.Close() })
	}
	return w, err
}

// Workers whose jobs never form take no worker's place: the oldest of the peer with the most goes.
func TestWorkersThatWaitForOthersGiveWay(t *testing.T) {
	const most = 6
	s := start(t, Options{Listen: "127.0.0.1:0", MaxWorkers: most})
	ctx, cancel := context.WithCancel(t.Context())
	var waiting sync.WaitGroup
	defer waiting.Wait()
	defer cancel()
	refused := make(chan string, most)
	for n := range most { // of two jobs, one after the other
		job := fmt.Sprint("half-", n/(most/2))
		waiting.Go(func() {
			_, err := s.Join(ctx, &api.JoinRequest{Job: job, Rank: -1, Workers: most, Mode: "aggregate",
				Providers: []string{verbs.ProviderTCP}})
			refused <- fmt.Sprint(job, ": ", err)
		})
		for there := 0; there <= n && len(refused) == 0; time.Sleep(time.Millisecond) {
			status, err := s.Status(ctx, nil)
			if err != nil {
				t.Fatal(err)
			}
			there = 0
			for _, j := range status.Jobs {
				there += len(j.Members)
			}
		}
	}
	if _, err := enter(t, s, "honest", 20*time.Second); err != nil {
		t.Fatal(err)
	}
	for range most / 2 {
		if text := <-refused; !strings.Contains(text, "half-0") || !strings.Contains(text, "too many workers wait for others") {
			t.Error(text)
		}
	}
	if len(refused) > 0 {
		t.Errorf("of the younger job: %s", <-refused)
	}
}

// Jobs that are connected and move nothing keep no other out, as jobs do that move something.
func TestAJobThatMovesNothingForLongGivesWay(t *testing.T) {
	s := start(t, Options{Listen: "127.0.0.1:0", MaxJobs: 2})
	s.jobs.Quiet = 200 * time.Millisecond
	workers := map[string]*client.Worker{}
	for _, name := range []string{"quiet", "busy"} {
		w, err := enter(t, s, name, 20*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		workers[name] = w
	}
	w, x := workers["busy"], make([]float32, 1000)
	if err := w.Register(t.Context(), []client.Tensor{{Name: "w", Shape: []uint64{uint64(len(x))}}}); err != nil {
		t.Fatal(err)
	}
	entered := make(chan error, 1)
	go func() {
		_, err := enter(t, s, "honest", 20*time.Second)
		entered <- err
	}()
	for len(entered) == 0 {
		h, err := w.PushPull(0, client.Bytes(x), client.Bytes(x), 0)
		if err == nil {
			err = h.Wait(t.Context())
		}
		if err != nil {
			t.Fatalf("the busy job: %v", err)
		}
		s.jobs.Tend(t.Context(), time.Now().Add(3*time.Second)) // so that the busy job is not quiet on a busy machine
	}
	if err := <-entered; err != nil {
		t.Error(err)
	}
	<-workers["quiet"].Failed()
	if err := workers["quiet"].Err(); !strings.Contains(err.Error(), "moved nothing for 200ms") {
		t.Errorf("the quiet job: %v", err)
	}
}

func TestAJobThatMovesNothingKeepsItsPlaceForAWhile(t *testing.T) {
	s := start(t, Options{Listen: "127.0.0.1:0", MaxJobs: 1})
	w, err := enter(t, s, "quiet", 20*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := enter(t, s, "other", 300*time.Millisecond); err == nil || !strings.Contains(err.Error(), "serves 1 jobs, all it may") {
		t.Errorf("beside a job that is not quiet for long: %v", err)
	}
	if err := w.Err(); err != nil {
		t.Error(err)
	}
}
