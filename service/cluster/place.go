package cluster

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"connectrpc.com/connect"

	"github.com/rackweave/rackweave/aggregate"
	"github.com/rackweave/rackweave/hierarchy"
	"github.com/rackweave/rackweave/hierarchy/outer"
	"github.com/rackweave/rackweave/service/api"
	"github.com/rackweave/rackweave/service/job"
	"github.com/rackweave/rackweave/service/racks"
	"github.com/rackweave/rackweave/service/rpc"
)

// Redirect sends a worker to the aggregator of its rank's rack or, in a cluster of shape flat, to all of them. It returns nil if
// the worker is in its place.
func (k *Cluster) Redirect(r *api.JoinRequest, may func() error) (*api.JoinResponse, error) {
	if k == nil {
		return nil, nil
	}
	flat := k.topology.Shape == hierarchy.Flat
	switch {
	case r.Parts > 0 && !flat:
		return nil, rpc.Refuse(connect.CodeFailedPrecondition,
			"join job %q: the aggregators of this cluster reduce among themselves, in shape %v: join one of them", r.Job, k.topology.Shape)
	case r.Parts > 0:
		return nil, nil
	case !flat:
		return k.toOwnRack(r, may)
	case !r.Spreads:
		return nil, rpc.Refuse(connect.CodeFailedPrecondition,
			"join job %q: workers of a cluster of shape flat join all its aggregators, which this one cannot: use a client of the aggregators' version, or another shape",
			r.Job)
	}
	if err := may(); err != nil {
		return nil, err
	}
	k, err := k.now()
	if err != nil {
		return nil, rpc.Refuse(connect.CodeFailedPrecondition, "join job %q: %w", r.Job, err)
	}
	out := &api.JoinResponse{Rack: k.Own}
	for _, other := range k.Racks {
		if other.URL == "" {
			return nil, rpc.Refuse(connect.CodeFailedPrecondition, "join job %q: no aggregator serves rack %q: start it with --rack %s", r.Job,
				other.Name, other.Name)
		}
		out.Aggregators = append(out.Aggregators, aggregatorOf(other))
	}
	return out, nil
}

// toOwnRack sends a worker to the aggregator of its rank's rack. It returns nil if that is this one, or is not known, and for
// workers that were sent here: aggregators that disagree would send them back.
func (k *Cluster) toOwnRack(r *api.JoinRequest, may func() error) (*api.JoinResponse, error) {
	if !r.Spreads || r.Rank < 0 || r.Rack != "" {
		return nil, nil
	}
	k, err := k.now()
	if err != nil {
		return nil, nil // the call that makes it a member reports why
	}
	workers, err := k.divide(int(r.Workers))
	if err != nil || r.Rank >= int32(r.Workers) {
		return nil, nil
	}
	own := k.Racks[racks.Of(int(r.Rank), workers)]
	if own.Name == k.Own || own.URL == "" {
		return nil, nil
	}
	if err := may(); err != nil {
		return nil, err
	}
	k.jobs.Log.Info("worker sent to its rack's aggregator", "job", r.Job, "rank", r.Rank, "host",
		rpc.Printable(r.Host, rpc.MaxNameBytes), "rack", own.Name)
	return &api.JoinResponse{Rack: own.Name, Aggregators: []*api.Aggregator{aggregatorOf(own)}}, nil
}

// Place gives a worker its place in this rack: a job's workers are divided among the racks, and ranks count through them.
func (k *Cluster) Place(sp *job.Spec, m *job.Member, r *api.JoinRequest) error {
	if k != nil {
		if err := k.place(sp, m, r.Rack); err != nil {
			return err
		}
	}
	return k.chooseOuter(sp, r.Outer)
}

