package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
)

func TestProbeNamesWhatItCannotUse(t *testing.T) {
	fails(t, []string{"probe", "--server", "http://a:7077", "--cluster", "c.yaml"},
		`--server "http://a:7077" and --cluster "c.yaml": give one of them`)
	fails(t, []string{"probe", "--cluster", "none.yaml"}, "read cluster: open none.yaml")
}

// The aggregator that is asked is the first of the cluster's file.
func TestProbeAsksTheClustersFirstAggregator(t *testing.T) {
	var asked atomic.Bool
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked.Store(true)
		http.Error(w, "", http.StatusServiceUnavailable)
	}))
	defer s.Close()
	file := filepath.Join(t.TempDir(), "cluster.yaml")
	for _, tc := range []struct{ url, want string }{{s.URL, s.URL}, {"", `rack "a", the first, has no url: give that of its aggregator`}} {
		text := fmt.Sprintf("secret: a secret of the racks\nracks:\n  - {name: a, url: %q}\n  - {name: b, url: \"http://127.0.0.1:1\"}\n", tc.url)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := run(t, "probe", "--cluster", file, "--timeout", "2s")
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("with URL %q: %v, want it to say %q", tc.url, err, tc.want)
		}
	}
	if !asked.Load() {
		t.Error("the first aggregator was not asked")
	}
}

func TestProbeNeedsACluster(t *testing.T) {
	line := serving(t, "--json", "--cores", "1")
	var said struct{ URL string }
	if err := json.Unmarshal([]byte(line), &said); err != nil {
		t.Fatal(err)
	}
	fails(t, []string{"probe", "--server", said.URL, "--bytes", "8MB"}, "this aggregator is of no cluster")
}
