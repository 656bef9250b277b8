package service

import (
	"fmt"
	"slices"
	"strings"

	"connectrpc.com/connect"

	"github.com/rackweave/rackweave/aggregate"
	"github.com/rackweave/rackweave/hierarchy"
	"github.com/rackweave/rackweave/service/api"
	"github.com/rackweave/rackweave/service/racks"
)

// redirect sends a worker to all aggregators of a cluster of shape flat. It returns nil if the worker is where it should be.
func (s *Service) redirect(r *api.JoinRequest, by *caller) (*api.JoinResponse, error) {
	k := s.cluster
	flat := k != nil && k.topology.Shape == hierarchy.Flat
	switch {
	case r.Parts > 0 && k != nil && !flat:
		return nil, refuse(connect.CodeFailedPrecondition,
			"join job %q: the aggregators of this cluster reduce among themselves, in shape %v: join one of them", r.Job, k.topology.Shape)
	case r.Parts > 0 || !flat:
		return nil, nil
	case !r.Spreads:
		return nil, refuse(connect.CodeFailedPrecondition,
			"join job %q: workers of a cluster of shape flat join all its aggregators, which this one cannot: use a client of the aggregators' version, or another shape",
			r.Job)
	}
	if err := s.mayJoin(r.Job, by); err != nil {
		return nil, err
	}
	k, err := k.now(r.OnLoss)
	if err != nil {
		return nil, refuse(connect.CodeFailedPrecondition, "join job %q: %w", r.Job, err)
	}
	out := &api.JoinResponse{Rack: k.Own}
	for _, other := range k.Racks {
		if other.URL == "" {
			return nil, refuse(connect.CodeFailedPrecondition, "join job %q: no aggregator serves rack %q: start it with --rack %s", r.Job,
				other.Name, other.Name)
		}
		out.Aggregators = append(out.Aggregators, aggregatorOf(other))
	}
	return out, nil
}

// aggregatorOf is a rack's aggregator as workers are told of it.
func aggregatorOf(r racks.Rack) *api.Aggregator {
	a := &api.Aggregator{Url: r.URL, Rack: r.Name}
	if strings.HasPrefix(r.CA, api.Pin) {
		a.Ca = r.CA
	}
	return a
}

// placeSpread gives a worker its place in a job that is spread over several aggregators, each of which has all workers.
func (s *Service) placeSpread(sp *spec, m *member, rack string) error {
	if s.cluster == nil {
		return nil
	}
	k, err := s.cluster.now(sp.onLoss)
	if err != nil {
		return err
	}
	sp.among = k
	if sp.parts != len(k.Racks) || sp.part != k.own {
		return fmt.Errorf("this is taken for aggregator %d of %d, and it is %d of %d: join a rack's aggregator, which names all", sp.part+1,
			sp.parts, k.own+1, len(k.Racks))
	}
	workers, err := k.divide(sp.total)
	if err != nil {
		return err
	}
	at := slices.Index(k.Names(), rack)
	switch {
	case rack == "":
		return fmt.Errorf("this aggregator's cluster has shape %v: join that of the worker's rack alone, which names the others",
			k.topology.Shape)
	case at < 0:
		return fmt.Errorf("rack %q is none of %v: give all aggregators the same cluster", printable(rack, maxHostName), k.Names())
	}
	for _, n := range workers[:at] {
		m.low += n
	}
	m.ranks = workers[at]
	if m.rank >= 0 && (m.rank < m.low || m.rank >= m.low+m.ranks) {
		return &misplaced{fmt.Sprintf("rank %d of %d does not belong to rack %q, which has ranks %d to %d: join the aggregator of its rack",
			m.rank, sp.total, rack, m.low, m.low+m.ranks-1)}
	}
	return nil
}

// part is what of the job is this aggregator's.
func (j *job) part() aggregate.Part {
	p := aggregate.Part{Number: j.spec.part, Of: j.spec.parts}
	if k := j.spec.among; k != nil {
		p.Racks, _ = k.Workers(j.spec.total) // the workers were placed by them
		p.Pods = k.topology.Pods
	}
	return p
}
