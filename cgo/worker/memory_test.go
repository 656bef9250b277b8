package worker_test

import (
	"fmt"
	"os"
	"testing"

	"github.com/rackweave/rackweave/cgo/worker"
	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/codec"
)

// resident returns the resident memory of this process in bytes, which may shrink between two calls.
func resident(t *testing.T) int64 {
	t.Helper()
	data, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		t.Fatal(err)
	}
	var size, pages int64
	if _, err := fmt.Sscan(string(data), &size, &pages); err != nil {
		t.Fatal(err)
	}
	return pages * int64(os.Getpagesize())
}

func TestAVeryLargeResidualTakesMemoryAsItIsUsed(t *testing.T) {
	const elems = 1<<29 + 100
	cfg := worker.Config{ChunkBytes: chunk.MaxChunkBytes, Window: 2, SendDepth: 64, Staging: 2}
	w, rc := worker.Open(cfg, make([]worker.NIC, 1), 1)
	if rc < 0 {
		t.Fatalf("open: %d", rc)
	}
	defer worker.Close(w)
	desc := worker.Tensor{Elems: elems, WireType: uint8(chunk.F32), MemoryType: uint8(chunk.F32)}
	lane := make([]uint32, (4*elems+chunk.MaxChunkBytes-1)/chunk.MaxChunkBytes)
	if rc := worker.Add(w, []worker.Tensor{desc}, lane); rc < 0 {
		t.Fatalf("add: %d", rc)
	}
	before := resident(t)
	if rc := worker.Compress(w, 0, worker.Codec{ID: uint8(codec.Int8)}); rc < 0 {
		t.Fatalf("compress: %d", rc)
	}
	if more := resident(t) - before; more > elems {
		t.Errorf("%d bytes are in place for %d elements", more, elems)
	}
}

func TestATensorTakesNoMemoryInLanesWithoutItsChunks(t *testing.T) {
	const tensors, lanes = 100_000, 32
	descs, lane := make([]worker.Tensor, tensors), make([]uint32, tensors)
	for i := range descs {
		descs[i] = worker.Tensor{Elems: 1, WireType: uint8(chunk.F32), MemoryType: uint8(chunk.F32)}
		lane[i] = uint32(i % lanes)
	}
	before := resident(t)
	cfg := worker.Config{ChunkBytes: chunk.MinChunkBytes, Window: 2, SendDepth: 64, Staging: 2}
	w, rc := worker.Open(cfg, make([]worker.NIC, 1), lanes)
	if rc < 0 {
		t.Fatalf("open: %d", rc)
	}
	defer worker.Close(w)
	if rc := worker.Add(w, descs, lane); rc < 0 {
		t.Fatalf("add: %d", rc)
	}
	// A part in every lane would be more than 1 kB for each tensor.
	each := (resident(t) - before) / tensors
	t.Logf("%d bytes for each tensor", each)
	if each > 600 {
		t.Errorf("a tensor of one chunk takes %d bytes in %d lanes", each, lanes)
	}
}

func TestRowsThatDoNotFitInAChunkAreRefused(t *testing.T) {
	p := newPeer(t, worker.Config{}, 0)
	for _, c := range []struct {
		elems  uint64
		width  uint32
		chunks int
		ok     bool
	}{
		{2040, 1020, 2, false}, // with its header, a row has more bytes than a chunk
		{2038, 1019, 1, false}, // a chunk has one row
		{2038, 1019, 2, true},
		{100, 51, 1, false},
		{1 << 32, 1, 1 << 22, false},
	} {
		d := worker.Tensor{Elems: c.elems, Width: c.width, WireType: uint8(chunk.F32), MemoryType: uint8(chunk.F32)}
		if rc := worker.Add(p.w, []worker.Tensor{d}, make([]uint32, c.chunks)); (rc == 0) != c.ok {
			t.Errorf("%d elements in rows of %d and %d chunks: %d, want them taken: %t", c.elems, c.width, c.chunks, rc, c.ok)
		}
	}
}
