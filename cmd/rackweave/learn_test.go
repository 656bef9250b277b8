package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/rackweave/rackweave/bench/study"
)

func TestWhatCannotBeStudiedIsRefusedByName(t *testing.T) {
	fails(t, strings.Fields("bench learn --only lag"), `"lag"`, "policies, lagtuner")
	fails(t, strings.Fields("bench learn --compress --only policies"), `"policies"`, "use digits, digits-skewed")
	fails(t, strings.Fields("bench learn --data --only full"), `"full"`, "use full-sync, full-async")
	fails(t, strings.Fields("bench learn --data --seeds 2"), "2 seeds", "use 3 to 1000, because variances are compared")
	fails(t, strings.Fields("bench learn --data --compress"), "compress data")
	fails(t, strings.Fields("bench learn --seeds 0"), "0 seeds", "use 1 to")
	fails(t, strings.Fields("bench learn --json /nonexistent/learn.json"), "/nonexistent/learn.json")
}

func TestStudiesAreWrittenAsJSON(t *testing.T) {
	if testing.Short() {
		t.Skip("-short is set: this test trains for seconds")
	}
	out, err := run(t, strings.Fields("bench learn --only momentum --seeds 1 --json -")...)
	if err != nil {
		t.Fatal(err)
	}
	var studies []study.Study
	if err := json.Unmarshal([]byte(out), &studies); err != nil {
		t.Fatalf("%v in\n%s", err, out)
	}
	if len(studies) != 1 || studies[0].Name != "momentum" || len(studies[0].Rows) != 6 || studies[0].Rows[0].Runs[0].Accuracy < 90 {
		t.Errorf("%+v", studies)
	}
}
