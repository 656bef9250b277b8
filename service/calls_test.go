package service_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/rackweave/rackweave/service"
	"github.com/rackweave/rackweave/service/api"
	"github.com/rackweave/rackweave/service/api/apiconnect"
	"github.com/rackweave/rackweave/verbs"
)

// direct hands requests to a handler, and spares the network.
type direct struct{ http.Handler }

func (d direct) RoundTrip(r *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	in := httptest.NewRequestWithContext(r.Context(), r.Method, r.URL.Path, r.Body)
	in.Host, in.Header, in.ContentLength = r.Host, r.Header, r.ContentLength
	d.ServeHTTP(w, in)
	return w.Result(), r.Context().Err()
}

func FuzzCallsInAnyOrderDoWhatAReferenceDoes(f *testing.F) {
	f.Fuzz(rapid.MakeFuzz(callsInAnyOrder(f)))
}

// anyCall are the calls that a stranger or a tenant makes, but for those that wait for others.
var anyCall = []string{
	apiconnect.JobServiceJoinProcedure, apiconnect.JobServiceConnectProcedure, apiconnect.JobServiceResumeProcedure,
	apiconnect.JobServiceRegisterProcedure, apiconnect.JobServiceBarrierProcedure, apiconnect.JobServiceSaveProcedure,
	apiconnect.JobServiceRestoreProcedure, apiconnect.JobServiceReadStateProcedure, apiconnect.JobServiceWriteStateProcedure,
	apiconnect.JobServiceLeaveProcedure, apiconnect.JobServiceStatusProcedure, apiconnect.JobServiceSetPolicyProcedure,
	apiconnect.JobServiceSetCodecProcedure, apiconnect.JobServiceAcceptCodecsProcedure,
	apiconnect.JobServiceReportLossProcedure, apiconnect.JobServiceTraceProcedure, apiconnect.JobServiceWriteManifestProcedure,
	apiconnect.JobServiceReadManifestProcedure, apiconnect.JobServiceDrainProcedure, apiconnect.JobServiceLinksProcedure,
	apiconnect.RackServiceAskProcedure, apiconnect.DataServiceOpenProcedure, apiconnect.DataServiceNextProcedure,
	apiconnect.DataServiceStateProcedure, apiconnect.DataServiceStatusProcedure, "/metrics", "/grpc.health.v1.Health/Check", "/none",
}

// panics collects what the log tells of panics.
type panics struct {
	slog.Handler
	mu  sync.Mutex
	all []string
}

func (p *panics) Enabled(context.Context, slog.Level) bool { return true }

func (p *panics) Handle(_ context.Context, r slog.Record) error {
	if strings.Contains(r.Message, "panic") {
		p.mu.Lock()
		defer p.mu.Unlock()
		text := r.Message
		r.Attrs(func(a slog.Attr) bool { text += fmt.Sprint(" ", a); return true })
		p.all = append(p.all, text)
	}
	return nil
}

func (p *panics) WithAttrs([]slog.Attr) slog.Handler { return p }

// FuzzCallBodies makes calls with any bytes as their bodies, as nobody and as a member of a job. None may panic, and a body that is
// refused leaves the job as it was.
func FuzzCallBodies(f *testing.F) {
	log := &panics{}
	s, _ := serve(f, service.Options{Log: slog.New(log), CheckpointDir: f.TempDir()})
	h := s.Handler()
	for i, m := range []proto.Message{
		&api.JoinRequest{Job: "k", Workers: 1, Rank: -1, Mode: "eager", Optimizer: "sgd_torch", Providers: []string{verbs.ProviderTCP}},
		&api.ConnectRequest{Lanes: []*api.WorkerLane{{Endpoint: make([]byte, 48), Staging: 1}}}, &api.ResumeRequest{},
		&api.RegisterRequest{Tensors: []*api.Tensor{{Name: "w", Shape: []uint64{3}, Dtype: "f32"}}}, &api.BarrierRequest{Name: "b"},
		&api.SaveRequest{Name: "c"}, &api.RestoreRequest{}, &api.ReadStateRequest{}, &api.WriteStateRequest{}, &api.LeaveRequest{},
		&api.StatusRequest{}, &api.SetPolicyRequest{Job: "j", Policy: "asp"}, &api.ReportLossRequest{}, &api.TraceRequest{},
		&api.WriteManifestRequest{Name: "c", Manifest: &api.CheckpointManifest{Parts: []*api.CheckpointPart{{File: "c", Parts: 1}}}},
		&api.ReadManifestRequest{Name: "c"},
	} {
		b, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		text, err := protojson.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(uint8(i), true, false, b)
		f.Add(uint8(i), true, true, text)
		f.Add(uint8(i), false, false, b)
	}
	for procedure, text := range map[string]string{
		apiconnect.DataServiceOpenProcedure: `{"rows": 9, "batch": 2, "state": {"set": "train", "rows": 9, "deal": "queue", "cursor": 4,
			"returned": [{"from": 1, "to": 3}], "draws": [{"epoch": 1, "rows": [9]}]}}`,
		apiconnect.DataServiceNextProcedure: `{"seq": 1, "done": 1}`, apiconnect.DataServiceStateProcedure: `{"set": "train"}`,
	} {
		f.Add(uint8(slices.Index(anyCall, procedure)), true, true, []byte(text))
	}
	call := func(path, session string, asJSON bool, body []byte) *http.Response {
		ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
		defer cancel()
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://x"+path, bytes.NewReader(body))
		if err != nil {
			f.Fatal(err)
		}
		r.Header.Set("Content-Type", map[bool]string{false: "application/proto", true: "application/json"}[asJSON])
		if session != "" {
			r.Header.Set(api.SessionHeader, session)
		}
		resp, _ := direct{h}.RoundTrip(r) // the error is the deadline's
		return resp
	}
	session := func() string {
		resp := call(apiconnect.JobServiceJoinProcedure, "", true,
			[]byte(`{"job": "j", "workers": 1, "rank": -1, "mode": "aggregate", "providers": ["tcp"]}`))
		var joined struct{ Session string }
		json.NewDecoder(resp.Body).Decode(&joined)
		return joined.Session
	}
	member := ""
	f.Fuzz(func(t *testing.T, which uint8, asMember, asJSON bool, body []byte) {
		if member == "" {
			member = session()
		}
		id := ""
		if asMember {
			id = member
		}
		path := anyCall[int(which)%len(anyCall)]
		resp := call(path, id, asJSON, body)
		text, _ := io.ReadAll(resp.Body)
		var told struct{ Session, Code string }
		json.Unmarshal(text, &told)
		if told.Code == connect.CodeInternal.String() {
			t.Errorf("%s: %s", path, text)
		}
		if path == apiconnect.JobServiceJoinProcedure && resp.StatusCode == http.StatusOK {
			if !asJSON {
				var joined api.JoinResponse
				proto.Unmarshal(text, &joined)
				told.Session = joined.Session
			}
			call(apiconnect.JobServiceLeaveProcedure, told.Session, true, []byte("{}"))
		}
		if call(apiconnect.JobServiceBarrierProcedure, member, true, []byte(`{"name": "alive"}`)).StatusCode != http.StatusOK {
			member = "" // its job has ended, as the call wanted or for the worker's own fault
		}
		log.mu.Lock()
		defer log.mu.Unlock()
		if len(log.all) > 0 {
			t.Fatalf("%s: %s", path, log.all[0])
		}
	})
}
