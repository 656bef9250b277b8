package aggregate_test

import (
	"testing"

	"github.com/rackweave/rackweave/aggregate/lane"
	"github.com/rackweave/rackweave/cgo/kernel"
	"github.com/rackweave/rackweave/cgo/worker"
	"github.com/rackweave/rackweave/chunk"
)

func TestCAndGoAgreeOnWhatTravels(t *testing.T) {
	if got, want := worker.ImmBits, [...]int{chunk.OpBits, chunk.EpochBits, chunk.IndexBits}; got != want {
		t.Errorf("the immediate has %v bits in C, %v in Go", got, want)
	}
	want := [...]int{
		int(chunk.OpPush), int(chunk.OpPushPull), int(chunk.OpPull), int(chunk.OpBroadcast), int(chunk.OpTensor), int(chunk.OpCommit),
		int(chunk.OpNotice), int(chunk.OpAbort),
	}
	if worker.Ops != want {
		t.Errorf("the operations are %v in C, %v in Go", worker.Ops, want)
	}
	if got, want := worker.Notices, [...]int{chunk.NoticeNACK, chunk.NoticeRequest}; got != want {
		t.Errorf("NACK and request are %v in C, %v in Go", got, want)
	}
	if worker.MaxLaneChunks != chunk.MaxLaneChunks {
		t.Errorf("a lane has at most %d chunks in C, %d in Go", worker.MaxLaneChunks, chunk.MaxLaneChunks)
	}
	for window, fits := range map[int]bool{worker.MaxWindow: true, worker.MaxWindow + 1: false} {
		if _, err := lane.QueueDepths(window, 1, 1<<20, 1<<20); (err == nil) != fits {
			t.Errorf("a window of %d, of at most %d: %v", window, worker.MaxWindow, err)
		}
	}
	if got, want := [...]chunk.DType{kernel.F32, kernel.BF16, kernel.F16}, [...]chunk.DType{chunk.F32, chunk.BF16,
		chunk.F16}; got != want {
		t.Errorf("the element types are %v in C, %v in Go", got, want)
	}
}
