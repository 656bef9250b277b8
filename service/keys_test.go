package service_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/rackweave/rackweave/client"
	"github.com/rackweave/rackweave/service"
	"github.com/rackweave/rackweave/service/api"
	"github.com/rackweave/rackweave/service/keys"
	"github.com/rackweave/rackweave/verbs"
)

// reachable runs an aggregator that listens on all addresses, and returns its URL on this host.
func reachable(t *testing.T, o service.Options) (s *service.Service, url string) {
	t.Helper()
	o.Listen, o.Unpinned, o.Providers = "0.0.0.0:0", true, []string{verbs.ProviderTCP}
	s, err := service.New(o)
	if err != nil {
		t.Fatal(err)
	}
	finished := make(chan struct{})
	go func() {
		s.Serve(context.Background())
		close(finished)
	}()
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		<-finished
	})
	return s, s.URL()
}

func TestAnAggregatorThatOtherHostsReachIsClosed(t *testing.T) {
	dir := t.TempDir()
	s, url := reachable(t, service.Options{Keys: dir})
	if !strings.HasPrefix(url, "https://") || s.Fingerprint() == "" {
		t.Fatalf("it is at %s, certificate %q", url, s.Fingerprint())
	}
	k, err := keys.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	token, err := k.Make(keys.Token{Job: "resnet", Workers: 2})
	if err != nil {
		t.Fatal(err)
	}
	admin, _, err := k.Admin()
	if err != nil {
		t.Fatal(err)
	}
	cfg := client.Config{Server: url, CA: s.Fingerprint(), Job: "resnet", Token: token, Workers: 2, Provider: verbs.ProviderTCP}
	for _, c := range []struct {
		name string
		edit func(*client.Config)
		want string
	}{
		{"no token", func(c *client.Config) { c.Token = "" }, "no token that is known here: give the job's"},
		{"a guessed token", func(c *client.Config) { c.Token = "guess" }, "no token that is known here: give the job's"},
		{"another job's name", func(c *client.Config) { c.Job = "bert" }, `job "bert" may not run here`},
		{"more workers", func(c *client.Config) { c.Workers = 3 }, "its quota is 2"},
		{"another fingerprint", func(c *client.Config) { c.CA = "sha256:" + strings.Repeat("0", 64) }, "certificate's fingerprint is"},
		{"no certificate", func(c *client.Config) { c.CA = "" }, "certificate"},
		{"no TLS", func(c *client.Config) { c.CA, c.Server = "", "http"+strings.TrimPrefix(url, "https") }, "https"},
	} {
		stranger := cfg
		c.edit(&stranger)
		if w, err := client.Join(within(t), stranger); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, %v, want it to say %q", c.name, w, err, c.want)
		}
	}
	join(t, s, cfg)
	for _, c := range []struct {
		token string
		jobs  int
	}{{token, 1}, {admin, 1}} {
		status, err := client.Status(within(t), client.Config{Server: url, CA: s.Fingerprint(), Token: c.token})
		if err != nil || len(status.Jobs) != c.jobs {
			t.Errorf("status: %v, %v", status, err)
		}
	}
	// The Unix socket of this user needs no token.
	if status, err := client.Status(within(t), client.Config{Server: url}); err != nil || len(status.Jobs) != 1 {
		t.Errorf("status over the Unix socket: %v, %v", status, err)
	}
	if _, err := client.Drain(within(t), client.Config{Server: url, CA: s.Fingerprint(), Token: token}, 0); !errors.Is(err,
		client.ErrRefused) {
		t.Errorf("drain by a tenant: %v", err)
	}
}

func TestInsecureLeavesTheDoorOpen(t *testing.T) {
	s, url := reachable(t, service.Options{Insecure: true})
	if !strings.HasPrefix(url, "http://") {
		t.Errorf("it is at %s", url)
	}
	join(t, s, client.Config{Job: "j", Workers: 1, Provider: verbs.ProviderTCP})
}

func TestMetricsOfAClosedAggregatorAreTheAdmins(t *testing.T) {
	s, url := reachable(t, service.Options{Keys: t.TempDir(), AdminToken: "admin"})
	trust, err := api.TrustOf(s.Fingerprint())
	if err != nil {
		t.Fatal(err)
	}
	h := &http.Client{Transport: &http.Transport{TLSClientConfig: trust, DisableKeepAlives: true}}
	for token, want := range map[string]int{"": http.StatusUnauthorized, "guess": http.StatusUnauthorized, "admin": http.StatusOK} {
		r, err := http.NewRequest(http.MethodGet, url+"/metrics", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer "+token)
		answer, err := h.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		answer.Body.Close()
		if answer.StatusCode != want {
			t.Errorf("token %q: %s", token, answer.Status)
		}
	}
}
