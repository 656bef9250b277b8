package service_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/binary"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	mathrand "math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"connectrpc.com/grpcreflect"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/client"
	"github.com/rackweave/rackweave/service"
	"github.com/rackweave/rackweave/service/api"
	"github.com/rackweave/rackweave/service/api/apiconnect"
	"github.com/rackweave/rackweave/verbs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const deadline = 20 * time.Second

func within(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	t.Cleanup(cancel)
	return ctx
}

func TestAServiceLogsWhereItsLanesAre(t *testing.T) {
	for _, tc := range []struct {
		unpinned bool
		cpu      string
	}{{true, "any"}, {false, `\d+`}} {
		var log bytes.Buffer
		s, err := service.New(service.Options{Listen: "127.0.0.1:0", Providers: []string{"tcp"}, Cores: 1, Unpinned: tc.unpinned, Log: slog.New(slog.NewTextHandler(&log, nil))})
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if want := regexp.MustCompile(`provider=tcp lanes="127\.0\.0\.1 and node \d+: cpus ` + tc.cpu + `"`); !want.Match(log.Bytes()) {
			t.Errorf("want %v in\n%s", want, log.Bytes())
		}
	}
}

// serve runs an aggregator over tcp; ended gets Serve's result.
func serve(t testing.TB, o service.Options) (s *service.Service, ended <-chan error) {
	t.Helper()
	o.Listen = "127.0.0.1:0"
	o.Unpinned = true
	if o.Providers == nil {
		o.Providers = []string{verbs.ProviderTCP}
	}
	s, err := service.New(o)
	if err != nil {
		t.Fatal(err)
	}
	s.Handle("/metrics", s.MetricsHandler())
	done := make(chan error, 1)
	finished := make(chan struct{})
	go func() {
		done <- s.Serve(context.Background())
		close(finished)
	}()
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		<-finished
	})
	return s, done
}

