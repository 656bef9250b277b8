package data

import (
	"fmt"
	"os"

	deal "github.com/rackweave/rackweave/data"
	"github.com/rackweave/rackweave/service/api"
)

// replay deals the sets of jobs as a journal has them.
type replay map[[2]string]*recording // by job and set

// recording has the batches that the workers of a set got.
type recording struct {
	*deal.Recorder
	terms  *api.OpenDataRequest
	broken error // why it cannot be dealt again
}

// readReplay reads a journal, which may end in a torn line.
func readReplay(dir, file string) (replay, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	r := replay{}
	b := &Beside{Server: NewServer(Config{Dir: dir}), jobs: map[string]*named{}, sessions: map[string]*opened{}}
	b.dealer = r.record
	if _, err = redoAll(f, b.redo); err != nil {
		return nil, fmt.Errorf("journal %s: %w", file, err)
	}
	return r, nil
}

// record records what a dealer deals.
func (r replay) record(job string, terms *api.OpenDataRequest, state *api.DataState, d deal.Dealer) (deal.Dealer, error) {
	key := [2]string{job, terms.Set}
	one := r[key]
	if one == nil {
		one = &recording{Recorder: deal.NewRecorder(d, int(terms.Workers)), terms: terms}
		r[key] = one
		return one, nil
	}
	if name, _, _ := differ(one.terms, terms, agreed...); name != "" || state != nil {
		one.broken = fmt.Errorf("workers of job %q began set %q again with other settings, or from a state", job, terms.Set)
		return d, nil
	}
	one.GoOn(d)
	return one, nil
}

// deal returns a dealer of what was recorded.
func (r replay) deal(job string, terms *api.OpenDataRequest, _ *api.DataState, _ deal.Dealer) (deal.Dealer, error) {
	one := r[[2]string{job, terms.Set}]
	switch {
	case one == nil:
		return nil, fmt.Errorf("the journal has no set %q of job %q: open one that it has", terms.Set, job)
	case one.broken != nil:
		return nil, fmt.Errorf("%w: the journal cannot be replayed", one.broken)
	}
	if name, have, mine := differ(one.terms, terms, agreed...); name != "" {
		return nil, fmt.Errorf("the journal has the set with %s %v, and it is opened with %v: open it as it was", name, have, mine)
	}
	return deal.NewReplay(one.Batches), nil
}
