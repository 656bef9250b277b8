package server

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"go.etcd.io/etcd/server/v3/embed"

	"github.com/rackweave/rackweave/service/etcd"
)

// A member without data begins as what the others know of it, and is refused where they have removed it or heard from it before.
func TestAMemberWithoutDataBeginsAsTheOthersKnowIt(t *testing.T) {
	const (
		unknown = `{"id":1,"peerURLs":["http://127.0.0.1:9"],"name":"a","clientURLs":["http://127.0.0.1:8"]}`
		first   = `{"id":3,"peerURLs":["http://127.0.0.1:7"],"name":"c"}`
		served  = `{"id":3,"peerURLs":["http://127.0.0.1:7"],"name":"c","clientURLs":["http://127.0.0.1:6"]}`
		added   = `{"id":4,"peerURLs":["http://127.0.0.1:7"]}`
	)
	for name, tc := range map[string]struct {
		said [2][]string // by peer, the members in one answer after another; the last one stays
		want string      // empty: it is refused
	}{
		"nobody answers":                 {[2][]string{}, embed.ClusterStateFlagNew},
		"one of the first members":       {[2][]string{{first}, nil}, embed.ClusterStateFlagNew},
		"added":                          {[2][]string{nil, {added}}, embed.ClusterStateFlagExisting},
		"added, as only one has heard":   {[2][]string{{unknown}, {added}}, embed.ClusterStateFlagExisting},
		"added, as all hear soon":        {[2][]string{{unknown, added}, {served, added}}, embed.ClusterStateFlagExisting},
		"removed":                        {[2][]string{{unknown}, nil}, ""},
		"it has served":                  {[2][]string{nil, {served}}, ""},
		"removed, as only one has heard": {[2][]string{{unknown}, {first}}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := config{Name: "c", Dir: t.TempDir(), Peer: "http://127.0.0.1:7", Members: "c=http://127.0.0.1:7"}
			for i, answers := range tc.said {
				var asked atomic.Int32
				s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
					w.Header().Set("X-Etcd-Cluster-ID", "1")
					fmt.Fprintf(w, "[%s]", answers[min(int(asked.Add(1)), len(answers))-1])
				}))
				defer s.Close()
				if len(answers) == 0 {
					s.Close()
				}
				c.Members += fmt.Sprintf(",%c=%s", 'a'+i, s.URL)
			}
			cfg, err := c.embed()
			if err != nil {
				t.Fatal(err)
			}
			switch err := c.introduce(cfg); {
			case tc.want == "":
				says(t, err, "removed or has served before", "member remove ID", "member add c --peer-urls=http://127.0.0.1:7")
			case err != nil || cfg.ClusterState != tc.want:
				t.Errorf("it begins as %q, %v, want %q", cfg.ClusterState, err, tc.want)
			}
		})
	}
}

func TestAServerThatStrangersWouldReachIsRefused(t *testing.T) {
	dir := t.TempDir()
	for name, tc := range map[string]struct {
		c    etcd.Config
		want string
	}{
		"other hosts":    {etcd.Config{Dir: dir, URL: "http://0.0.0.0:1"}, "other hosts could use it at http://0.0.0.0:1"},
		"other members":  {etcd.Config{Dir: dir, Peer: "http://10.0.0.1:1"}, "other hosts could use it at http://10.0.0.1:1"},
		"no directory":   {etcd.Config{}, "no directory"},
		"a CA alone":     {etcd.Config{Dir: dir, CA: "x"}, "give all three files"},
		"no port":        {etcd.Config{Dir: dir, URL: "http://127.0.0.1"}, "use a URL such as"},
		"a name":         {etcd.Config{Dir: dir, URL: "http://localhost:1"}, "give an IP address"},
		"no certificate": {etcd.Config{Dir: dir, URL: "https://127.0.0.1:1"}, "https needs one"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Start(tc.c)
			says(t, err, tc.want)
		})
	}
}

// says reports an error that lacks one of the texts.
func says(t *testing.T, err error, wants ...string) {
	t.Helper()
	for _, want := range wants {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v does not mention %q", err, want)
		}
	}
}

// listening returns the addresses at which this process listens.
func listening(t *testing.T) (all []string) {
	t.Helper()
	own := map[string]bool{}
	files, err := filepath.Glob("/proc/self/fd/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if to, err := os.Readlink(f); err == nil {
			own[strings.Trim(strings.TrimPrefix(to, "socket:"), "[]")] = true
		}
	}
	for _, table := range []struct {
		name           string
		state, ino, at int
		listens        string
	}{{"tcp", 3, 9, 1, "0A"}, {"tcp6", 3, 9, 1, "0A"}, {"unix", 3, 6, 7, "00010000"}} {
		text, err := os.ReadFile("/proc/self/net/" + table.name)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			f := append(strings.Fields(line), "unnamed")
			if len(f) > table.ino && f[table.state] == table.listens && own[f[table.ino]] {
				all = append(all, f[table.at])
			}
		}
	}
	return all
}

// A member that is alone is reached by its user alone: by no port, and by no abstract socket.
func TestALoneMemberListensInItsDirectory(t *testing.T) {
	dir := t.TempDir()
	before := listening(t)
	s, err := Start(etcd.Config{Name: "a", Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if want := "unix://" + dir + "/client"; s.URL != want {
		t.Errorf("it serves at %s, want %s", s.URL, want)
	}
	at := listening(t)
	slices.Sort(at)
	if want := []string{dir + "/client", dir + "/peer"}; len(before) > 0 || !slices.Equal(at, want) {
		t.Errorf("it listens at %q, want %q; before it listened at %q", at, want, before)
	}
}

func TestASocketWithALongPathIsRefused(t *testing.T) {
	_, err := Start(etcd.Config{Name: "a", Dir: filepath.Join(t.TempDir(), strings.Repeat("d", 100))})
	says(t, err, "more than 107 characters", "give a shorter --etcd-dir")
}
