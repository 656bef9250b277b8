package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/rackweave/rackweave/bench/study/learn"
)

func TestWhatCannotBeStudiedIsRefusedByName(t *testing.T) {
	fails(t, strings.Fields("bench learn --only lag"), `"lag"`, "policies, lagtuner")
	fails(t, strings.Fields("bench learn --compress --only policies"), `"policies"`, "use digits, digits-skewed")
	fails(t, strings.Fields("bench learn --seeds 0"), "0 seeds", "use 1 to")
	fails(t, strings.Fields("bench learn --json /nonexistent/learn.json"), "/nonexistent/learn.json")
}

func TestStudiesAreWrittenAsJSON(t *testing.T) {
	if testing.Short() {
		t.Skip("trains for seconds; run without -short")
	}
	out, err := run(t, strings.Fields("bench learn --only momentum --seeds 1 --json -")...)
	if err != nil {
		t.Fatal(err)
	}
	var studies []learn.Study
	if err := json.Unmarshal([]byte(out), &studies); err != nil {
		t.Fatalf("%v in\n%s", err, out)
	}
	if len(studies) != 1 || studies[0].Name != "momentum" || len(studies[0].Rows) != 6 || studies[0].Rows[0].Accuracy.Mean < 90 {
		t.Errorf("%+v", studies)
	}
}
