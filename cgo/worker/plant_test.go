package worker_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// plants are bugs, each with the test that must find it.
var plants = []struct{ file, name, old, new, test string }{
	{"coding.c", "a residual is committed twice", "if (c->kept) {", "if (0) {", "TestAChunkThatIsNACKedTravelsAgainAsItWas"},
	{"coding.c", "what was sent is lost on a NACK", "if (!c->kept)", "if (0)", "TestAChunkThatIsNACKedTravelsAgainAsItWas"},
	{"coding.c", "what is left is never sent", "k->flush |= ", "k->flush = 0 & ", "TestTheGradientAfterTheCodecSendsTheResidual"},
	{"coding.c", "a residual grows with the learning rate", "k->rate / rate;", "rate / k->rate;",
		"TestTheResidualFollowsTheRateThatItIsAppliedWith"},
	{"rows.c", "results behind a gap are written into it", "ids[i] == first + i", "ids[i] >= first + i",
		"TestRowsTravelAsPlainGoReadsThem"},
	{"rows.c", "rows that lie apart are sent as one run", "places[i].at == places[0].at + i", "places[i].at > places[0].at",
		"TestRowsTravelAsPlainGoReadsThem"},
	{"rows.c", "a union forgets rows", "words[from / 32] |=", "words[from / 32] =", "TestRowsTravelAsPlainGoReadsThem"},
	{"rows.c", "a union keeps the rows of the step before", "r->bits[i] = 0;", ";", "TestRowsTravelAsPlainGoReadsThem"},
	{"rows.c", "answers are taken for those of younger messages", "staging = f->oldest[class];", "staging = f->newest[class];",
		"TestRowsTravelAsPlainGoReadsThem"},
}

func TestPlantedBugsAreCaught(t *testing.T) {
	if testing.Short() {
		t.Skip("builds these tests with bugs in them; run without -short")
	}
	for _, p := range plants {
		t.Run(p.name, func(t *testing.T) {
			text, err := os.ReadFile(p.file)
			if err != nil {
				t.Fatal(err)
			}
			path, err := filepath.Abs(p.file)
			if err != nil {
				t.Fatal(err)
			}
			if n := strings.Count(string(text), p.old); n != 1 {
				t.Fatalf("%q is in %d places", p.old, n)
			}
			dir := t.TempDir()
			sown, listed := filepath.Join(dir, p.file), filepath.Join(dir, "overlay.json")
			list, err := json.Marshal(map[string]any{"Replace": map[string]string{path: sown}})
			for name, data := range map[string][]byte{sown: []byte(strings.Replace(string(text), p.old, p.new, 1)), listed: list} {
				if err == nil {
					err = os.WriteFile(name, data, 0o600)
				}
			}
			if err != nil {
				t.Fatal(err)
			}
			out, err := exec.CommandContext(t.Context(), "go", "test", "-overlay", listed, "-run", "^"+p.test+"$", ".").CombinedOutput()
			if err == nil || !strings.Contains(string(out), "--- FAIL: "+p.test) {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}
