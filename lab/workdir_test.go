package lab

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

func TestDirectoriesOfDeadProcessesAreRemoved(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	dead := exec.Command("true")
	if err := dead.Run(); err != nil {
		t.Fatal(err)
	}
	left := filepath.Join(os.TempDir(), fmt.Sprintf("%s%d-1", workPrefix, dead.Process.Pid))
	if err := os.MkdirAll(filepath.Join(left, "shared"), 0o755); err != nil {
		t.Fatal(err)
	}
	mine, err := makeWorkDir()
	if err != nil {
		t.Fatal(err)
	}
	next, err := makeWorkDir()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(left); !os.IsNotExist(err) {
		t.Errorf("%s is still there", left)
	}
	for _, dir := range []string{mine, next} {
		if _, err := os.Stat(dir); err != nil {
			t.Errorf("a live process's directory: %v", err)
		}
	}
}
