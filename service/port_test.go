package service_test

import (
	"bytes"
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
	"math/big"
	mathrand "math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"connectrpc.com/connect"
	"connectrpc.com/grpcreflect"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/rackweave/rackweave/client"
	"github.com/rackweave/rackweave/service"
	"github.com/rackweave/rackweave/service/api"
	"github.com/rackweave/rackweave/service/api/apiconnect"
	"github.com/rackweave/rackweave/service/racks"
	"github.com/rackweave/rackweave/verbs"
)

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
	if status.Version != "v1.2.3" || len(status.Engines) != 1 || status.Engines[0].Provider != verbs.ProviderTCP ||
		len(status.Engines[0].Lanes) == 0 {
		t.Errorf("%s", body)
	}
	code, body = post(t, base+"/Barrier", `{"name": "b"}`)
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

func TestEveryCallOfTheSchemaIsServed(t *testing.T) {
	s, _ := serve(t, service.Options{})
	for _, file := range []protoreflect.FileDescriptor{api.File_job_proto, api.File_rack_proto} {
		for i := range file.Services().Len() {
			of := file.Services().Get(i)
			for k := range of.Methods().Len() {
				m := of.Methods().Get(k)
				if code, body := post(t, fmt.Sprintf("%s/%s/%s", s.URL(), of.FullName(), m.Name()), "{}"); code == http.StatusNotFound {
					t.Errorf("%s: %s", m.FullName(), body)
				}
			}
		}
	}
}

func TestAWorkerNeedsNoMoreThanJSONOverHTTP(t *testing.T) {
	s, _ := serve(t, service.Options{})
	base := s.URL() + "/" + apiconnect.JobServiceName
	code, body := post(t, base+"/Join",
		`{"job": "j", "workers": 1, "rank": -1, "mode": "aggregate", "providers": ["tcp"], "host": "shim", "pid": "7"}`)
	var joined struct {
		Session  string
		Provider string
		Lanes    []any
		Window   int
	}
	if err := json.Unmarshal([]byte(body), &joined); err != nil || code != 200 || joined.Session == "" || len(joined.Lanes) == 0 ||
		joined.Window == 0 {
		t.Fatalf("%d %s: %v", code, body, err)
	}
	// Watch is a stream: every message has a byte of flags and its length before it.
	request := append(binary.BigEndian.AppendUint32([]byte{0}, 2), "{}"...)
	tr := &http.Transport{DisableKeepAlives: true}
	watch, err := http.NewRequest("POST", base+"/Watch", bytes.NewReader(request))
	if err != nil {
		t.Fatal(err)
	}
	watch.Header.Set("Content-Type", "application/connect+json")
	watch.Header.Set(api.SessionHeader, joined.Session)
	resp, err := (&http.Client{Transport: tr}).Do(watch)
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
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "rackweave test"}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
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
		{"no CA", s.URL(), "", "certificate signed by unknown authority: give as its CA"},
		{"another CA", s.URL(), otherCert, ": give as its CA"},
		{"another name", strings.Replace(s.URL(), "127.0.0.1", "localhost", 1), cert, "a name or address that the certificate is for"},
		{"a CA file that is none", s.URL(), key, "holds no certificate"},
		{"http to https", strings.Replace(s.URL(), "https:", "http:", 1), "", "if it serves TLS, use https://"},
		{"https to http", strings.Replace(plain.URL(), "http:", "https:", 1), cert,
			"server gave HTTP response to HTTPS client: it serves without TLS: use http://"},
	} {
		cfg.Server, cfg.CA = c.server, c.ca
		began := time.Now()
		if _, err := client.Join(within(t), cfg); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want it to say %q", c.name, err, c.want)
		}
		if took := time.Since(began); took > deadline/2 {
			t.Errorf("%s: took %v", c.name, took)
		}
	}
}

func TestAnAggregatorThatEncryptsSumsOverTCP(t *testing.T) {
	d, err := verbs.Open(verbs.ProviderTCP, "", "encrypt=yes")
	if errors.Is(err, syscall.EPROTONOSUPPORT) {
		if _, err := service.New(service.Options{Listen: "127.0.0.1:0", Encrypt: true}); !errors.Is(err, syscall.EPROTONOSUPPORT) {
			t.Errorf("where the kernel cannot encrypt: %v", err)
		}
		t.Skip(err)
	} else if err != nil {
		t.Fatal(err)
	}
	d.Close()
	s, _ := serve(t, service.Options{Encrypt: true})
	sumOnce(t, join(t, s, client.Config{Job: "j", Workers: 2, Provider: verbs.ProviderTCP}), 100_000)
}

func TestAnAggregatorThatEncryptsServesNothingThatCannot(t *testing.T) {
	for name, o := range map[string]service.Options{
		"provider ibv cannot encrypt": {Encrypt: true, Providers: []string{verbs.ProviderTCP, verbs.ProviderIBV}},
		"which needs TLS":             {Encrypt: true, Insecure: true},
		`rack "far" at http://far:7077`: {Encrypt: true, Cluster: &racks.Cluster{
			Own: "here", Racks: []racks.Rack{{Name: "here", URL: "http://here:7077"}, {Name: "far", URL: "http://far:7077"}},
		}},
	} {
		o.Listen = "127.0.0.1:0"
		if s, err := service.New(o); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%v, %v, want %q", s, err, name)
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
	// The refusal comes before the body is read: a client that still sends may see the connection reset instead.
	code, body := post(t, s.URL()+"/"+apiconnect.JobServiceName+"/Register", `{"x": "`+strings.Repeat("x", 8<<10)+`"}`)
	if code != http.StatusUnauthorized {
		t.Errorf("%d %.100s", code, body)
	}
	sumOnce(t, workers, 10_000)
}

func TestARequestThatIsTooLargeIsRefused(t *testing.T) {
	s, _ := serve(t, service.Options{})
	code, body := post(t, s.URL()+"/"+apiconnect.JobServiceName+"/Join", `{"job": "`+strings.Repeat("x", 17<<10)+`"}`)
	if code != http.StatusTooManyRequests || !strings.Contains(body, "resource_exhausted") {
		t.Errorf("%d %.200s", code, body)
	}
}
