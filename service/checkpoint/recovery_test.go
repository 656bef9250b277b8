package checkpoint

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// keptAt is what three racks with buddies say of a run; ranges are by owner.
func keptAt(own int, run string, failed int64, ranges ...stepRange) *retainedState {
	return &retainedState{Run: run, Failed: failed, Racks: []string{"a", "b", "c"}, Owners: []int{0, 1, 2}, Own: own,
		Buddy: []int{1, 2, 0}, Model: "m", Ranges: ranges}
}

func TestTheLastWholeStepIsFoundInWhatRacksKeep(t *testing.T) {
	of := func(least, most uint32) stepRange { return stepRange{least, most, true} }
	none := stepRange{}
	a, b, c := keptAt(0, "r", 2, of(7, 8), none, of(7, 7)), keptAt(1, "r", 2, of(7, 7), of(8, 8), none),
		keptAt(2, "r", 2, none, of(7, 8), of(8, 8))
	for _, tc := range []struct {
		name  string
		there []*retainedState
		model string
		want  string
	}{
		{"all", []*retainedState{a, b, c}, "m", "run r after 7 changes from [[0] [1] [2]]"},
		{"b is lost", []*retainedState{a, nil, c}, "m", "run r after 7 changes from [[0] [] [1 2]]"},
		{"a is lost, and left out", []*retainedState{b, c}, "m", "run r after 7 changes from [[0 1] [2]]"},
		{"neighbours are lost", []*retainedState{a, nil, nil}, "m", `of rack "b": it was lost, and so was rack "c", its buddy`},
		{"nothing is kept", []*retainedState{nil, nil, nil}, "m", "no aggregator of this run has the state"},
		{"another model", []*retainedState{a, b, c}, "other", "of other tensors"},
		{"no broadcast", []*retainedState{keptAt(0, "r", 2, of(0, 1), none, of(0, 0)), b, c}, "m", "before its parameters were there"},
		{"tensors apart", []*retainedState{keptAt(0, "r", 2, of(3, 8), none, of(7, 7)), b, c}, "m",
			"of one step: some chunks have had 3"},
		{"a later run that is not whole", []*retainedState{a, keptAt(1, "later", 3, of(1, 1), of(1, 1), none), c}, "m",
			"run r after 7 changes from [[0] [] [1 2]]"},
	} {
		r, err := recoverFrom(tc.there, tc.model)
		got := fmt.Sprint(err)
		if err == nil {
			got = fmt.Sprintf("run %s after %d changes from %v", r.run, r.changes, r.owners)
		}
		if !strings.Contains(got, tc.want) {
			t.Errorf("%s: %q, want %q", tc.name, got, tc.want)
		}
	}
}

func TestWhatARackSaysItKeepsIsChecked(t *testing.T) {
	for i, spoil := range []func(k *retainedState){
		func(k *retainedState) { k.Own = 3 }, func(k *retainedState) { k.Owners = []int{-1} },
		func(k *retainedState) { k.Buddy = k.Buddy[:2] },
		func(k *retainedState) { k.Buddy = []int{1, 2, 3} }, func(k *retainedState) { k.Ranges = nil },
	} {
		k := keptAt(0, "r", 1, slices.Repeat([]stepRange{{}}, 3)...)
		if !k.sound() {
			t.Fatal("what is sound is refused")
		}
		if spoil(k); k.sound() {
			t.Errorf("spoiled by %d, it is taken", i)
		}
	}
}
