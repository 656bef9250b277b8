package reduce

import (
	"testing"

	"github.com/rackweave/rackweave/chunk"
)

// A commit visits every chunk once in each of its rounds, moved ones too, although the plan places more chunks here meanwhile.
func TestACommitVisitsGuestsOnceWhileTensorsAreAdded(t *testing.T) {
	const chunks, moved, more = 40, 40, 3
	r := newRig(Config{Workers: 1, Window: 4, Sends: 72, Results: 4, Mode: TwoPhase, Norms: true}, chunks, 1, 4, true)
	for i := range uint32(moved) {
		r.Adopt(chunk.MovedBit|i, Chunk{Bytes: chunkBytes}, 0)
	}
	if got, want := command(t, r, "commit A lr=1"), "reach-barrier\n"; got != want {
		t.Fatalf("%q, want %q", got, want)
	}
	visits := map[Kind]map[int]int{Apply: {}, Scale: {}} // by kind: of a chunk, a moved chunk by its place less than 0
	homes := chunks
	for range 100 {
		if !r.AdvanceCommit(r.now, true) {
			break
		}
		for _, a := range r.Actions {
			for i := int(a.Index); visits[a.Kind] != nil && i < int(a.End); i++ {
				at := i
				if i >= homes {
					at = homes - i - 1
				}
				visits[a.Kind][at]++
			}
			if a.Kind == Apply && homes < chunks+4*more {
				r.Add([]Tensor{{Name: "more", Direct: true}}, make([]Chunk, more))
				homes += more
			}
		}
		r.settle()
	}
	for kind, of := range visits {
		for at := -moved; at < chunks; at++ {
			if of[at] != 1 {
				t.Errorf("%s visited chunk %d %d times, want once", kindNames[kind], at, of[at])
			}
		}
	}
}
