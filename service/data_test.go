package service_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

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

// The second reader of a set takes it from the first, which learns of that: the two never train on one batch.
func TestASecondReaderOfASetEndsTheFirst(t *testing.T) {
	s, _ := serve(t, service.Options{})
	d := dealer(s, members(t, s, "j", "stream", 1)[0], "")
	for _, reader := range []string{"a", "b"} {
		if _, err := d.Open(within(t), &api.OpenDataRequest{Rows: 9, Batch: 3, Incarnation: reader}); err != nil {
			t.Fatal(err)
		}
	}
	if r, err := d.Next(within(t), &api.NextRowsRequest{Seq: 1, Incarnation: "b"}); err != nil || len(r.Rows) != 24 {
		t.Errorf("%v (%v), want 3 rows", r, err)
	}
	_, err := d.Next(within(t), &api.NextRowsRequest{Seq: 1, Incarnation: "a"})
	if connect.CodeOf(err) != connect.CodeAborted || !strings.Contains(err.Error(), "give each reader a set of its own") {
		t.Errorf("the first reader: %v", err)
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

func TestAServiceBesideDealsRowsAlone(t *testing.T) {
	journal := filepath.Join(t.TempDir(), "journal")
	var session string
	var first []byte
	for life := range 2 {
		s, _ := serve(t, service.Options{Beside: &service.Beside{Journal: journal, JournalBytes: 1 << 20}, Providers: []string{}})
		if life == 0 {
			d := overHTTP(t, s, "", "")
			opened, err := d.Open(within(t), &api.OpenDataRequest{Job: "j", Workers: 2, Incarnation: "a", Rows: 10, Batch: 4})
			if err != nil {
				t.Fatal(err)
			}
			session = opened.Session
		}
		d := overHTTP(t, s, session, "")
		_, err := overHTTP(t, s, "nobody", "").Next(within(t), &api.NextRowsRequest{Seq: 1})
		if connect.CodeOf(err) != connect.CodeAborted {
			t.Errorf("a batch for nobody: %v", err)
		}
		r, err := d.Next(within(t), &api.NextRowsRequest{Seq: 1})
		if err != nil || len(r.Rows) != 32 || life > 0 && !bytes.Equal(r.Rows, first) {
			t.Errorf("life %d: rows %d (%v), want %d", life, numbers(r.GetRows()), err, numbers(first))
		}
		first = r.GetRows()
		status, err := d.Status(within(t), &api.DataStatusRequest{})
		if err != nil || len(status.Sets) != 1 || status.Sets[0].Job != "j" || status.Sets[0].Dealt[0] != 4 {
			t.Errorf("status %v (%v)", status, err)
		}
		if _, err := s.Join(within(t), &api.JoinRequest{Job: "j", Workers: 1, Rank: -1, TimeoutMs: 1}); err == nil {
			t.Error("a worker joins a job of a service that has no engines")
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}

// overHTTP returns a client over a connection.
func overHTTP(t testing.TB, s *service.Service, session, token string) apiconnect.DataServiceClient {
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	return apiconnect.NewDataServiceClient(&http.Client{Transport: transport}, s.URL(),
		api.Identify(func() string { return session }, token))
}

func TestAServiceBesideAsksForTheTokensOfJobs(t *testing.T) {
	s, _ := serve(t, service.Options{Beside: &service.Beside{}, Jobs: map[string]string{"j": "secret"}, Providers: []string{}})
	open := &api.OpenDataRequest{Job: "j", Workers: 1, Incarnation: "a", Rows: 10, Batch: 4}
	if _, err := overHTTP(t, s, "", "guess").Open(within(t), open); connect.CodeOf(err) != connect.CodePermissionDenied {
		t.Errorf("another's token: %v", err)
	}
	if _, err := overHTTP(t, s, "", "secret").Open(within(t), open); err != nil {
		t.Error(err)
	}
	if status, err := overHTTP(t, s, "", "guess").Status(within(t), &api.DataStatusRequest{}); err != nil || len(status.Sets) > 0 {
		t.Errorf("the status with another's token: %v (%v)", status, err)
	}
	open.Job = "k"
	if _, err := overHTTP(t, s, "", "secret").Open(within(t), open); connect.CodeOf(err) != connect.CodePermissionDenied {
		t.Errorf("another job: %v", err)
	}
}

// BenchmarkNext measures calls of 64 workers. Each takes a batch for every step of 100 ms.
func BenchmarkNext(b *testing.B) {
	for _, journal := range []string{"", filepath.Join(b.TempDir(), "journal")} {
		b.Run(fmt.Sprintf("workers=64,journal=%v", journal != ""), func(b *testing.B) {
			const workers, step = 64, 100 * time.Millisecond
			s, _ := serve(b, service.Options{Beside: &service.Beside{Journal: journal, JournalBytes: 1 << 30}, Providers: []string{}})
			clients := make([]apiconnect.DataServiceClient, workers)
			for rank := range clients {
				opened, err := overHTTP(b, s, "", "").Open(within(b), &api.OpenDataRequest{Job: "j", Workers: workers, Rank: uint32(rank),
					Incarnation: "a", Rows: 100e6, Batch: 256})
				if err != nil {
					b.Fatal(err)
				}
				clients[rank] = overHTTP(b, s, opened.Session, "")
				if _, err := clients[rank].Next(within(b), &api.NextRowsRequest{Seq: 1}); err != nil { // over a connection that stays
					b.Fatal(err)
				}
			}
			took := make([][]time.Duration, workers)
			var wg sync.WaitGroup
			b.ResetTimer()
			for rank, d := range clients {
				wg.Go(func() {
					begin := time.Now().Add(step * time.Duration(rank) / workers)
					for seq := uint64(2); seq < 2+uint64(b.N); seq++ {
						time.Sleep(time.Until(begin.Add(step * time.Duration(seq-1))))
						at := time.Now()
						if _, err := d.Next(context.Background(), &api.NextRowsRequest{Seq: seq, Done: seq - 1}); err != nil {
							b.Error(err)
							return
						}
						took[rank] = append(took[rank], time.Since(at))
					}
				})
			}
			wg.Wait()
			all := slices.Concat(took...)
			slices.Sort(all)
			b.ReportMetric(float64(all[len(all)/2].Microseconds()), "p50-us")
			b.ReportMetric(float64(all[len(all)*99/100].Microseconds()), "p99-us")
			b.ReportMetric(100*all[len(all)*99/100].Seconds()/step.Seconds(), "p99-%-of-step")
		})
	}
}