func (k *Cluster) place(sp *job.Spec, m *job.Member, rack string) error {
	k, err := k.now()
	if err != nil {
		return err
	}
	if sp.Parts > 0 && (sp.Parts != len(k.Racks) || sp.Part != k.own) {
		return fmt.Errorf("the worker takes this for aggregator %d of %d, and it is %d of %d: join a rack's aggregator, which names all", sp.Part+1,
			sp.Parts, k.own+1, len(k.Racks))
	}
	workers, err := k.divide(sp.Total)
	switch {
	case err != nil:
		return err
	case sp.Parts > 0:
		return k.placeSpread(sp, m, rack, workers)
	}
	for _, n := range workers[:k.own] {
		m.First += n
	}
	sp.Racks, sp.Workers = &Rendezvous{run: run{k: k}, workers: workers}, workers[k.own]
	m.Ranks = sp.Workers
	if m.Rank < 0 {
		return nil
	}
	rank := m.Rank
	if m.Rank -= m.First; m.Rank < 0 || m.Rank >= sp.Workers {
		own := k.Racks[racks.Of(rank, workers)]
		remedy := "join the aggregator at " + cmp.Or(own.URL, "its URL")
		if rack == k.Own {
			remedy = "another aggregator sends it here: " + sameFile
		}
		return k.misplaced("rank %d of %d belongs to rack %q, this is rack %q with ranks %d to %d: %s", rank, sp.Total, own.Name,
			k.Own, m.First, m.First+sp.Workers-1, remedy)
	}
	return nil
}

// misplaced returns the error of a worker that has joined another rack than its own.
func (k *Cluster) misplaced(format string, args ...any) error {
	return &job.Unplaced{Err: fmt.Errorf(format, args...), Misplaced: true, Planned: k.Members != nil}
}

// placeSpread gives a worker its place in a job that is spread over several aggregators, each of which has all workers.
func (k *Cluster) placeSpread(sp *job.Spec, m *job.Member, rack string, workers []int) error {
	sp.Racks = &flat{k: k, workers: workers}
	at := slices.Index(k.Names(), rack)
	switch {
	case rack == "":
		return fmt.Errorf("this aggregator's cluster has shape %v: join that of the worker's rack alone, which names the others",
			k.topology.Shape)
	case at < 0:
		return fmt.Errorf("rack %q is not one of %v: give all aggregators the same cluster", rpc.Printable(rack, rpc.MaxNameBytes), k.Names())
	}
	for _, n := range workers[:at] {
		m.Low += n
	}
	m.Ranks = workers[at]
	if m.Rank >= 0 && (m.Rank < m.Low || m.Rank >= m.Low+m.Ranks) {
		return k.misplaced("rank %d of %d does not belong to rack %q, which has ranks %d to %d: join the aggregator of its rack",
			m.Rank, sp.Total, rack, m.Low, m.Low+m.Ranks-1)
	}
	return nil
}

// chooseOuter sets the outer optimizer of a job: as its worker declares it, or as the cluster's file does.
func (k *Cluster) chooseOuter(sp *job.Spec, text string) (err error) {
	if k != nil {
		text = cmp.Or(text, k.Outer)
	}
	if sp.Outer, err = outer.Parse(text); err != nil || sp.Outer == (outer.Optimizer{}) {
		return err
	}
	switch {
	case k == nil:
		return fmt.Errorf("outer %q, and this aggregator is of no cluster: leave it out, or join the aggregators of several racks", text)
	case k.topology.Shape == hierarchy.Flat:
		return fmt.Errorf("outer %q has racks train on their own, and in shape flat no aggregator has a rack's sums: use another shape, or outer none",
			text)
	case sp.Mode != aggregate.Eager:
		return fmt.Errorf("outer %q has racks train on their own, which mode %v cannot: use mode %v, or outer none", text, sp.Mode,
			aggregate.Eager)
	}
	return nil
}

// flat holds the racks of a job whose workers send each chunk to its owner, which adds the gradients rack by rack.
type flat struct {
	job.OneRack
	k       *Cluster
	workers []int    // by rack
	j       *job.Job // set when the job forms
}

// Form places the job as one of this rack, with the workers of each rack.
func (f *flat) Form(ctx context.Context, j *job.Job) (job.Placement, error) {
	f.j = j
	p, err := f.OneRack.Form(ctx, j)
	p.Racks, p.Pods = f.workers, f.k.topology.Pods
	return p, err
}

// Welcome adds the numbers of workers by rack to the answer to a worker.
func (f *flat) Welcome(out *api.JoinResponse) { f.k.welcome(f.j, f.workers, out) }
