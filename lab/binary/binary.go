// Package binary builds the rackweave command for tests that run it.
package binary

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
)

// Build builds the command into a folder and returns its path.
func Build(ctx context.Context, folder string) (string, error) {
	file := filepath.Join(folder, "rackweave")
	cmd := exec.CommandContext(ctx, "go", "build", "-o", file, "github.com/rackweave/rackweave/cmd/rackweave")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build rackweave: %w: %s", err, out)
	}
	return file, nil
}
