package service

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
)

// errNotKept is wrapped by the errors of a state that cannot be taken up again.
var errNotKept = errors.New("the state is not kept")

// keptThere is what an aggregator says of the state that it keeps of a run.
type keptThere struct {
	Run    string
	Failed int64    // when, in Unix ns
	Racks  []string // of the run
	Owners []int    // among them
	Own    int      // the aggregator's place
	Buddy  []int    // by rack, who keeps its state, too
	Model  string   // a digest of tensors and optimizer
	Ranges []keptRange
}

// keptRange is the least and the most changes that a rack's chunks have had; Kept: it has chunks, and their state is there.
type keptRange struct {
	Least, Most uint32
	Kept        bool
}

// sound reports whether what another aggregator says can be used.
func (k *keptThere) sound() bool {
	n := len(k.Racks)
	for _, i := range slices.Concat(k.Owners, k.Buddy, []int{k.Own}) {
		if i < 0 || i >= n {
			return false
		}
	}
	return len(k.Ranges) == n && len(k.Buddy) == n
}

// recovery is where the state of a failed run comes from.
type recovery struct {
	run     string
	changes uint32
	owners  [][]uint32 // by rack of the present run, the racks of the failed run whose chunks it gives
}

// recoverFrom finds the last step of a failed run that is whole in what the racks of the present run have; nil: one has nothing. Of
// several runs it is the last that can be taken up.
func recoverFrom(there []*keptThere, model string) (*recovery, error) {
	runs := slices.DeleteFunc(slices.Clone(there), func(k *keptThere) bool { return k == nil })
	slices.SortFunc(runs, func(a, b *keptThere) int { return cmp.Compare(b.Failed, a.Failed) })
	var first error
	for _, k := range runs {
		r, err := k.recover(there, model)
		if err == nil {
			return r, nil
		}
		if first == nil {
			first = err
		}
	}
	if first == nil {
		first = fmt.Errorf("%w: no aggregator of this run has any of a run that failed", errNotKept)
	}
	return nil, first
}

// recover takes up this one's run.
func (k *keptThere) recover(there []*keptThere, model string) (*recovery, error) {
	if k.Model != model {
		return nil, fmt.Errorf("%w: it is of other tensors or another optimizer, %s, the job has %s", errMismatch, k.Model, model)
	}
	r := &recovery{run: k.Run, owners: make([][]uint32, len(there))}
	at := func(rack int) int {
		return slices.IndexFunc(there, func(t *keptThere) bool { return t != nil && t.Run == k.Run && t.Own == rack })
	}
	first, most := true, uint32(0)
	for _, owner := range k.Owners {
		from := at(owner)
		if from < 0 {
			from = at(k.Buddy[owner])
		}
		if from < 0 {
			return nil, fmt.Errorf("%w of rack %q: it was lost, and so was rack %q, its buddy: restore a checkpoint", errNotKept, k.Racks[owner],
				k.Racks[k.Buddy[owner]])
		}
		g := there[from].Ranges[owner]
		if !g.Kept { // it owns no chunk
			continue
		}
		r.owners[from] = append(r.owners[from], uint32(owner))
		if first || g.Least < r.changes {
			r.changes = g.Least
		}
		first, most = false, max(most, g.Most)
	}
	switch {
	case first || r.changes == 0:
		return nil, fmt.Errorf("%w: the run ended before its parameters were there in all racks: begin it anew", errNotKept)
	case most > r.changes+1:
		return nil, fmt.Errorf("%w of one step: some chunks have had %d updates and broadcasts, others %d: register tensors before the first step and push all in each, or restore a checkpoint",
			errNotKept, r.changes, most)
	}
	return r, nil
}
