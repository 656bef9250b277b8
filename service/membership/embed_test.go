package membership

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	"go.etcd.io/etcd/server/v3/embed"
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
			c := ServerConfig{Name: "c", Dir: t.TempDir(), Peer: "http://127.0.0.1:7", Members: "c=http://127.0.0.1:7"}
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
			cfg, err := c.config()
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
