package worker_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// The program links the shared library that framework shims load, so this also holds its C interface complete.
func TestForkedChildIsRefusedAndParentGoesOn(t *testing.T) {
	dir := t.TempDir()
	library := filepath.Join(dir, "librackweave.so.0")
	build := func(name string, args ...string) {
		t.Helper()
		if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", name, err, out)
		}
	}
	cc := os.Getenv("CC")
	if cc == "" {
		cc = "cc"
	}
	build("../../scripts/build-library.sh", library)
	program := filepath.Join(dir, "fork")
	build(cc, "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-o", program, "testdata/fork.c", library, "-Wl,-rpath,"+dir)
	out, err := exec.Command(program).CombinedOutput()
	if err != nil || strings.TrimSpace(string(out)) != "ok" {
		t.Fatalf("%v: %s", err, out)
	}
	symbols, err := exec.Command("nm", "-D", "--defined-only", library).Output()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(symbols)) {
		fields := strings.Fields(line)
		if name := fields[len(fields)-1]; !strings.HasPrefix(name, "rw_") && !strings.HasPrefix(name, "rwf_") {
			t.Errorf("the library exports %s", name)
		}
	}
}
