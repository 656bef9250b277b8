package checkpoint

import (
	"cmp"
	"fmt"
	"slices"
)

// retainedState describes the state of a failed run that an aggregator retains.
type retainedState struct {
	Run    string
	Failed int64    // when, in Unix ns
	Racks  []string // of the run
	Owners []int    // among them
	Own    int      // the aggregator's place
	Buddy  []int    // by rack, the rack that also retains its state
	Model  string   // a digest of tensors and optimizer
	Ranges []stepRange
}

// stepRange holds the least and the largest number of changes of a rack's chunks. Retained is set if it has chunks whose state is
// retained.
type stepRange struct {
	Least, Most uint32
	Retained    bool
}

// sound reports whether the description can be used.
func (k *retainedState) sound() bool {
	n := len(k.Racks)
	for _, i := range slices.Concat(k.Owners, k.Buddy, []int{k.Own}) {
		if i < 0 || i >= n {
			return false
		}
	}
	return len(k.Ranges) == n && len(k.Buddy) == n
}

// recovery assigns the state of a failed run to the racks that give it.
type recovery struct {
	run     string
	changes uint32
	owners  [][]uint32 // by rack of the present run, the racks of the failed run whose chunks it gives
}

// recoverFrom finds the last step of a failed run that is whole in the states that the racks of the present run have, which may be
// nil. Of several runs it takes the last that can be restored.
func recoverFrom(there []*retainedState, model string) (*recovery, error) {
	runs := slices.DeleteFunc(slices.Clone(there), func(k *retainedState) bool { return k == nil })
	slices.SortFunc(runs, func(a, b *retainedState) int { return cmp.Compare(b.Failed, a.Failed) })
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
		first = fmt.Errorf("%w: no aggregator of this run has the state of a run that failed", errNotRetained)
	}
	return nil, first
}

// recover returns the recovery of this state's run.
func (k *retainedState) recover(there []*retainedState, model string) (*recovery, error) {
	if k.Model != model {
		return nil, fmt.Errorf("%w: it is of other tensors or another optimizer, %s, the job has %s", errMismatch, k.Model, model)
	}
	r := &recovery{run: k.Run, owners: make([][]uint32, len(there))}
	at := func(rack int) int {
		return slices.IndexFunc(there, func(t *retainedState) bool { return t != nil && t.Run == k.Run && t.Own == rack })
	}
	first, most := true, uint32(0)
	for _, owner := range k.Owners {
		from := at(owner)
		if from < 0 {
			from = at(k.Buddy[owner])
		}
		if from < 0 {
			return nil, fmt.Errorf("%w of rack %q: it was lost, and so was rack %q, its buddy: restore a checkpoint", errNotRetained, k.Racks[owner],
				k.Racks[k.Buddy[owner]])
		}
		g := there[from].Ranges[owner]
		if !g.Retained { // it owns no chunk
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
		return nil, fmt.Errorf("%w: the run ended before its parameters were there in all racks: begin it anew", errNotRetained)
	case most > r.changes+1:
		return nil, fmt.Errorf("%w of one step: some chunks have had %d updates and broadcasts, others %d: register tensors before the first step and push all in each, or restore a checkpoint",
			errNotRetained, r.changes, most)
	}
	return r, nil
}
