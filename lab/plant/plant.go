// Package plant builds a package's tests with bugs in the code, which they must find.
package plant

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// Plant is a bug: New replaces Old in a function of the file. In C, New asks PLANTED whether the bug
// is active.
type Plant struct {
	Name     string
	File     string // from the module's root
	Old, New string
}

// Check checks that the plant names one place.
func (p *Plant) Check(t *testing.T) {
	t.Helper()
	text := read(t, filepath.Join(root(t), p.File))
	sow := sow
	if isC(p.File) {
		sow = sowC
	}
	if _, err := sow(p.File, text, []seed{{*p, 1}}); err != nil {
		t.Fatal(err)
	}
}

// Bed is the binary of a package's tests, built with all planted bugs. Each run activates one of them.
type Bed struct{ binary string }

// variable is the environment variable with the number of the active bug, counted from 1.
const variable = "RACKWEAVE_PLANTED"

// Build builds the tests of the package in the working directory with all bugs, without touching the source.
func Build(t *testing.T, plants []Plant) *Bed {
	t.Helper()
	files := make(map[string][]seed)
	for i, p := range plants {
		files[p.File] = append(files[p.File], seed{p, i + 1})
	}
	dir, root := t.TempDir(), root(t)
	overlay := make(map[string]string)
	laid := 0
	lay := func(file, text string) {
		laid++
		overlay[file] = filepath.Join(dir, fmt.Sprint(laid, filepath.Ext(file)))
		if err := os.WriteFile(overlay[file], []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for name, seeds := range files {
		file, sow := filepath.Join(root, name), sow
		if isC(name) {
			sow = sowC
		}
		sown, err := sow(name, read(t, file), seeds)
		if err != nil {
			t.Fatal(err)
		}
		lay(file, sown.text)
		if sown.pkg != "" {
			lay(filepath.Join(filepath.Dir(file), "planted.go"), sown.variable())
		}
	}
	list, err := json.Marshal(map[string]map[string]string{"Replace": overlay})
	if err != nil {
		t.Fatal(err)
	}
	listed, b := filepath.Join(dir, "overlay.json"), &Bed{filepath.Join(dir, "planted.test")}
	if err := os.WriteFile(listed, list, 0o600); err != nil {
		t.Fatal(err)
	}
	build := exec.CommandContext(t.Context(), "go", "test", "-c", "-ldflags=-s -w", "-overlay", listed, "-o", b.binary, ".")
	out, err := build.CombinedOutput()
	if err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	return b
}

// None stands for no bug.
const None = -1

// Run runs the tests with the i-th bug, or with None, and returns their output.
func (b *Bed) Run(ctx context.Context, i int, args ...string) (string, error) {
	c := exec.CommandContext(ctx, b.binary, args...)
	c.Env = append(os.Environ(), fmt.Sprint(variable, "=", i+1))
	out, err := c.CombinedOutput()
	return string(out), err
}

// root returns the module's directory.
func root(t *testing.T) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for dir != filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		dir = filepath.Dir(dir)
	}
	t.Fatal("the working directory is in no module")
	return ""
}

func read(t *testing.T, file string) string {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
