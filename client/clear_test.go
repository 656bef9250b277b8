package client_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/rackweave/rackweave/client"
	"github.com/rackweave/rackweave/service/api"
)

func TestATokenGoesInClearToAnotherHostOnlyIfTold(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // nothing is sent
	for call, do := range map[string]func(client.Config) error{
		"join":   func(c client.Config) error { _, err := client.Join(ctx, c); return err },
		"status": func(c client.Config) error { _, err := client.Status(ctx, c); return err },
		"drain":  func(c client.Config) error { _, err := client.Drain(ctx, c, 0); return err },
		"policy": func(c client.Config) error { _, err := client.SetPolicy(ctx, c, "asp"); return err },
		"trace":  func(c client.Config) error { _, err := client.Trace(ctx, c, time.Second, 0); return err },
		"links":  func(c client.Config) error { _, err := client.Links(ctx, c, ""); return err },
	} {
		for _, c := range []struct {
			server, token string
			insecure      bool
			goes          bool
		}{
			{"http://192.0.2.1:1", "secret", false, false},
			{"http://127.0.0.1.page.example:1", "secret", false, false},
			{"http://192.0.2.1:1", "", false, true},
			{"http://192.0.2.1:1", "secret", true, true},
			{"https://192.0.2.1:1", "secret", false, true},
			{"http://127.0.0.1:1", "secret", false, true},
			{"http://localhost:1", "secret", false, true},
			{"http://[::1]:1", "secret", false, true},
		} {
			err := do(client.Config{Server: c.server, Token: c.token, Insecure: c.insecure, Job: "j", Workers: 1, Provider: "tcp"})
			if err == nil || errors.Is(err, api.ErrInClear) == c.goes {
				t.Errorf("%s at %s with token %q, insecure %v: %v", call, c.server, c.token, c.insecure, err)
			}
		}
	}
}
