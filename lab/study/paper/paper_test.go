package paper

import (
	"math"
	"os"
	"strings"
	"testing"
)

func TestThePageHasTheTablesAsTheyAreComputed(t *testing.T) {
	page, err := os.ReadFile("../../../docs/paper.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, table := range tables {
		t.Run(table.name, func(t *testing.T) {
			if table.long && os.Getenv("RACKWEAVE_LONG") == "" {
				t.Skip("takes a minute: RACKWEAVE_LONG is not set")
			}
			_, got, _, err := cut(string(page), table.name)
			if err != nil {
				t.Fatal(err)
			}
			var want strings.Builder
			table.write(&want)
			if got != want.String() {
				t.Errorf("the page has\n%s\nwant\n%s\nrun go run ./lab/cmd/study paper in the module's root", got, want.String())
			}
		})
	}
}

func TestTable1ComesOutOfOneUnknownPerRow(t *testing.T) {
	for _, r := range table1 {
		u, ok := r.unit()
		if !ok {
			t.Errorf("%s: no unit gives its four cells", r.network)
			continue
		}
		for p := range placements {
			if got := math.Round(u * p.busiest(workers)); got != r.paper[p] {
				t.Errorf("%s, placement %d: %g, the paper prints %g", r.network, p, got, r.paper[p])
			}
		}
	}
}
