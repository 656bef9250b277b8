// Package binary builds this module's commands for tests that run them.
package binary

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
)

const module = "github.com/rackweave/rackweave/"

// Build builds the rackweave command, and others by their folders in this module, into a folder. It returns rackweave's path.
func Build(ctx context.Context, folder string, others ...string) (string, error) {
	args := []string{"build", "-o", folder + string(filepath.Separator), module + "cmd/rackweave"}
	for _, other := range others {
		args = append(args, module+other)
	}
	if out, err := exec.CommandContext(ctx, "go", args...).CombinedOutput(); err != nil {
		return "", fmt.Errorf("build commands: %w: %s", err, out)
	}
	return filepath.Join(folder, "rackweave"), nil
}
