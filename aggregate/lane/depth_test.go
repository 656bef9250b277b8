package lane

import (
	"testing"

	"github.com/rackweave/rackweave/cgo/worker"
)

func TestWindowsAreThoseThatWorkersTake(t *testing.T) {
	if MinWindow != worker.MinWindow || MaxWindow != worker.MaxWindow {
		t.Errorf("the aggregator takes windows of %d to %d, workers of %d to %d", MinWindow, MaxWindow, worker.MinWindow, worker.MaxWindow)
	}
}
