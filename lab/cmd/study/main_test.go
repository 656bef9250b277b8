package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rackweave/rackweave/bench/study"
)

func TestEachStudyIsPlotted(t *testing.T) {
	folder := t.TempDir()
	file := filepath.Join(folder, "compress.json")
	curve := func(at float64) []study.Point {
		return []study.Point{{Step: 10, Bytes: at * 1e6, Loss: 2, Accuracy: 50}, {Step: 20, Bytes: at * 2e6, Loss: 1, Accuracy: 90}}
	}
	text, err := json.Marshal([]study.Study{{Name: "digits", Title: "Digits", Rows: []study.Row{
		{Way: "none", Runs: []study.Outcome{{Curve: curve(8)}}}, {Way: "int4/int8", Runs: []study.Outcome{{Curve: curve(1.5)}}},
	}}})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, text, 0o666); err != nil {
		t.Fatal(err)
	}
	cmd := root()
	cmd.SetArgs([]string{"plot", file, filepath.Join(folder, "plots")})
	if err := cmd.ExecuteContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	for name, wants := range map[string][]string{
		"digits-accuracy.svg": {"<svg", "digits: Digits", "int4/int8", "accuracy %"}, "digits-loss.svg": {"<svg", "none", "steps"},
	} {
		svg, err := os.ReadFile(filepath.Join(folder, "plots", name))
		for _, want := range wants {
			if err != nil || !strings.Contains(string(svg), want) {
				t.Errorf("%s: %v, want %s in\n%s", name, err, want, svg)
			}
		}
	}
}

func TestEachStudyOfDataHasItsBoxes(t *testing.T) {
	folder := t.TempDir()
	file := filepath.Join(folder, "data.json")
	text, err := json.Marshal([]study.Study{{Name: "full-sync", Title: "All", Rows: []study.Row{
		{Way: "random", Runs: []study.Outcome{{Accuracy: 96}, {Accuracy: 97}, {Accuracy: 98}}}, {Way: "sbatch", Runs: []study.Outcome{{Accuracy: 96.5}, {Accuracy: 97}, {Accuracy: 97.5}}},
	}}})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, text, 0o666); err != nil {
		t.Fatal(err)
	}
	cmd := root()
	cmd.SetArgs([]string{"plot", file, folder})
	if err := cmd.ExecuteContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	svg, err := os.ReadFile(filepath.Join(folder, "full-sync.svg"))
	for _, want := range []string{"<svg", "full-sync: All", "sbatch", "accuracy %"} {
		if err != nil || !strings.Contains(string(svg), want) {
			t.Errorf("%v, want %s in\n%s", err, want, svg)
		}
	}
}

func TestAFileWithoutStudiesIsRefusedByName(t *testing.T) {
	file := filepath.Join(t.TempDir(), "other.json")
	if err := os.WriteFile(file, []byte("{}"), 0o666); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{file, file + "x"} {
		cmd := root()
		cmd.SetArgs([]string{"plot", name, t.TempDir()})
		if err := cmd.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%v, want it to say %s", err, name)
		}
	}
}
