package service_test

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"testing"

	"connectrpc.com/connect"
	"pgregory.net/rapid"

	"github.com/rackweave/rackweave/service"
	"github.com/rackweave/rackweave/service/api"
	"github.com/rackweave/rackweave/service/api/apiconnect"
	"github.com/rackweave/rackweave/verbs"
)

// modelJob is what the reference knows of a job of one worker.
type modelJob struct{ token, session string }

// gone are the codes of calls with a session that has left: what is left of it goes away in its own time.
var gone = []connect.Code{connect.CodeUnauthenticated, connect.CodeFailedPrecondition, connect.CodeAborted}

func TestCallsInAnyOrderDoWhatAReferenceDoes(t *testing.T) { rapid.Check(t, callsInAnyOrder(t)) }

// callsInAnyOrder makes random calls from many sessions, with tokens and sessions of each other's.
func callsInAnyOrder(t testing.TB) func(*rapid.T) {
	s, _ := serve(t, service.Options{MaxJobs: 4})
	as := func(session, token string) apiconnect.JobServiceClient {
		return apiconnect.NewJobServiceClient(&http.Client{Transport: direct{s.Handler()}}, "http://x",
			api.Identify(func() string { return session }, token))
	}
	run := 0
	return func(r *rapid.T) {
		ctx, cancel := context.WithTimeout(context.Background(), deadline)
		defer cancel()
		run++
		jobs := map[string]modelJob{}
		sessions := []string{"", "nobody"} // that are or were
		left := map[string]bool{}
		name := func(n int) string { return fmt.Sprintf("j%d-%d", run, n) }
		live := func(session string) bool {
			return slices.ContainsFunc(sessions[2:], func(o string) bool { return o == session }) && !left[session]
		}
		want := func(what string, err error, ok bool, codes ...connect.Code) {
			if ok != (err == nil) || err != nil && !slices.Contains(codes, connect.CodeOf(err)) {
				r.Fatalf("%s: %v, want success: %v, or one of %v", what, err, ok, codes)
			}
		}
		for range rapid.IntRange(1, 25).Draw(r, "calls") {
			job := name(rapid.IntRange(0, 2).Draw(r, "job"))
			token := rapid.SampledFrom([]string{"", "a", "b"}).Draw(r, "token")
			session := rapid.SampledFrom(sessions).Draw(r, "session")
			there, running := jobs[job]
			switch rapid.SampledFrom([]string{"join", "barrier", "register", "leave", "save", "read", "status", "policy"}).Draw(r, "call") {
			case "join":
				joined, err := as("", token).Join(ctx, &api.JoinRequest{Job: job, Rank: -1, Workers: 1, Mode: "aggregate",
					Providers: []string{verbs.ProviderTCP}, TimeoutMs: 20_000})
				if running && token != there.token {
					want("join with another token", err, false, connect.CodePermissionDenied)
					continue
				}
				want("join", err, !running, connect.CodeResourceExhausted)
				if err == nil {
					jobs[job] = modelJob{token, joined.Session}
					sessions = append(sessions, joined.Session)
				}
			case "barrier":
				_, err := as(session, token).Barrier(ctx, &api.BarrierRequest{Name: "b"})
				want("barrier", err, live(session), gone...)
			case "register":
				_, err := as(session, token).Register(ctx, &api.RegisterRequest{Tensors: []*api.Tensor{{Name: "w", Dtype: "f32"}}})
				want("register, not connected", err, false, gone...)
			case "save":
				_, err := as(session, token).Save(ctx, &api.SaveRequest{Name: "c"})
				want("save, nowhere", err, false, gone...)
			case "read":
				_, err := as(session, token).ReadState(ctx, &api.ReadStateRequest{})
				want("read, no tensors", err, false, append(gone, connect.CodeInvalidArgument)...)
			case "leave":
				_, err := as(session, token).Leave(ctx, &api.LeaveRequest{})
				want("leave", err, live(session) || left[session] && err == nil, connect.CodeUnauthenticated)
				if live(session) {
					left[session] = true
					for n, j := range jobs {
						if j.session == session {
							delete(jobs, n)
						}
					}
				}
			case "status":
				status, err := as("", token).Status(ctx, &api.StatusRequest{})
				want("status", err, true)
				for _, j := range status.Jobs {
					if own, ok := jobs[j.Name]; ok && j.State == "running" && (token == "" || own.token != token) {
						r.Fatalf("the status for token %q tells of job %q with token %q", token, j.Name, own.token)
					}
				}
			case "policy":
				_, err := as("", token).SetPolicy(ctx, &api.SetPolicyRequest{Job: job, Policy: "asp"})
				if running && token == there.token && token != "" { // an empty token owns nothing
					want("set policy of a synchronous job", err, false, connect.CodeFailedPrecondition, connect.CodeInvalidArgument)
				} else {
					want("set policy of another's job", err, false, connect.CodePermissionDenied)
				}
			}
		}
		for _, j := range jobs {
			_, err := as(j.session, j.token).Leave(ctx, &api.LeaveRequest{})
			want("leave at the end", err, true)
		}
	}
}
