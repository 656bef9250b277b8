package worker_test

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func TestForkedChildIsRefusedAndParentGoesOn(t *testing.T) {
	program := filepath.Join(t.TempDir(), "fork")
	if out, err := exec.Command("../../scripts/build-library.sh", program, "cgo/worker/testdata/fork.c").CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	out, err := exec.Command(program).CombinedOutput()
	if err != nil || strings.TrimSpace(string(out)) != "ok" {
		t.Fatalf("%v: %s", err, out)
	}
}
