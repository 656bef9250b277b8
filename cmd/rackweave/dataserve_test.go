package main

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rackweave/rackweave/service/api"
	"github.com/rackweave/rackweave/service/api/apiconnect"
)

// dealing runs `data serve` until the test ends, or stop is called, and returns its URL.
func dealing(t *testing.T, args ...string) (url string, stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	cmd := root()
	out, in := io.Pipe()
	cmd.SetOut(in)
	cmd.SetErr(io.Discard)
	cmd.SetArgs(append([]string{"data", "serve", "--listen", "127.0.0.1:0", "--json"}, args...))
	ended := make(chan error, 1)
	go func() {
		err := cmd.ExecuteContext(ctx)
		in.CloseWithError(io.EOF)
		ended <- err
	}()
	stopped := false
	stop = func() {
		if cancel(); !stopped {
			stopped = true
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
	}
	t.Cleanup(stop)
	line, err := bufio.NewReader(out).ReadString('\n')
	var where struct{ URL string }
	if err == nil {
		err = json.Unmarshal([]byte(line), &where)
	}
	if err != nil {
		t.Fatal(err)
	}
	return where.URL, stop
}

func TestDataServeGoesOnFromItsJournal(t *testing.T) {
	journal := filepath.Join(t.TempDir(), "journal")
	session := ""
	for range 2 {
		url, stop := dealing(t, "--journal", journal)
		d := apiconnect.NewDataServiceClient(http.DefaultClient, url, api.Identify(func() string { return session }, ""))
		if session == "" {
			opened, err := d.Open(t.Context(), &api.OpenDataRequest{Job: "digits", Workers: 2, Incarnation: "a", Rows: 1000, Batch: 8,
				Seed: 3})
			if err != nil {
				t.Fatal(err)
			}
			session = opened.Session
		}
		if r, err := d.Next(t.Context(), &api.NextRowsRequest{Seq: 1}); err != nil || len(r.Rows) != 64 {
			t.Fatal(r, err)
		}
		out, err := run(t, "data", "status", "--server", url)
		for _, want := range []string{"job digits, set train: queue of seed 3, epoch 0, 0 of 1000 rows are applied", "0       8 ", "no session"} {
			if err != nil || !strings.Contains(out, want) {
				t.Errorf("%v, want %q in\n%s", err, want, out)
			}
		}
		http.DefaultClient.CloseIdleConnections()
		stop()
	}
	dir := t.TempDir()
	linked := filepath.Join(dir, "link")
	if err := os.Symlink(journal, linked); err != nil {
		t.Fatal(err)
	}
	for want, args := range map[string][]string{
		"--lease-timeout 1ms: use 10s or more":      {"--lease-timeout", "1ms"},
		"--lease-timeout 0s: use 10s or more":       {"--lease-timeout", "0"},
		"--journal-bytes 4095: use 4096 or more":    {"--journal-bytes", "4095"},
		"link: --replay reads it: name another":     {"--replay", journal, "--journal", linked},
		"its folder is missing: make it first":      {"--journal", filepath.Join(dir, "none", "journal")},
		"none: no such file or directory: name the": {"--data-dir", filepath.Join(dir, "none")},
	} {
		fails(t, append([]string{"data", "serve", "--listen", "127.0.0.1:0"}, args...), want)
	}
	fails(t, []string{"data", "serve", "--replay", filepath.Join(t.TempDir(), "none")}, "no such file")
}
