package service

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/rackweave/rackweave/client"
	"github.com/rackweave/rackweave/service/api"
	"github.com/rackweave/rackweave/service/api/apiconnect"
	"github.com/rackweave/rackweave/service/job"
	"github.com/rackweave/rackweave/service/quota"
	"github.com/rackweave/rackweave/verbs"
)

// observed returns a service with a job of one worker, and an observer's calls.
func observed(t *testing.T, elems uint64) (*Service, *job.Job, *client.Worker, apiconnect.JobServiceClient) {
	t.Helper()
	s := start(t, Options{Listen: "127.0.0.1:0", Cores: 1})
	w, err := client.Join(t.Context(), client.Config{Server: s.URL(), Job: "j", Token: "secret", Workers: 1, Mode: "eager",
		Optimizer: "sgd_torch", Provider: verbs.ProviderTCP})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.Close() }) // its job may have failed
	if err := w.Register(t.Context(), []client.Tensor{{Name: "w", Shape: []uint64{elems}}}); err != nil {
		t.Fatal(err)
	}
	return s, s.jobs.Find("j"), w, withToken(t, s, "secret")
}

func withToken(t *testing.T, s *Service, token string) apiconnect.JobServiceClient {
	h := &http.Client{Transport: &http.Transport{}}
	t.Cleanup(h.CloseIdleConnections)
	return apiconnect.NewJobServiceClient(h, s.URL(), api.Identify(func() string { return "" }, token))
}

func codeOf(err error) connect.Code {
	c := new(connect.Error)
	errors.As(err, &c)
	return c.Code()
}

func used(j *job.Job) int64 { return j.Account.Used()[quota.Memory] }

func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(2 * time.Minute); !holds(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal(what)
		}
	}
}

// A capture is charged before it begins, and gives everything back when its caller has gone.
func TestACaptureIsChargedAndGivesBack(t *testing.T) {
	s, j, w, rpc := observed(t, 1<<20)
	before := used(j)
	ctx, leave := context.WithCancel(t.Context())
	stream, err := rpc.Capture(ctx, &api.CaptureRequest{Job: "j"})
	if err != nil {
		t.Fatal(err)
	}
	if !stream.Receive() || stream.Msg().Step != 1 || len(stream.Msg().Tensors) != 1 {
		t.Fatalf("the answer begins with %v, error %v", stream.Msg(), stream.Err())
	}
	if got := used(j) - before; got < 4<<20 {
		t.Errorf("a capture of 4 MiB is charged %d bytes", got)
	}
	if !stream.Receive() || len(stream.Msg().Data) > 0 { // tells that the aggregator waits
		t.Errorf("then comes %v, error %v", stream.Msg(), stream.Err())
	}
	leave()
	eventually(t, "the capture goes on without its caller", func() bool { return len(j.Capturing) == 0 && used(j) == before })
	stream.Close()

	s.TakeAway(quota.Memory, (j.Account.Limit(quota.Memory)-used(j))/7*8-1<<20) // a job leaves an eighth to others
	stream, err = rpc.Capture(t.Context(), &api.CaptureRequest{Job: "j"})
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	if stream.Receive() || codeOf(stream.Err()) != connect.CodeResourceExhausted || !strings.Contains(stream.Err().Error(), "quota") {
		t.Errorf("a capture without room for it: %v, error %v", stream.Msg(), stream.Err())
	}
	if err := w.Close(); err != nil {
		t.Error(err)
	}
}

