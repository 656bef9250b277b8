package report

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
)

// testdata/table.txt: "results" prints the table of a JSON list of results, "replays" that of their breakdowns, "comparison" that
// of a comparison.
func TestTables(t *testing.T) {
	datadriven.RunTest(t, "testdata/table.txt", func(t *testing.T, d *datadriven.TestData) string {
		var out strings.Builder
		switch d.Cmd {
		case "results":
			var results []Result
			decode(t, d, &results)
			WriteTable(&out, results)
		case "replays":
			var results []Result
			decode(t, d, &results)
			WriteReplay(&out, results)
		case "comparison":
			var c Comparison
			decode(t, d, &c)
			c.WriteTable(&out)
		default:
			d.Fatalf(t, "unknown command %q", d.Cmd)
		}
		return out.String()
	})
}

func decode(t *testing.T, d *datadriven.TestData, into any) {
	t.Helper()
	decoder := json.NewDecoder(strings.NewReader(d.Input))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(into); err != nil {
		d.Fatalf(t, "reading the input: %v", err)
	}
}
