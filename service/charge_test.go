package service

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/rackweave/rackweave/client"
	"github.com/rackweave/rackweave/service/api"
	"github.com/rackweave/rackweave/service/api/apiconnect"
	"github.com/rackweave/rackweave/service/quota"
	"github.com/rackweave/rackweave/verbs"
)

// What calls about a job's state take in memory is charged first: a job that has used up its quota is refused, and what a call took
// is given back when it has ended.
func TestCallsAboutStateAreChargedBeforeTheyTakeMemory(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	s, w := trainAlone(t, ctx, 2<<18)
	j := s.jobs.Find("j")
	rpc := apiconnect.NewJobServiceClient(http.DefaultClient, s.URL(),
		api.Identify(func() string { return j.Members[0].Session }, j.Token))
	for name, call := range map[string]func() error{
		"a part of the state": func() error { _, err := rpc.ReadState(ctx, &api.ReadStateRequest{}); return err },
		"a save":              func() error { _, err := w.Save(ctx, "c"); return err },
	} {
		before := j.Account.Used()[quota.Memory]
		if err := call(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		settled(t, name, j.Account, before)
		rest := quota.Amounts{quota.Memory: j.Account.Limit(quota.Memory) - before - 64<<10}
		if err := j.Account.Charge(rest); err != nil {
			t.Fatal(err)
		}
		if err := call(); connect.CodeOf(err) != connect.CodeResourceExhausted || !strings.Contains(err.Error(), "quota exceeded") {
			t.Errorf("%s, of a job whose quota is used up: %v", name, err)
		}
		j.Account.Return(rest)
		settled(t, name, j.Account, before)
	}
}

// settled waits until an account has what it had.
func settled(t *testing.T, what string, a *quota.Account, want int64) {
	t.Helper()
	for end := time.Now().Add(2 * time.Minute); a.Used()[quota.Memory] != want; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: %d bytes are charged, %d were before", what, a.Used()[quota.Memory], want)
		}
	}
}

// Calls that keep nothing take memory all the same while they are under way or their answers wait for a reader.
func TestCallsThatKeepNothingAreChargedWhileTheyAreUnderWay(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	s := start(t, Options{Listen: "127.0.0.1:0"})
	w, err := client.Join(ctx, client.Config{Server: s.URL(), Job: "j", Token: "t", Workers: 1, Mode: "aggregate",
		Provider: verbs.ProviderTCP})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.Close() })
	j := s.jobs.Find("j")
	const statusCost = 4<<10 + 512 + 4
	as := func(session string) apiconnect.JobServiceClient {
		return apiconnect.NewJobServiceClient(http.DefaultClient, s.URL(), api.Identify(func() string { return session }, "t"))
	}
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	member, tenant := as(j.Members[0].Session), as("")
	before := j.Account.Used()[quota.Memory]
	for _, tc := range []struct {
		name string
		left int64 // of the quota
		call func() error
	}{
		{"a barrier", callCost - 1, func() error {
			_, err := member.Barrier(ctx, &api.BarrierRequest{Name: "b"})
			return err
		}},
		{"a worker's status", callCost + statusCost - 1, func() error {
			_, err := member.Status(ctx, &api.StatusRequest{})
			return err
		}},
		{"a tenant's status", statusCost - 1, func() error {
			_, err := tenant.Status(ctx, &api.StatusRequest{})
			return err
		}},
		{"a trace", mostEvents * 200, func() error {
			_, err := tenant.Trace(ctx, &api.TraceRequest{Job: "j", DurationMs: 1, Events: mostEvents})
			return err
		}},
	} {
		if err := tc.call(); err != nil {
			t.Errorf("%s: %v", tc.name, err)
		}
		settled(t, tc.name, j.Account, before)
		rest := quota.Amounts{quota.Memory: j.Account.Limit(quota.Memory) - before - tc.left}
		if err := j.Account.Charge(rest); err != nil {
			t.Fatal(err)
		}
		if err := tc.call(); connect.CodeOf(err) != connect.CodeResourceExhausted || !strings.Contains(err.Error(), "quota exceeded") {
			t.Errorf("%s, of a job whose quota is used up: %v", tc.name, err)
		}
		j.Account.Return(rest)
		settled(t, tc.name, j.Account, before)
	}
}