// The copy of a slow reader is charged and grows no more, and the workers go on.
func TestASlowReaderOfACaptureHoldsNobodyUp(t *testing.T) {
	const elems = 1 << 20
	s, j, w, fast := observed(t, elems)
	h := &http.Client{Transport: &http.Transport{Protocols: new(http.Protocols), HTTP2: &http.HTTP2Config{
		MaxReceiveBufferPerConnection: 64 << 10, MaxReceiveBufferPerStream: 64 << 10,
	}}}
	h.Transport.(*http.Transport).Protocols.SetUnencryptedHTTP2(true)
	t.Cleanup(h.CloseIdleConnections)
	rpc := apiconnect.NewJobServiceClient(h, s.URL(), api.Identify(func() string { return "" }, "secret"))
	before := used(j)
	stream, err := rpc.Capture(t.Context(), &api.CaptureRequest{Job: "j"})
	if err != nil || !stream.Receive() {
		t.Fatal(err, stream.Err())
	}
	defer stream.Close()
	held := used(j) - before
	if held < 4*elems || held > 4*elems+16<<20 {
		t.Errorf("a capture of 4 MiB is charged %d bytes", held)
	}
	gradient, parameters := make([]float32, elems), make([]float32, elems)
	step := func(n int) {
		for i := range gradient {
			gradient[i] = float32(n*i%97) - 40
		}
		h, err := w.PushPull(0, client.Bytes(gradient), client.Bytes(parameters), 0)
		if err == nil {
			err = h.Wait(t.Context())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	var want []float32
	for n := range 20 {
		if step(n); n == 0 {
			want = slices.Clone(parameters)
		}
		if got := used(j) - before; got != held {
			t.Fatalf("after step %d the unread capture is charged %d bytes, at first %d", n+1, got, held)
		}
	}
	other, err := fast.Capture(t.Context(), &api.CaptureRequest{Job: "j"})
	if err != nil || !other.Receive() {
		t.Fatal(err, other.Err())
	}
	defer other.Close()
	step(20)
	step(21)
	n := 0
	for other.Receive() {
		n += len(other.Msg().Data)
	}
	if n != 4*elems || other.Err() != nil {
		t.Errorf("meanwhile another observer has %d bytes, error %v", n, other.Err())
	}
	var got []byte
	for stream.Receive() {
		got = append(got, stream.Msg().Data...)
	}
	if stream.Err() != nil || !bytes.Equal(got, client.Bytes(want)) {
		t.Errorf("%d bytes that are not those of step 1, error %v", len(got), stream.Err())
	}
	eventually(t, "what is read is still charged", func() bool { return used(j) == before })
	if err := w.Close(); err != nil {
		t.Error(err)
	}
}

func TestACaptureEndsWithItsJob(t *testing.T) {
	for _, tc := range []struct {
		name string
		end  func(*testing.T, *job.Job, *client.Worker)
		want connect.Code
	}{
		{"the workers leave", func(t *testing.T, _ *job.Job, w *client.Worker) {
			if err := w.Close(); err != nil {
				t.Error(err)
			}
		}, connect.CodeNotFound},
		{"the job fails", func(_ *testing.T, j *job.Job, _ *client.Worker) { j.Agg.Fail(0, errors.New("its disk is full")) },
			connect.CodeAborted},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, j, w, rpc := observed(t, 1000)
			stream, err := rpc.Capture(t.Context(), &api.CaptureRequest{Job: "j"})
			if err != nil || !stream.Receive() {
				t.Fatal(err, stream.Err())
			}
			defer stream.Close()
			tc.end(t, j, w)
			for stream.Receive() {
			}
			if codeOf(stream.Err()) != tc.want {
				t.Errorf("error %v, want code %v", stream.Err(), tc.want)
			}
		})
	}
}

func TestOnlyObserversMaySendLongReports(t *testing.T) {
	s, _, _, rpc := observed(t, 1000)
	report := &api.ReportLossRequest{Job: "j", GroupLosses: make([]float64, 1<<16)}
	// A server reads 256 KiB of what it refuses, so that the answer reaches who still writes.
	short := &api.ReportLossRequest{Job: "j", GroupLosses: report.GroupLosses[:1<<14]}
	_, err := withToken(t, s, "another").ReportLoss(t.Context(), short)
	if codeOf(err) != connect.CodePermissionDenied || !strings.Contains(err.Error(), "no job here has this token") {
		t.Errorf("error %v", err)
	}
	if _, err := rpc.ReportLoss(t.Context(), report); err != nil {
		t.Error(err)
	}
}
