package data

import (
	"fmt"
	"os"
	"time"

	deal "github.com/rackweave/rackweave/data"
	"github.com/rackweave/rackweave/service/api"
)

// recording holds the batches that were dealt to the workers of a set.
type recording struct {
	*deal.Record
	terms  *api.OpenDataRequest
	broken error // why it cannot be dealt again
}

// readReplay reads a journal, which may end in a torn line, and returns what deals the sets of jobs as the journal has them.
func readReplay(dir, file string) (func(string, *api.OpenDataRequest, deal.Dealer) (deal.Dealer, error), error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	recordings := map[[2]string]*recording{} // by job and set
	b := &Beside{Server: NewServer(Config{Dir: dir}), timeout: time.Hour, sessions: map[string]*opened{}}
	b.dealer = func(job string, terms *api.OpenDataRequest, d deal.Dealer) (deal.Dealer, error) {
		key := [2]string{job, terms.Set}
		one := recordings[key]
		if one == nil {
			one = &recording{Record: deal.NewRecord(d, int(terms.Workers)), terms: terms}
			recordings[key] = one
			return one, nil
		}
		if name, _, _ := differ(one.terms, terms, agreed...); name != "" || terms.State != nil {
			one.broken = fmt.Errorf("workers of job %q began set %q again with other settings, or from a state", job, terms.Set)
			return d, nil
		}
		one.GoOn(d)
		return one, nil
	}
	if _, err = redoAll(f, b.redo); err != nil {
		return nil, fmt.Errorf("journal %s: %w", file, err)
	}
	return func(job string, terms *api.OpenDataRequest, _ deal.Dealer) (deal.Dealer, error) {
		one := recordings[[2]string{job, terms.Set}]
		switch {
		case one == nil:
			return nil, fmt.Errorf("the journal has no set %q of job %q: open one that it has", terms.Set, job)
		case one.broken != nil:
			return nil, fmt.Errorf("%w: the journal cannot be replayed", one.broken)
		}
		if name, have, mine := differ(one.terms, terms, agreed...); name != "" {
			return nil, fmt.Errorf("the journal has the set with %s %v, and it is opened with %v: open it as it was", name, have, mine)
		}
		one.GoOn(nil)
		return one.Record, nil
	}, nil
}