func join(t testing.TB, s *service.Service, cfg client.Config) []*client.Worker {
	t.Helper()
	cfg.Server = s.URL()
	workers := make([]*client.Worker, cfg.Workers)
	errs := make([]error, cfg.Workers)
	var wg sync.WaitGroup
	for rank := range workers {
		wg.Go(func() {
			c := cfg
			c.Rank = rank
			workers[rank], errs[rank] = client.Join(within(t), c)
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, w := range workers {
			w.Close()
		}
	})
	return workers
}

// sumOnce exchanges one tensor once.
func sumOnce(t testing.TB, workers []*client.Worker, elems int) {
	t.Helper()
	var wg sync.WaitGroup
	errs := make([]error, len(workers))
	for rank, w := range workers {
		wg.Go(func() {
			x := make([]float32, elems)
			for i := range x {
				x[i] = float32(rank)
			}
			errs[rank] = w.Register(within(t), []client.Tensor{{Name: "w", Shape: []uint64{uint64(elems)}}})
			if errs[rank] != nil {
				return
			}
			h, err := w.PushPull(0, client.Bytes(x), client.Bytes(x), 0)
			if err == nil {
				err = h.Wait(within(t))
			}
			if want := float32(len(workers) * (len(workers) - 1) / 2); err == nil && x[elems-1] != want {
				err = fmt.Errorf("sum %v, want %v", x[elems-1], want)
			}
			errs[rank] = err
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// h2c is an HTTP/2 client without TLS, as gRPC needs.
func h2c(t testing.TB) *http.Client {
	tr := &http.Transport{Protocols: new(http.Protocols)}
	tr.Protocols.SetUnencryptedHTTP2(true)
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr}
}

func post(t testing.TB, url, body string) (int, string) {
	t.Helper()
	tr := &http.Transport{DisableKeepAlives: true}
	resp, err := (&http.Client{Transport: tr, Timeout: deadline}).Post(url, "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

func TestOnePortSpeaksJSONConnectAndGRPC(t *testing.T) {
	s, _ := serve(t, service.Options{Version: "v1.2.3"})
	base := s.URL() + "/" + apiconnect.JobServiceName

	code, body := post(t, base+"/Status", "{}")
	var status struct {
		Version string
		Engines []struct {
			Provider string
			Lanes    []struct{ Device string }
		}
	}
	if err := json.Unmarshal([]byte(body), &status); err != nil || code != 200 {
		t.Fatalf("%d %s: %v", code, body, err)
	}
	if status.Version != "v1.2.3" || len(status.Engines) != 1 || status.Engines[0].Provider != verbs.ProviderTCP || len(status.Engines[0].Lanes) == 0 {
		t.Errorf("%s", body)
	}
	code, body = post(t, base+"/Barrier", `{"session": "nobody", "name": "b"}`)
	if code != http.StatusUnauthorized || !strings.Contains(body, `"unauthenticated"`) || !strings.Contains(body, "no such session") {
		t.Errorf("%d %s", code, body)
	}
	code, body = post(t, base+"/Join", `{"job": "j", "workers": "many"}`)
	if code != http.StatusBadRequest || !strings.Contains(body, `"invalid_argument"`) {
		t.Errorf("%d %s", code, body)
	}
	for name, option := range map[string]connect.ClientOption{"grpc": connect.WithGRPC(), "connect": connect.WithProtoJSON()} {
		got, err := apiconnect.NewJobServiceClient(h2c(t), s.URL(), option).Status(within(t), &api.StatusRequest{})
		if err != nil || got.Version != "v1.2.3" {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
}

func TestAWorkerNeedsNoMoreThanJSONOverHTTP(t *testing.T) {
	s, _ := serve(t, service.Options{})
	base := s.URL() + "/" + apiconnect.JobServiceName
	code, body := post(t, base+"/Join", `{"job": "j", "workers": 1, "rank": -1, "mode": "aggregate", "providers": ["tcp"], "host": "shim", "pid": "7"}`)
	var joined struct {
		Session  string
		Provider string
		Lanes    []any
		Window   int
	}
	if err := json.Unmarshal([]byte(body), &joined); err != nil || code != 200 || joined.Session == "" || len(joined.Lanes) == 0 || joined.Window == 0 {
		t.Fatalf("%d %s: %v", code, body, err)
	}
	// Watch is a stream: every message has a byte of flags and its length before it.
	message := fmt.Appendf(nil, `{"session": %q}`, joined.Session)
	request := append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(message))), message...)
	tr := &http.Transport{DisableKeepAlives: true}
	resp, err := (&http.Client{Transport: tr}).Post(base+"/Watch", "application/connect+json", bytes.NewReader(request))
	if err != nil {
		t.Fatal(err)
	}
	var head [5]byte
	if _, err := io.ReadFull(resp.Body, head[:]); err != nil || head[0] != 0 {
		t.Fatalf("first heartbeat: %v, %v", head, err)
	}
	// When it breaks, the worker is gone.
	resp.Body.Close()
	for end := time.Now().Add(deadline); ; time.Sleep(5 * time.Millisecond) {
		status, err := s.Status(within(t), nil)
		if err != nil || time.Now().After(end) {
			t.Fatalf("%v, %v", status, err)
		}
		if len(status.Jobs) == 0 || status.Jobs[0].State == "failed" {
			break
		}
	}
}

func TestHealthAndReflectionAnswer(t *testing.T) {
	s, _ := serve(t, service.Options{})
	health := func() string {
		_, body := post(t, s.URL()+"/grpc.health.v1.Health/Check", fmt.Sprintf(`{"service": %q}`, apiconnect.JobServiceName))
		return body
	}
	if body := health(); !strings.Contains(body, `"SERVING"`) && !strings.Contains(body, "SERVING_STATUS_SERVING") {
		t.Error(body)
	}
	stream := grpcreflect.NewClient(h2c(t), s.URL()).NewStream(within(t))
	names, err := stream.ListServices()
	if err != nil || len(names) != 2 {
		t.Errorf("services %v, %v", names, err)
	}
	stream.Close()
	w := join(t, s, client.Config{Job: "j", Workers: 1, Provider: verbs.ProviderTCP})
	s.StartDrain(0)
	if body := health(); !strings.Contains(body, "NOT_SERVING") {
		t.Errorf("while draining: %s", body)
	}
	w[0].Close()
}

// certificate makes a self-signed certificate for 127.0.0.1 and returns the files of it and its key.
func certificate(t testing.TB) (cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "rackweave test"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	rawKey, err := x509.MarshalECPrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	write := func(name, kind string, b []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: b}), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	return write("cert.pem", "CERTIFICATE", der), write("key.pem", "EC PRIVATE KEY", rawKey)
}

func TestTLSIsVerifiedAndWrongTLSIsAClearError(t *testing.T) {
	cert, key := certificate(t)
	otherCert, _ := certificate(t)
	s, _ := serve(t, service.Options{TLSCert: cert, TLSKey: key})
	plain, _ := serve(t, service.Options{})
	cfg := client.Config{Server: s.URL(), CA: cert, Job: "j", Workers: 1, Provider: verbs.ProviderTCP, Timeout: deadline}
	w, err := client.Join(within(t), cfg)
	if err != nil {
		t.Fatal(err)
	}
	sumOnce(t, []*client.Worker{w}, 1000)
	if err := w.Close(); err != nil {
		t.Error(err)
	}
	for _, c := range []struct {
		name       string
		server, ca string
		want       string
	}{
		{"no CA", s.URL(), "", "certificate signed by unknown authority: give a CA file"},
		{"another CA", s.URL(), otherCert, ": give a CA file"},
		{"another name", strings.Replace(s.URL(), "127.0.0.1", "localhost", 1), cert, "a name or address that the certificate is for"},
		{"a CA file that is none", s.URL(), key, "holds no certificate"},
		{"http to https", strings.Replace(s.URL(), "https:", "http:", 1), "", "if it serves TLS, use https://"},
		{"https to http", strings.Replace(plain.URL(), "http:", "https:", 1), cert, "server gave HTTP response to HTTPS client: it serves without TLS: use http://"},
	} {
		cfg.Server, cfg.CA = c.server, c.ca
		began := time.Now()
		if _, err := client.Join(within(t), cfg); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want it to say %q", c.name, err, c.want)
		}
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("%s: took %v", c.name, took)
		}
	}
}

func TestGarbageOnThePortHurtsNobody(t *testing.T) {
	s, _ := serve(t, service.Options{})
	workers := join(t, s, client.Config{Job: "j", Workers: 2, Provider: verbs.ProviderTCP})
	r := mathrand.New(mathrand.NewPCG(1, 2))
	for i := range 40 {
		c, err := net.Dial("tcp", s.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		b := make([]byte, 1+r.IntN(4000))
		for k := range b {
			b[k] = byte(r.Uint32())
		}
		switch i % 4 {
		case 1:
			b = append([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), b...)
		case 2:
			b = append([]byte("POST /rackweave.v1.JobService/Join HTTP/1.1\r\nHost: x\r\nContent-Type: application/proto\r\nContent-Length: 4000\r\n\r\n"), b...)
		case 3:
			b = []byte("POST /rackweave.v1.JobService/Watch HTTP/1.1\r\nHost: x\r\nContent-Type: application/connect+json\r\nContent-Length: 5\r\n\r\n\x00\xff\xff\xff\xff")
		}
		c.Write(b)
		c.Close()
	}
	code, body := post(t, s.URL()+"/"+apiconnect.JobServiceName+"/Register", `{"session": "`+strings.Repeat("x", 1<<20)+`"}`)
	if code != http.StatusUnauthorized {
		t.Errorf("%d %.100s", code, body)
	}
	sumOnce(t, workers, 10_000)
}

func TestARequestThatIsTooLargeIsRefused(t *testing.T) {
	s, _ := serve(t, service.Options{})
	code, body := post(t, s.URL()+"/"+apiconnect.JobServiceName+"/Register", `{"session": "`+strings.Repeat("x", 70<<20)+`"}`)
	if code != http.StatusTooManyRequests || !strings.Contains(body, "resource_exhausted") {
		t.Errorf("%d %.200s", code, body)
	}
}

func TestADrainWaitsForJobsAndRefusesNewOnes(t *testing.T) {
	s, ended := serve(t, service.Options{})
	workers := join(t, s, client.Config{Job: "j", Workers: 2, Provider: verbs.ProviderTCP})
	if n, err := client.Drain(within(t), client.Config{Server: s.URL()}, 0); n != 1 || err != nil {
		t.Errorf("drain: %d jobs, %v", n, err)
	}
	_, err := client.Join(within(t), client.Config{Server: s.URL(), Job: "new", Workers: 1, Provider: verbs.ProviderTCP})
	if err == nil || !strings.Contains(err.Error(), "draining") {
		t.Errorf("join while draining: %v", err)
	}
	sumOnce(t, workers, 1000) // the job goes on
	select {
	case err := <-ended:
		t.Fatalf("the service ended before its job: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	for _, w := range workers {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	}
	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(deadline):
		t.Fatal("the service did not end with its last job")
	}
}

func TestADrainEndsJobsWhenItsTimeIsUp(t *testing.T) {
	s, ended := serve(t, service.Options{AdminToken: "admin"})
	workers := join(t, s, client.Config{Job: "j", Workers: 1, Provider: verbs.ProviderTCP})
	if _, err := client.Drain(within(t), client.Config{Server: s.URL(), Token: "guess"}, 0); !errors.Is(err, client.ErrRefused) {
		t.Errorf("a guessed admin token: %v", err)
	}
	if _, err := client.Drain(within(t), client.Config{Server: s.URL(), Token: "admin"}, 20*time.Millisecond); err != nil {
		t.Error(err)
	}
	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(deadline):
		t.Fatal("the service did not end")
	}
	select {
	case <-workers[0].Failed():
	case <-time.After(deadline):
		t.Fatal("the worker was not told")
	}
}

func TestOptionsThatCannotBeAreRefused(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	for name, c := range map[string]struct {
		o    service.Options
		want string
	}{
		"provider":           {service.Options{Providers: []string{"roce"}}, `unknown provider "roce": use shm, tcp, ibv, sim`},
		"port taken":         {service.Options{Listen: taken.Addr().String()}, "address already in use: give another address"},
		"half of TLS":        {service.Options{TLSCert: "x"}, "give both files, or neither"},
		"missing TLS file":   {service.Options{TLSCert: "/no/cert", TLSKey: "/no/key"}, "/no/cert"},
		"job name":           {service.Options{Jobs: []service.JobPolicy{{Name: "a b"}}}, `job name "a b"`},
		"job twice":          {service.Options{Jobs: []service.JobPolicy{{Name: "a"}, {Name: "a"}}}, "listed twice"},
		"no job may run":     {service.Options{OnlyListed: true}, "none is listed"},
		"too many cores":     {service.Options{Listen: "127.0.0.1:0", Providers: []string{"tcp"}, Cores: 5000}, "5000 cores asked for"},
		"window":             {service.Options{Listen: "127.0.0.1:0", Providers: []string{"tcp"}, Window: 1 << 20}, "window of 1048576: use 2 to 4096"},
		"window of one":      {service.Options{Listen: "127.0.0.1:0", Providers: []string{"tcp"}, Window: 1}, "window of 1: use 2 to 4096"},
		"negative window":    {service.Options{Window: -1}, "-1 messages in the window: use 0 or more"},
		"negative limit":     {service.Options{MaxJobs: -3}, "-3 jobs: use 0 or more"},
		"negative quota":     {service.Options{Quota: service.Quota{Tensors: -1}}, "-1 tensors of a job: use 0 or more"},
		"spin":               {service.Options{Spin: -2}, "spin of -2"},
		"provider's options": {service.Options{ProviderOptions: map[string]string{"roce": "gid=3"}}, `unknown provider "roce"`},
		"NICs without RDMA":  {service.Options{Listen: "127.0.0.1:0", Providers: []string{"tcp"}, NICs: []string{"mlx5_9"}}, "mlx5_9 need provider ibv, and only tcp"},
		"checkpoints":        {service.Options{CheckpointDir: "/dev/null/checkpoints"}, `checkpoint directory "/dev/null/checkpoints"`},
		"option of provider": {service.Options{Listen: "127.0.0.1:0", Providers: []string{"tcp"}, ProviderOptions: map[string]string{"tcp": "colour=red"}}, "colour"},
	} {
		s, err := service.New(c.o)
		if err == nil {
			s.Close()
		}
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want it to say %q", name, err, c.want)
		}
	}
}

func TestAnUnlistedJobIsRefusedWhereOnlyListedOnesRun(t *testing.T) {
	s, _ := serve(t, service.Options{OnlyListed: true, Jobs: []service.JobPolicy{{Name: "good", Token: "t"}}})
	_, err := client.Join(within(t), client.Config{Server: s.URL(), Job: "bad", Workers: 1, Provider: verbs.ProviderTCP})
	if err == nil || !strings.Contains(err.Error(), `job "bad" may not run here`) {
		t.Error(err)
	}
	join(t, s, client.Config{Job: "good", Token: "t", Workers: 1, Provider: verbs.ProviderTCP})
}

func TestTheBoxHasLimits(t *testing.T) {
	s, _ := serve(t, service.Options{MaxJobs: 2, MaxWorkers: 3})
	join(t, s, client.Config{Job: "one", Workers: 1, Provider: verbs.ProviderTCP})
	join(t, s, client.Config{Job: "two", Workers: 2, Provider: verbs.ProviderTCP})
	cfg := client.Config{Server: s.URL(), Job: "three", Workers: 1, Provider: verbs.ProviderTCP}
	if _, err := client.Join(within(t), cfg); err == nil || !strings.Contains(err.Error(), "serves 2 jobs, all it may") {
		t.Error(err)
	}
}

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
		`rackweave_worker_received_bytes_total{host=`, `rackweave_lane_chunk_latency_seconds_bucket{cpu="-1",`, `le="+Inf"`, "go_goroutines", "process_resident_memory_bytes",
	} {
		if !bytes.Contains(page, []byte(want)) {
			t.Errorf("the page lacks %s", want)
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
	if j.State != "running" || j.Mode != "eager" || j.Optimizer != "adam_torch" || len(j.Members) != 2 || !j.Members[1].Connected || j.Members[1].Pid != int64(os.Getpid()) {
		t.Errorf("%v", j)
	}
	workers[1].Close()
	if j = status(); !j.Members[1].Left || j.Members[0].Left {
		t.Errorf("after worker 1 left: %v", j)
	}
}

// One worker of two joins until end is called.
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
	_, err := client.Join(within(t), client.Config{Server: s.URL(), Job: "half", Rank: 1, Workers: 2, Optimizer: "sgd_torch"})
	if err == nil {
		t.Fatal("a worker with another optimizer joined")
	}
	if err = end(); err == nil || !strings.Contains(err.Error(), "missing ranks 1; worker 1 (") || !strings.Contains(err.Error(), "was refused: mode is eager here and aggregate in the job") {
		t.Errorf("error %v, want it to tell of the worker that was refused", err)
	}
}
