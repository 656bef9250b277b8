package racks

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
)

// What was measured on emulated links agrees with the planner's formula and its simulation. Replace the file by what make racks
// leaves in build/racks.json.
func TestRecordedStepsAgreeWithPlannerAndSimulation(t *testing.T) {
	text, err := os.ReadFile("testdata/racks.json")
	if err != nil {
		t.Fatal(err)
	}
	var rec Record
	if err := json.Unmarshal(text, &rec); err != nil {
		t.Fatal(err)
	}
	agreed := 0
	for _, c := range Claims(rec.Rows) {
		if !strings.Contains(c.Text, "simulated within") && !strings.Contains(c.Text, "predicted within") {
			continue
		}
		if !c.Holds {
			t.Errorf("%s: %+.3f", c.Text, c.Value)
		}
		agreed++
	}
	if agreed < 20 {
		t.Errorf("the record has %d predictions and simulations to compare: want two for each shape over two and four racks", agreed)
	}
}
