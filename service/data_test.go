package service_test

import (
	"encoding/binary"
	"net/http"
	"slices"
	"strings"
	"testing"

	"connectrpc.com/connect"

	"github.com/rackweave/rackweave/service"
	"github.com/rackweave/rackweave/service/api"
	"github.com/rackweave/rackweave/service/api/apiconnect"
	"github.com/rackweave/rackweave/verbs"
)

// dealer returns a client of the calls that deal rows, with a session.
func dealer(s *service.Service, session, token string) apiconnect.DataServiceClient {
	return apiconnect.NewDataServiceClient(&http.Client{Transport: direct{s.Handler()}}, "http://x",
		api.Identify(func() string { return session }, token))
}

// numbers reads an answer's rows.
func numbers(b []byte) (rows []uint64) {
	for ; len(b) > 0; b = b[8:] {
		rows = append(rows, binary.LittleEndian.Uint64(b))
	}
	return rows
}

// members joins a job of workers without connections.
func members(t testing.TB, s *service.Service, job, mode string, workers int) (sessions []string) {
	t.Helper()
	joined := make(chan string, workers)
	for rank := range workers {
		go func() {
			r, err := s.Join(within(t), &api.JoinRequest{Job: job, Rank: int32(rank), Workers: uint32(workers), Mode: mode,
				Providers: []string{verbs.ProviderTCP}, Optimizer: map[string]string{"stream": "sgd_torch"}[mode]})
			if err != nil {
				t.Error(err)
			}
			joined <- r.GetSession()
		}()
	}
	for range workers {
		sessions = append(sessions, <-joined)
	}
	if t.Failed() {
		t.FailNow()
	}
	return sessions
}

func TestAJobsWorkersTakeTheRowsOfItsSets(t *testing.T) {
	s, _ := serve(t, service.Options{})
	for _, mode := range []string{"aggregate", "stream"} {
		var got []uint64
		for i, session := range members(t, s, mode, mode, 2) { // two jobs with one name of a set
			d := dealer(s, session, "")
			opened, err := d.Open(within(t), &api.OpenDataRequest{Rows: 10, Batch: 3, Seed: 7})
			if err != nil {
				t.Fatal(err)
			}
			if opened.Synchronous != (mode == "aggregate") || opened.Workers != 2 || opened.Steps != 2 || opened.Session != "" {
				t.Errorf("%v", opened)
			}
			for seq := uint64(1); seq <= 2; seq++ {
				r, err := d.Next(within(t), &api.NextRowsRequest{Seq: seq, Done: seq - 1})
				if err != nil {
					t.Fatal(err)
				}
				got = append(got, numbers(r.Rows)...)
				if want := float64(len(r.Rows)/8) / 3; r.Weight != want {
					t.Errorf("weight %v of %d rows: want %v", r.Weight, len(r.Rows)/8, want)
				}
			}
			state, err := d.State(within(t), &api.DataStateRequest{Set: "train"})
			if err != nil || state.State.Seed != 7 ||
				i == 1 && mode == "stream" && (state.State.Cursor != 9 || len(state.State.Returned) != 1) {
				t.Errorf("state %v (%v)", state, err)
			}
		}
		slices.Sort(got)
		if want := []uint64{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}; !slices.Equal(got, want) {
			t.Errorf("the workers got rows %d, not each once", got)
		}
	}
	if _, err := dealer(s, "", "").Next(within(t), &api.NextRowsRequest{Seq: 1}); connect.CodeOf(err) != connect.CodeUnauthenticated {
		t.Errorf("a batch for nobody: %v", err)
	}
}

func TestLeasesOfALostWorkerReturn(t *testing.T) {
	s, _ := serve(t, service.Options{})
	session := members(t, s, "j", "stream", 2)
	a, b := dealer(s, session[0], ""), dealer(s, session[1], "")
	open := &api.OpenDataRequest{Rows: 4, Batch: 2}
	for _, d := range []apiconnect.DataServiceClient{a, b} {
		if _, err := d.Open(within(t), open); err != nil {
			t.Fatal(err)
		}
		if r, err := d.Next(within(t), &api.NextRowsRequest{Seq: 1}); err != nil || len(r.Rows) != 16 {
			t.Fatal(r, err)
		}
	}
	held, err := a.Next(within(t), &api.NextRowsRequest{Seq: 1})
	if err != nil {
		t.Fatal(err)
	}
	as := apiconnect.NewJobServiceClient(&http.Client{Transport: direct{s.Handler()}}, "http://x",
		api.Identify(func() string { return session[0] }, ""))
	if _, err := as.Leave(within(t), &api.LeaveRequest{}); err != nil {
		t.Fatal(err)
	}
	var got []uint64
	for seq := uint64(2); ; seq++ {
		r, err := b.Next(within(t), &api.NextRowsRequest{Seq: seq, Done: seq - 1})
		if err != nil {
			t.Fatal(err)
		}
		if got = append(got, numbers(r.Rows)...); r.End {
			break
		}
	}
	if !slices.Equal(got, numbers(held.Rows)) {
		t.Errorf("the worker that is left got rows %d, the lost one had %d", got, numbers(held.Rows))
	}
}

func TestSetsAreRefusedByName(t *testing.T) {
	s, _ := serve(t, service.Options{DataDir: t.TempDir()})
	d := dealer(s, members(t, s, "j", "aggregate", 1)[0], "")
	for want, r := range map[string]*api.OpenDataRequest{
		`set name "a/b"`:                       {Set: "a/b", Rows: 1, Batch: 1},
		"deal \"wheel\": use queue":            {Rows: 1, Batch: 1, Deal: "wheel"},
		"batch of 0 rows":                      {Rows: 1},
		"give a manifest, or 1 to 2^40 rows":   {Batch: 1},
		`"../m": name a file in the service's`: {Manifest: "../m", Batch: 1},
		`"m": no such file or directory`:       {Manifest: "m", Batch: 1},
		"deal shards without a manifest":       {Rows: 1, Batch: 1, Deal: "shards"},
		"favour -1":                            {Rows: 1, Batch: 1, Favour: -1},
		"the state to go on from has seed 3":   {Rows: 1, Batch: 1, State: &api.DataState{Set: "train", Deal: "queue", Rows: 1, Seed: 3}},
	} {
		if _, err := d.Open(within(t), r); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %q", r, err, want)
		}
	}
	if _, err := d.Next(within(t), &api.NextRowsRequest{Set: "other", Seq: 1}); connect.CodeOf(err) != connect.CodeNotFound {
		t.Errorf("a batch of a set that nobody opened: %v", err)
	}
}
