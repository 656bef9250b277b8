package service_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/rackweave/rackweave/client"
	"github.com/rackweave/rackweave/service"
	"github.com/rackweave/rackweave/verbs"
)

func TestADrainWaitsForJobsAndRefusesNewOnes(t *testing.T) {
	s, ended := serve(t, service.Options{})
	workers := join(t, s, client.Config{Job: "j", Workers: 2, Provider: verbs.ProviderTCP})
	if n, err := client.Drain(within(t), client.Config{Server: s.URL()}, 0); n != 1 || err != nil {
		t.Errorf("drain: %d jobs, %v", n, err)
	}
	_, err := client.Join(within(t), client.Config{Server: s.URL(), Job: "new", Workers: 1, Provider: verbs.ProviderTCP})
	if err == nil || !strings.Contains(err.Error(), "draining") {
		t.Errorf("join while draining: %v", err)
	}
	sumOnce(t, workers, 1000) // the job goes on
	select {
	case err := <-ended:
		t.Fatalf("the service ended before its job: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	for _, w := range workers {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	}
	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(deadline):
		t.Fatal("the service did not end with its last job")
	}
}

func TestADrainEndsJobsWhenItsTimeIsUp(t *testing.T) {
	s, ended := serve(t, service.Options{AdminToken: "admin"})
	workers := join(t, s, client.Config{Job: "j", Workers: 1, Provider: verbs.ProviderTCP})
	if _, err := client.Drain(within(t), client.Config{Server: s.URL(), Token: "guess"}, 0); !errors.Is(err, client.ErrRefused) {
		t.Errorf("a guessed admin token: %v", err)
	}
	if _, err := client.Drain(within(t), client.Config{Server: s.URL(), Token: "admin"}, 20*time.Millisecond); err != nil {
		t.Error(err)
	}
	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(deadline):
		t.Fatal("the service did not end")
	}
	select {
	case <-workers[0].Failed():
	case <-time.After(deadline):
		t.Fatal("the worker was not notified")
	}
}
