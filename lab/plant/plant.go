// Package plant builds a package's tests with a bug in the code that they must find.
package plant

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Plant is a bug: in a build of its own, New stands where the file has Old.
type Plant struct {
	Name     string
	File     string // from the module's root
	Old, New string
}

// Check checks that the plant names one place.
func (p *Plant) Check(t *testing.T) { p.mutate(t) }

// mutate returns the plant's file, and its text with the bug in it.
func (p *Plant) mutate(t *testing.T) (file, text string) {
	t.Helper()
	root, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for root != filepath.Dir(root) {
		if _, err := os.Stat(filepath.Join(root, "go.mod")); err == nil {
			break
		}
		root = filepath.Dir(root)
	}
	file = filepath.Join(root, p.File)
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(b), p.Old); n != 1 {
		t.Fatalf("%s has %q %d times: change the plant so that it names one place", p.File, p.Old, n)
	}
	return file, strings.Replace(string(b), p.Old, p.New, 1)
}

// Build builds the tests of the package in the working directory with the bug, without touching the source.
func (p *Plant) Build(ctx context.Context, t *testing.T) (binary string) {
	t.Helper()
	file, text := p.mutate(t)
	dir := t.TempDir()
	mutant := filepath.Join(dir, "mutant.go")
	overlay, err := json.Marshal(map[string]map[string]string{"Replace": {file: mutant}})
	if err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string][]byte{mutant: []byte(text), filepath.Join(dir, "overlay.json"): overlay} {
		if err := os.WriteFile(name, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	binary = filepath.Join(dir, "planted.test")
	out, err := exec.CommandContext(ctx, "go", "test", "-c", "-ldflags=-s -w", "-overlay", filepath.Join(dir, "overlay.json"),
		"-o", binary, ".").CombinedOutput()
	if err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	return binary
}
