package aggregate

import (
	"testing"

	"github.com/rackweave/rackweave/cgo/worker"
)

func TestWindowsAreThoseThatWorkersTake(t *testing.T) {
	if minWindow != worker.MinWindow || maxWindow != worker.MaxWindow {
		t.Errorf("the aggregator takes windows of %d to %d, workers of %d to %d", minWindow, maxWindow, worker.MinWindow, worker.MaxWindow)
	}
}
