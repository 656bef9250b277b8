package cluster

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/rackweave/rackweave/service/api"
	"github.com/rackweave/rackweave/service/job"
	"github.com/rackweave/rackweave/service/racks"
)

// lookAgain is the interval at which a job that waits for its racks looks at the plan, because a lease ends without an event.
const lookAgain = 500 * time.Millisecond

// now returns the racks of a job that begins now. The plan may leave out racks that were lost.
func (k *Cluster) now() (*Cluster, error) {
	if k.Members == nil {
		return k, nil
	}
	s := k.Members.Standing()
	if s.Fenced {
		return nil, &job.Unplaced{Err: k.vacant(&s), Planned: true}
	}
	c := *k.Cluster
	c.Racks = slices.Clone(c.Racks)
	for i, h := range s.Plan.Holders {
		c.Racks[i].URL = h.URL
	}
	if k.Loss() == racks.LossGoOn && s.Plan.Epoch > 0 && !s.Plan.Holders[k.own].Out {
		c.Racks = slices.DeleteFunc(c.Racks, func(r racks.Rack) bool { return s.Plan.Holders[slices.Index(k.Names(), r.Name)].Out })
	}
	return k.over(&c)
}

// divide divides a job's workers among its racks. Where jobs go on without lost ones, they may be more here than by a later plan.
func (k *Cluster) divide(total int) ([]int, error) {
	workers, err := k.Workers(total)
	if err != nil && k.Members != nil && k.Loss() == racks.LossGoOn {
		return nil, &job.Unplaced{Err: err, Planned: true}
	}
	return workers, err
}

// vacant returns the reason for which a job cannot begin, or nil if it can.
func (k *Cluster) vacant(s *racks.Standing) error {
	if s.Refusal != nil {
		return s.Refusal
	}
	for i, r := range k.Racks {
		h := k.holder(&s.Plan, r.Name)
		if i != k.own && h.Aggregator == "" {
			return fmt.Errorf("no aggregator serves rack %q by the plan of epoch %d: start it with --rack %s", r.Name, s.Plan.Epoch, r.Name)
		}
	}
	return nil
}

// without returns an error if the plan has left out a rack for which a job waits, because the job goes on without it.
func (k *Cluster) without(p *racks.Plan) error {
	if k.Loss() != racks.LossGoOn || k.holder(p, k.Own).Out {
		return nil
	}
	for _, r := range k.Racks {
		if k.holder(p, r.Name).Out {
			return fmt.Errorf("jobs go on without rack %q by the plan of epoch %d: join again, without its workers", r.Name, p.Epoch)
		}
	}
	return nil
}

// aggregators returns the aggregators of the job's racks, without the URL of one that is not known.
func (k *Cluster) aggregators() (all []*api.Aggregator) {
	for _, r := range k.Racks {
		if k.Members != nil {
			s := k.Members.Standing()
			r.URL = k.holder(&s.Plan, r.Name).URL
		}
		all = append(all, aggregatorOf(r))
	}
	return all
}

// reach waits until all racks are served by the plan, and returns the aggregators of the others.
func (k *Cluster) reach(ctx context.Context) ([]peer, error) {
	for k.Members != nil {
		changed := k.Members.Changed()
		s := k.Members.Standing()
		why := k.vacant(&s)
		if why == nil {
			return k.dial(&s.Plan), nil
		}
		if s.Fenced {
			return nil, why
		}
		if why := k.without(&s.Plan); why != nil {
			return nil, why
		}
		select {
		case <-changed:
		case <-time.After(lookAgain):
		case <-ctx.Done():
			return nil, fmt.Errorf("not all racks have an aggregator in time: %w", why)
		}
	}
	return k.dial(nil), nil
}

// FollowPlan ends jobs that run over a rack that the plan gives to another aggregator, until the service ends.
func (k *Cluster) FollowPlan(running func() []*job.Job) {
	for k.planned() {
		changed := k.Members.Changed()
		standing := k.Members.Standing()
		for _, j := range running() {
			k.follow(j, &standing)
		}
		select {
		case <-changed:
		case <-k.jobs.Closing:
			return
		}
	}
}

// follow fails a job if one of its racks is another aggregator's. A rack that is nobody's does not: the data path notices failures.
func (h *hub) follow(j *job.Job, s *racks.Standing) {
	if s.Fenced {
		j.Agg.Fail(-1, s.Refusal)
		return
	}
	r, several := j.Spec.Racks.(*Rendezvous)
	if !several {
		return
	}
	k := r.k
	for i, p := range r.peers {
		if h := k.holder(&s.Plan, k.Racks[i].Name); i != k.own && h.Aggregator != "" && h.Aggregator != p.aggregator {
			j.Agg.Fail(-1, fmt.Errorf("rack %q is now served by %v, and the job ran with the aggregator at %s: join again", k.Racks[i].Name, h, p.url))
			return
		}
	}
}

// Describe adds the membership to the status.
func (k *Cluster) Describe(out *api.StatusResponse) {
	s, planned := k.Standing()
	if !planned {
		return
	}
	m := &api.Membership{Epoch: s.Plan.Epoch, Leader: s.Store.Leader, Reachable: s.Store.Reachable, LeaseSeconds: s.Store.Seconds}
	if s.Refusal != nil {
		m.Refusal = s.Refusal.Error()
	}
	for _, r := range k.Racks {
		h := k.holder(&s.Plan, r.Name)
		m.Racks = append(m.Racks, &api.RackHolder{Name: r.Name, Url: h.URL, Token: h.Token, Out: h.Out, Own: r.Name == k.Own,
			Size: uint32(max(r.Size, 1))})
	}
	out.Membership = m
}

// aggregatorOf returns a rack's aggregator as Join names it.
func aggregatorOf(r racks.Rack) *api.Aggregator {
	a := &api.Aggregator{Url: r.URL, Rack: r.Name}
	if strings.HasPrefix(r.CA, api.Pin) {
		a.Ca = r.CA
	}
	return a
}
