package service_test

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/rackweave/rackweave/service"
	"github.com/rackweave/rackweave/service/api/apiconnect"
	"github.com/rackweave/rackweave/service/racks"
)

// calls posts a body as JSON, with these headers, and returns the answer.
func calls(t *testing.T, url, body string, headers map[string]string) (int, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(within(t), "POST", url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	r.Host = headers["Host"]
	for name, value := range headers {
		r.Header.Set(name, value)
	}
	resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(text)
}

func TestAnOpenAggregatorAnswersNoWebPage(t *testing.T) {
	s, _ := serve(t, service.Options{AdminToken: "admin",
		Cluster: &racks.Cluster{Own: "a", Secret: "a secret of the racks",
			Racks: []racks.Rack{{Name: "a", URL: "http://a.rack.example:7077"}, {Name: "b", URL: "http://b.rack.example:7077"}}}})
	for _, c := range []struct {
		host, origin, token string
		may                 bool
	}{
		{"127.0.0.1:7077", "", "", true},
		{"[::1]:7077", "", "", true},
		{"localhost", "", "", true},
		{"aggregator:7077", "", "", true},
		{"A.rack.example.:7077", "", "", true},
		{"b.rack.example:7077", "", "", false},
		{"page.example", "", "", false},
		{"127.0.0.1.page.example:7077", "", "", false},
		{"127.0.0.1:7077", "http://page.example", "", false},
		{"localhost:7077", "http://localhost:7077", "", false},
		{"localhost", "null", "", false},
		{"page.example", "http://page.example", "admin", true},
	} {
		for _, path := range []string{
			apiconnect.JobServiceStatusProcedure, apiconnect.JobServiceJoinProcedure, "/metrics", "/grpc.health.v1.Health/Check",
		} {
			header := map[string]string{"Host": c.host, "Origin": c.origin, "Authorization": "Bearer " + c.token}
			code, text := calls(t, s.URL()+path, "{}", header)
			if may := code != http.StatusForbidden; may != c.may || !may && !strings.Contains(text, "serve with TLS and tokens") {
				t.Errorf("%s at host %q from origin %q: %d %s", path, c.host, c.origin, code, text)
			}
		}
	}
}
