//go:build !plant

package simrack

import (
	"context"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// Bugs can be planted only in a build of their own (aggregate/plant.go): this makes and runs it.
func TestPlantedBugsAreCaught(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the tests anew; run without -short")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, "go", "test", "-tags", "plant", "-count=1", "-v", "-run", "TestPlantedBugsAreCaught", ".").CombinedOutput()
	if err != nil || !strings.Contains(string(out), "caught by seed") {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Logf("%s", out)
}
