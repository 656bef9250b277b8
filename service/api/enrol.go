package api

import (
	"fmt"
	"net/url"
	"slices"
)

// Aggregators are those that a worker's configuration names, by URL, known by a CA.
func Aggregators(urls []string, ca string) (all []*Aggregator) {
	for _, u := range urls {
		all = append(all, &Aggregator{Url: u, Ca: ca})
	}
	return all
}

// Enrol has a worker join all aggregators that its job is spread over, in the order in which all workers do. Where one alone is
// named it joins that, which may answer with those instead. join makes the Join call, and returns what keeps the aggregator as one
// that the worker has joined. The first of several chooses the rank and what carries data.
func Enrol(named []*Aggregator, r *JoinRequest,
	join func(at *Aggregator) (info *JoinResponse, keep func() error, err error)) error {
	all := named
	if len(all) == 1 {
		info, keep, err := join(all[0])
		if err != nil {
			return err
		}
		if len(info.Aggregators) == 0 {
			return keep()
		}
		all, r.Rack = info.Aggregators, info.Rack
		for _, a := range all {
			if a.Ca == "" {
				a.Ca = named[0].Ca
			}
		}
	}
	if (r.Provider == "" || r.Provider == "auto") && !sameHost(all) {
		r.Providers = slices.DeleteFunc(r.Providers, func(p string) bool { return p == "shm" })
	}
	r.Parts = uint32(len(all))
	for i, at := range all {
		r.Part = uint32(i)
		info, keep, err := join(at)
		if err == nil {
			err = keep()
		}
		if err != nil {
			return fmt.Errorf("aggregator %d of %d at %s: %w", i+1, len(all), at.Url, err)
		}
		r.Rank, r.Provider = int32(info.Rank), info.Provider
	}
	return nil
}

// sameHost reports whether aggregators have one host by their names, so that memory may be shared with all.
func sameHost(all []*Aggregator) bool {
	host := func(a *Aggregator) string {
		u, err := url.Parse(a.Url)
		if err != nil {
			return a.Url // dialling it will say what is wrong
		}
		return u.Hostname()
	}
	return !slices.ContainsFunc(all, func(a *Aggregator) bool { return host(a) != host(all[0]) })
}
