package service

import (
	"context"
	"errors"
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

// spreadAlone joins a job of one worker and tensor that is spread over two aggregators, and returns its parts.
func spreadAlone(t *testing.T, ctx context.Context, elems uint64) (parts []*job, w *client.Worker) {
	t.Helper()
	var services []*Service
	var urls []string
	for range 2 {
		s := start(t, Options{Listen: "127.0.0.1:0", CheckpointDir: t.TempDir()})
		services, urls = append(services, s), append(urls, s.URL())
	}
	w, err := client.Join(ctx, client.Config{Server: strings.Join(urls, ","), Job: "j", Workers: 1, Mode: "eager",
		Optimizer: "sgd_torch", Provider: verbs.ProviderTCP})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.Close() })
	if err := w.Register(ctx, []client.Tensor{{Name: "w", Shape: []uint64{elems}}}); err != nil {
		t.Fatal(err)
	}
	for _, s := range services {
		s.mu.Lock()
		parts = append(parts, s.jobs["j"])
		s.mu.Unlock()
	}
	return parts, w
}

// What calls about a job's state take in memory is charged first: a job that has used up its quota is refused, and what a call took
// is given back when it has ended.
func TestCallsAboutStateAreChargedBeforeTheyTakeMemory(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	parts, w := spreadAlone(t, ctx, 2*batchElems)
	there := parts[1]
	rpc := apiconnect.NewJobServiceClient(http.DefaultClient, there.s.URL(),
		api.Identify(func() string { return there.members[0].session }, there.token))
	var own []uint32 // the chunks at the second aggregator
	for id := range there.plan.NumChunks() {
		if there.plan.Chunk(id).Lane == 1 && len(own) < 16 {
			own = append(own, uint32(id))
		}
	}
	for _, tc := range []struct {
		name string
		of   *job
		call func() error
	}{
		{"an answer to a carried question", there, func() error {
			a, err := rpc.AnswerState(ctx, &api.AnswerStateRequest{Question: &api.StateQuestion{Kind: api.StateQuestion_READ, Chunks: own,
				Arrays: make([]uint32, len(own))}})
			if err == nil && len(a.Payload) == 0 {
				err = errors.New("no payload")
			}
			return err
		}},
		{"questions to carry", there, func() error { _, err := rpc.Carry(ctx, &api.CarryRequest{Carry: "c"}); return err }},
		{"a part of the state", there, func() error {
			_, err := rpc.ReadState(ctx, &api.ReadStateRequest{Carry: "c"})
			if connect.CodeOf(err) == connect.CodeCanceled || ctx.Err() != nil {
				t.Fatal(err)
			}
			return err
		}},
		{"a save", parts[0], func() error { _, err := w.Save(ctx, "c"); return err }},
	} {
		account := tc.of.account
		before := account.Used()[quota.Memory]
		if tc.name != "a part of the state" { // nobody carries the questions of that one
			if err := tc.call(); err != nil {
				t.Errorf("%s: %v", tc.name, err)
			}
			settled(t, tc.name, account, before)
		}
		rest := quota.Amounts{quota.Memory: account.Limit(quota.Memory) - before - 64<<10}
		if err := account.Charge(rest); err != nil {
			t.Fatal(err)
		}
		if err := tc.call(); connect.CodeOf(err) != connect.CodeResourceExhausted || !strings.Contains(err.Error(), "quota exceeded") {
			t.Errorf("%s, of a job whose quota is used up: %v", tc.name, err)
		}
		account.Return(rest)
		settled(t, tc.name, account, before)
	}
}

// settled waits until an account has what it had.
func settled(t *testing.T, what string, a *quota.Account, want int64) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); a.Used()[quota.Memory] != want; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: %d bytes are charged, %d were before", what, a.Used()[quota.Memory], want)
		}
	}
}
