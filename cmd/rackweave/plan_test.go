package main

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestPlanChoosesAShape(t *testing.T) {
	out, err := run(t, "plan", "--racks", "8", "--pods", "2", "--workers", "16", "--link", "25Gb/s", "--core", "4:1",
		"--pod-core", "8:1",
		"--model", "bert-large", "--json")
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		Best   string
		Bytes  float64
		Shapes []struct {
			Shape   string
			Seconds float64
			Unfit   string
			Links   map[string]float64 `json:"bytes_by_link"`
		}
	}
	if err := json.Unmarshal([]byte(out), &got); err != nil {
		t.Fatal(err)
	}
	if got.Best != "pods" || got.Shapes[0].Shape != "pods" || got.Shapes[0].Links["pod uplink"] != got.Bytes {
		t.Errorf("%+v", got)
	}
	for _, s := range got.Shapes[len(got.Shapes)-2:] { // no aggregator adds along racks whose pods' sums come first
		if s.Shape != "chain" && s.Shape != "ring" || s.Unfit == "" {
			t.Errorf("of the shapes that do not fit one comes as %+v", s)
		}
	}
}

func TestPlanNamesWhatItCannotUse(t *testing.T) {
	for _, tc := range []struct {
		args []string
		want string
	}{
		{[]string{"--link", "fast"}, `--link "fast" is not a rate: write it as 100Gb/s or 12.5GB/s`},
		{[]string{"--racks", "2", "--core", "4:2"}, `--core "4:2" is not an oversubscription: write it as 4:1`},
		{[]string{"--racks", "4", "--pods", "3"}, "4 racks in 3 pods"},
		{[]string{"--racks", "0"}, "0 racks of 8 workers"},
		{[]string{"--racks", "2000000000"}, "2000000000 racks: use 1 to 64"},
		{[]string{"--memory", "-1GB/s"}, `--memory "-1GB/s"`},
		{[]string{"--model", "resnet5"}, "resnet5"},
		{[]string{"--compute", "-5ms"}, "--compute -5ms: use a time of at least 0"},
		{[]string{"--racks", "4", "--pod-core", "4:1"}, "--pod-core 4:1 without pods"},
		{[]string{"--core", "4:1"}, "--core 4:1 with one rack"},
		{[]string{"--racks", "2", "--core", "1e308:1"}, `--core "1e308:1" is not an oversubscription`},
	} {
		if _, err := run(t, append([]string{"plan"}, tc.args...)...); err == nil || !strings.Contains(err.Error(),
			tc.want) {
			t.Errorf("%v: %v, expected %q", tc.args, err, tc.want)
		}
	}
}

// A step is bound by whatever is tightest, and one aggregator carries its rack's workers at that step.
func TestPlanIsBoundByMemory(t *testing.T) {
	out, err := run(t, "plan", "--racks", "48", "--workers", "40", "--core", "4:1", "--model", "gpt2-xl",
		"--memory", "90GB/s", "--json")
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		Bytes  float64
		Shapes []struct {
			BoundSeconds float64 `json:"bound_seconds"`
			Binding      string
		}
		Carries struct {
			Workers int
			Binding string
		} `json:"workers_per_aggregator"`
	}
	if err := json.Unmarshal([]byte(out), &got); err != nil {
		t.Fatal(err)
	}
	s, least := got.Shapes[0], 40*got.Bytes/45e9
	if s.Binding != "aggregator's memory" || s.BoundSeconds < least || got.Carries.Workers < 40 || got.Carries.Binding != "memory" {
		t.Errorf("%+v, at least %g s; one aggregator carries %+v", s, least, got.Carries)
	}
}

func TestPlanTakesAModelSmallerThanAChunk(t *testing.T) {
	if _, err := run(t, "plan", "--bytes", "16KB"); err != nil {
		t.Error(err)
	}
}
