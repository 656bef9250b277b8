package lab

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

const workPrefix = "rackweave-lab-"

// makeWorkDir makes a guest's directory, and removes the directories that killed processes have left.
func makeWorkDir() (string, error) {
	old, _ := filepath.Glob(filepath.Join(os.TempDir(), workPrefix+"*"))
	for _, dir := range old {
		var pid int
		if _, err := fmt.Sscanf(filepath.Base(dir), workPrefix+"%d-", &pid); err == nil &&
			errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
			os.RemoveAll(dir)
		}
	}
	return os.MkdirTemp("", fmt.Sprintf("%s%d-", workPrefix, os.Getpid()))
}
