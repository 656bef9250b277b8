package service_test

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/proto"

	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/client"
	"github.com/rackweave/rackweave/service"
	"github.com/rackweave/rackweave/service/api"
	"github.com/rackweave/rackweave/verbs"
)

func TestMetricsCountWhatWasExchanged(t *testing.T) {
	s, _ := serve(t, service.Options{Cores: 1})
	workers := join(t, s, client.Config{Job: "j", Workers: 2, Provider: verbs.ProviderTCP})
	const elems = 100_000
	sumOnce(t, workers, elems)
	pedantic := prometheus.NewPedanticRegistry()
	if err := pedantic.Register(s.Collector()); err != nil {
		t.Fatal(err)
	}
	values := func() map[string]float64 {
		families, err := pedantic.Gather()
		if err != nil {
			t.Fatal(err)
		}
		out := map[string]float64{}
		for _, f := range families {
			for _, m := range f.Metric {
				switch {
				case m.Histogram != nil:
					out[f.GetName()] += float64(m.Histogram.GetSampleCount())
				case m.Counter != nil:
					out[f.GetName()] += m.Counter.GetValue()
				default:
					out[f.GetName()] += m.Gauge.GetValue()
				}
			}
		}
		return out
	}
	// Lanes publish now and then.
	var got map[string]float64
	for end := time.Now().Add(deadline); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if got = values(); got["rackweave_lane_chunks_total"] >= 13 {
			break
		}
	}
	chunks := float64((elems*4 + 32767) / 32768)
	const records = 2 * chunk.RecordBytes // each worker says once where answers go
	for name, want := range map[string]float64{
		"rackweave_lane_received_bytes_total":   2*elems*4 + records,
		"rackweave_lane_sent_bytes_total":       2 * elems * 4,
		"rackweave_lane_chunks_total":           chunks,
		"rackweave_lane_chunk_latency_seconds":  chunks,
		"rackweave_lane_slots_held":             0,
		"rackweave_lane_chunks_open":            0,
		"rackweave_worker_received_bytes_total": 2*elems*4 + records,
		"rackweave_worker_last_arrivals_total":  chunks,
		"rackweave_job_workers":                 2,
		"rackweave_job_tensors":                 1,
		"rackweave_job_model_bytes":             elems * 4,
		"rackweave_jobs_started_total":          1,
		"rackweave_jobs_failed_total":           0,
	} {
		if got[name] != want {
			t.Errorf("%s is %v, want %v", name, got[name], want)
		}
	}
	tr := &http.Transport{DisableKeepAlives: true}
	resp, err := (&http.Client{Transport: tr}).Get(s.URL() + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	page, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`rackweave_worker_received_bytes_total{host=`, `rackweave_lane_chunk_latency_seconds_bucket{cpu="-1",`, `le="+Inf"`,
		"go_goroutines", "process_resident_memory_bytes",
	} {
		if !bytes.Contains(page, []byte(want)) {
			t.Errorf("the page lacks %s", want)
		}
	}
}

