package service_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rackweave/rackweave/client"
	"github.com/rackweave/rackweave/service"
	"github.com/rackweave/rackweave/verbs"
)

func TestCheckpointsBelongToAToken(t *testing.T) {
	dir := t.TempDir()
	s, _ := serve(t, service.Options{CheckpointDir: dir})
	cfg := client.Config{Server: s.URL(), Job: "j", Workers: 1, Mode: "eager", Optimizer: "sgd_torch", Provider: verbs.ProviderTCP}
	runAs := func(token string, f func(*client.Worker)) {
		cfg.Token = token
		w, err := client.Join(within(t), cfg)
		if err != nil {
			t.Fatal(err)
		}
		registerAll(t, []*client.Worker{w}, 1000)
		f(w)
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	}
	runAs("first", func(w *client.Worker) {
		if _, err := w.Save(within(t), "c"); err != nil {
			t.Error(err)
		}
	})
	path := filepath.Join(dir, "j", "c.rwck")
	before, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	runAs("second", func(w *client.Worker) {
		if _, err := w.Save(within(t), "c"); !errors.Is(err, client.ErrRefused) || !strings.Contains(err.Error(), "to another token") {
			t.Errorf("save: %v", err)
		}
		if err := w.Restore(within(t), "c"); !errors.Is(err, client.ErrRefused) {
			t.Errorf("restore: %v", err)
		}
	})
	if after, err := os.ReadFile(path); err != nil || string(after) != string(before) {
		t.Errorf("the checkpoint has changed: %v", err)
	}
	runAs("first", func(w *client.Worker) {
		if err := w.Restore(within(t), "c"); err != nil {
			t.Error(err)
		}
	})
}

func TestACheckpointBeyondTheQuotaIsRefused(t *testing.T) {
	s, _ := serve(t, service.Options{CheckpointDir: t.TempDir(), Quota: service.Quota{CheckpointBytes: 5000}})
	workers := join(t, s, client.Config{Job: "j", Workers: 1, Mode: "eager", Optimizer: "sgd_torch", Provider: verbs.ProviderTCP})
	registerAll(t, workers, 1000)
	for _, c := range []struct {
		name string
		ok   bool
	}{{"a", true}, {"a", true}, {"b", false}} {
		if _, err := workers[0].Save(within(t), c.name); (err == nil) != c.ok {
			t.Errorf("save %q: %v", c.name, err)
		}
	}
}
