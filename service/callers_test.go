package service_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/rackweave/rackweave/client"
	"github.com/rackweave/rackweave/service"
	"github.com/rackweave/rackweave/service/api/apiconnect"
	"github.com/rackweave/rackweave/verbs"
)

// A job without a token has no owner: anybody may join it, and only its members and the admin may look into it.
func TestAJobIsForWhoKnowsItsToken(t *testing.T) {
	s, _ := serve(t, service.Options{AdminToken: "admin"})
	for _, token := range []string{"", "secret"} {
		job := "with" + token
		join(t, s, client.Config{Job: job, Workers: 1, Token: token, Mode: "stream", Optimizer: "sgd_torch",
			Provider: verbs.ProviderTCP})
		for what, header := range map[string]map[string]string{
			"none": {}, "empty": {"Authorization": "Bearer "}, "another": {"Authorization": "Bearer other"},
			"its own": {"Authorization": "Bearer " + token}, "the admin's": {"Authorization": "Bearer admin"},
		} {
			admin := what == "the admin's"
			owns := admin || what == "its own" && token != ""
			for method, c := range map[string]struct {
				body string
				may  bool
			}{
				"SetPolicy": {fmt.Sprintf(`{"job": %q, "policy": "asp"}`, job), owns},
				"SetCodec":  {fmt.Sprintf(`{"job": %q, "codec": "int4"}`, job), owns},
				"Trace":     {fmt.Sprintf(`{"job": %q, "durationMs": 1}`, job), owns},
				"Links":     {`{}`, admin},
			} {
				code, text := calls(t, s.URL()+"/"+apiconnect.JobServiceName+"/"+method, c.body, header)
				if may := code != http.StatusForbidden; may != c.may {
					t.Errorf("%s of job %q by %s token: %d %s", method, job, what, code, text)
				}
			}
			_, text := calls(t, s.URL()+apiconnect.JobServiceStatusProcedure, "{}", header)
			if sees := strings.Contains(text, fmt.Sprintf("%q", job)); sees != owns {
				t.Errorf("status by %s token shows job %q: %v", what, job, sees)
			}
			body := fmt.Sprintf(`{"job": %q, "workers": 1, "mode": "stream", "optimizer": "sgd_torch", "providers": ["tcp"]}`, job)
			_, text = calls(t, s.URL()+apiconnect.JobServiceJoinProcedure, body, header)
			if wrong := strings.Contains(text, "wrong token"); wrong == (strings.TrimPrefix(header["Authorization"], "Bearer ") == token) {
				t.Errorf("joining job %q by %s token: %s", job, what, text)
			}
		}
	}
}