// All elements by index are longer than raw values, so these travel.
func TestStatusAndMetricsTellWhatCodecsSend(t *testing.T) {
	s, _ := serve(t, service.Options{Cores: 1})
	workers := join(t, s, client.Config{Job: "j", Workers: 2, Provider: verbs.ProviderTCP, Compress: "topk:100%/none"})
	const elems = 100_000
	sumOnce(t, workers, elems)
	chunks := uint64(elems*4+32767) / 32768
	want := &api.Coding{Payloads: chunks, RawPayloads: chunks, Bytes: elems * 4, RawBytes: elems * 4}
	for end := time.Now().Add(deadline); ; time.Sleep(5 * time.Millisecond) { // lanes publish now and then
		r, err := s.Status(within(t), nil)
		if err != nil || len(r.Jobs) != 1 {
			t.Fatalf("%v, %v", r, err)
		}
		j, m := r.Jobs[0], r.Jobs[0].Members[1]
		if j.Compress == "topk:1/none" && proto.Equal(m.Gradients, want) && proto.Equal(m.Answers, want) {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("%v, want %v", j, want)
		}
	}
	registry := prometheus.NewPedanticRegistry()
	if err := registry.Register(s.Collector()); err != nil {
		t.Fatal(err)
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	values := map[string]float64{}
	for _, f := range families {
		for _, m := range f.Metric {
			values[f.GetName()] += m.GetCounter().GetValue()
		}
	}
	for name, want := range map[string]float64{
		"rackweave_worker_gradient_payload_bytes_total": 2 * elems * 4, "rackweave_worker_gradient_value_bytes_total": 2 * elems * 4,
		"rackweave_worker_gradient_payloads_total": float64(2 * chunks), "rackweave_worker_answer_payloads_total": float64(2 * chunks),
		"rackweave_worker_answer_raw_payloads_total": float64(2 * chunks),
	} {
		if values[name] != want {
			t.Errorf("%s is %v, want %v", name, values[name], want)
		}
	}
}

func TestStatusTellsOfJobsAndWorkers(t *testing.T) {
	s, _ := serve(t, service.Options{})
	workers := join(t, s, client.Config{Job: "j", Workers: 2, Mode: "eager", Optimizer: "adam_torch", Provider: verbs.ProviderTCP})
	status := func() *api.JobStatus {
		r, err := s.Status(within(t), nil)
		if err != nil || len(r.Jobs) != 1 {
			t.Fatalf("%v, %v", r, err)
		}
		return r.Jobs[0]
	}
	j := status()
	if j.State != "running" || j.Mode != "eager" || j.Optimizer != "adam_torch" || len(j.Members) != 2 || !j.Members[1].Connected ||
		j.Members[1].Pid != int64(os.Getpid()) {
		t.Errorf("%v", j)
	}
	workers[1].Close()
	if j = status(); !j.Members[1].Left || j.Members[0].Left {
		t.Errorf("after worker 1 left: %v", j)
	}
}

// joinHalf joins one worker of two, until end is called.
func joinHalf(t *testing.T, s *service.Service, r *api.JoinRequest) (end func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(within(t))
	ended := make(chan error, 1)
	r.Job, r.Workers, r.Mode, r.Providers = "half", 2, "aggregate", []string{verbs.ProviderTCP}
	go func() {
		_, err := s.Join(ctx, r)
		ended <- err
	}()
	for {
		if status, err := s.Status(within(t), nil); err != nil {
			t.Fatal(err)
		} else if len(status.Jobs) == 1 {
			break
		}
	}
	return func() error { cancel(); return <-ended }
}

func TestAWorkersNameCanHurtNoStatusAndNoTerminal(t *testing.T) {
	s, _ := serve(t, service.Options{})
	for _, c := range []struct{ host, want string }{
		{strings.Repeat("a", 63) + "é", strings.Repeat("a", 63) + "\ufffd"}, // cut within a character
		{"\x1b[2Jgone\nlevel=ERROR", " [2Jgone level=ERROR"},
		{"\xff", "\ufffd"},
	} {
		end := joinHalf(t, s, &api.JoinRequest{Host: c.host})
		status, err := client.Status(within(t), client.Config{Server: s.URL()})
		if err != nil {
			t.Errorf("with host %q: %v", c.host, err)
		} else if got := status.Jobs[0].Members[0].Host; got != c.want {
			t.Errorf("host %q is shown as %q, want %q", c.host, got, c.want)
		}
		end()
	}
}

func TestAWorkerThatWaitedInVainLearnsWhoWasRefused(t *testing.T) {
	s, _ := serve(t, service.Options{})
	end := joinHalf(t, s, &api.JoinRequest{Host: "good"})
	if _, err := client.Join(within(t), client.Config{Server: s.URL(), Job: "half", Rank: 0, Workers: 2}); err == nil {
		t.Fatal("a second worker of the same rank joined")
	}
	if err := end(); err == nil || !strings.Contains(err.Error(), "missing ranks 1; worker 0 (") ||
		!strings.Contains(err.Error(), "was refused: worker 0 (good") {
		t.Errorf("error %v, want it to tell of the worker that was refused", err)
	}
}
