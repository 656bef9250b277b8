package reduce

import "testing"

// A commit visits every chunk once in each of its rounds, although the plan places more chunks here meanwhile.
func TestACommitVisitsChunksOnceWhileTensorsAreAdded(t *testing.T) {
	const chunks, more = 80, 3
	r := newRig(Config{Workers: 1, Window: 4, Sends: 72, Results: 4, Mode: TwoPhase, Norms: true}, chunks, 1, 4, true)
	if got, want := command(t, r, "commit A lr=1"), "reach-barrier\n"; got != want {
		t.Fatalf("%q, want %q", got, want)
	}
	visits := map[Kind]map[int]int{Apply: {}, Scale: {}} // of chunks, by kind
	placed := chunks
	for range 100 {
		if !r.AdvanceCommit(r.now, true) {
			break
		}
		for _, a := range r.Actions {
			for i := int(a.Index); visits[a.Kind] != nil && i < int(a.End); i++ {
				visits[a.Kind][i]++
			}
			if a.Kind == Apply && placed < chunks+4*more {
				r.Add([]Tensor{{Name: "more", Direct: true}}, make([]Chunk, more))
				placed += more
			}
		}
		r.settle()
	}
	for kind, of := range visits {
		for at := range chunks {
			if of[at] != 1 {
				t.Errorf("%s visited chunk %d %d times, want once", kindNames[kind], at, of[at])
			}
		}
	}
}
