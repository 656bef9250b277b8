package main

import (
	"encoding/json"
	"math"
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
		{[]string{"--compress", "int3"}, `unknown codec "int3"`},
		{[]string{"--compress", "int8", "--dtype", "bf16"}, "--compress int8 and --dtype bf16: codecs shorten f32"},
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

// Codecs shorten what workers send and get. Sums cross between racks as they are.
func TestPlanKnowsCodecs(t *testing.T) {
	type plan struct {
		Codecs struct {
			Gradients float64 `json:"gradient_bytes"`
			Answers   float64 `json:"answer_bytes"`
		}
		Bytes  float64
		Shapes []struct {
			Shape   string
			Seconds float64            `json:"bound_seconds"`
			Links   map[string]float64 `json:"bytes_by_link"`
		}
	}
	of := func(args ...string) (p plan) {
		t.Helper()
		out, err := run(t, append(strings.Fields("plan --link 1Gb/s --model resnet50 --json"), args...)...)
		if err == nil {
			err = json.Unmarshal([]byte(out), &p)
		}
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	for codecs, most := range map[string]float64{"int8": 0.255, "int4": 0.13, "sign": 0.255, "none/int4": 1} {
		p := of("--racks", "2", "--compress", codecs)
		worker := p.Shapes[0].Links["worker NIC"]
		if math.Abs(worker-max(p.Codecs.Gradients, p.Codecs.Answers)) > 1 || worker > most*p.Bytes {
			t.Errorf("%s: %v bytes: %+v", codecs, worker, p.Codecs)
		}
		for _, s := range p.Shapes {
			if s.Shape == "sharded" && s.Links["rack uplink"] != p.Bytes {
				t.Errorf("%s: %v bytes of sums between racks, want %v", codecs, s.Links["rack uplink"], p.Bytes)
			}
		}
		if one := of("--racks", "1", "--compress", codecs).Shapes[0].Seconds; math.Abs(one*125e6/worker-1) > 1e-9 {
			t.Errorf("%s: %v s for %v bytes at 1 Gb/s", codecs, one, worker)
		}
	}
	out, err := run(t, strings.Fields("plan --workers 4 --link 1Gb/s --bytes 100MB --compress sign")...)
	if want := "sign/int8: a worker's gradients take 3.4 MB, its answers 25.2 MB: 0.034 and 0.252 of raw"; err != nil ||
		!strings.Contains(out, want) {
		t.Errorf("%v, want %q in\n%s", err, want, out)
	}
}

func TestPlanTakesAModelSmallerThanAChunk(t *testing.T) {
	if _, err := run(t, "plan", "--bytes", "16KB"); err != nil {
		t.Error(err)
	}
}
