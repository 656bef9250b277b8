package worker_test

import (
	"strings"
	"testing"

	"github.com/rackweave/rackweave/lab/plant"
)

const (
	codingFile = "cgo/worker/coding.c"
	rowsFile   = "cgo/worker/rows.c"
)

// plants are bugs, each with the test that must find it.
var plants = []struct {
	plant.Plant
	test string
}{
	{plant.Plant{Name: "a residual is committed twice", File: codingFile,
		Old: "if (c->kept) {", New: "if (c->kept && !PLANTED) {"}, "TestAChunkThatIsNACKedTravelsAgainAsItWas"},
	{plant.Plant{Name: "what was sent is lost on a NACK", File: codingFile,
		Old: "if (!c->kept)", New: "if (!c->kept && !PLANTED)"}, "TestAChunkThatIsNACKedTravelsAgainAsItWas"},
	{plant.Plant{Name: "what is left is never sent", File: codingFile,
		Old: "k->flush |= ", New: "k->flush |= !PLANTED && "}, "TestTheGradientAfterTheCodecSendsTheResidual"},
	{plant.Plant{Name: "a residual grows with the learning rate", File: codingFile,
		Old: "k->rate / rate;", New: "PLANTED ? rate / k->rate : k->rate / rate;"}, "TestTheResidualFollowsTheRateThatItIsAppliedWith"},
	{plant.Plant{Name: "results behind a gap are written into it", File: rowsFile,
		Old: "ids[i] == first + i", New: "(PLANTED ? ids[i] >= first + i : ids[i] == first + i)"}, "TestRowsTravelAsPlainGoReadsThem"},
	{plant.Plant{Name: "rows that lie apart are sent as one run", File: rowsFile,
		Old: "places[i].at == places[0].at + i",
		New: "(PLANTED ? places[i].at > places[0].at : places[i].at == places[0].at + i)"}, "TestRowsTravelAsPlainGoReadsThem"},
	{plant.Plant{Name: "a union forgets rows", File: rowsFile,
		Old: "words[from / 32] |=", New: "words[from / 32] = (PLANTED ? 0 : words[from / 32]) |"}, "TestRowsTravelAsPlainGoReadsThem"},
	{plant.Plant{Name: "a union keeps the rows of the step before", File: rowsFile,
		Old: "r->bits[i] = 0;", New: "r->bits[i] = PLANTED ? r->bits[i] : 0;"}, "TestRowsTravelAsPlainGoReadsThem"},
	{plant.Plant{Name: "answers are taken for those of younger messages", File: rowsFile,
		Old: "staging = f->oldest[class];", New: "staging = PLANTED ? f->newest[class] : f->oldest[class];"},
		"TestRowsTravelAsPlainGoReadsThem"},
}

func TestPlantedBugsAreCaught(t *testing.T) {
	if testing.Short() {
		t.Skip("builds these tests with bugs in them; run without -short")
	}
	var bugs []plant.Plant
	var tests []string
	for _, p := range plants {
		bugs, tests = append(bugs, p.Plant), append(tests, p.test)
	}
	bed := plant.Build(t, bugs)
	if out, err := bed.Run(t.Context(), plant.None, "-test.run", "^("+strings.Join(tests, "|")+")$"); err != nil {
		t.Fatalf("without a bug: %v\n%s", err, out)
	}
	for i, p := range plants {
		t.Run(p.Name, func(t *testing.T) {
			out, err := bed.Run(t.Context(), i, "-test.run", "^"+p.test+"$")
			if err == nil || !strings.Contains(out, "--- FAIL: "+p.test) {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}
