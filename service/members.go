package service

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"connectrpc.com/connect"

	"github.com/rackweave/rackweave/service/api"
	"github.com/rackweave/rackweave/service/racks"
)

// lookAgain is how often a job that waits for its racks looks whether it may begin: a lease ends without a word.
const lookAgain = 500 * time.Millisecond

// names are the racks' names, for comparison.
func (k *cluster) names() string {
	if k == nil {
		return ""
	}
	return fmt.Sprint(k.Names())
}

// now returns the racks that a job that begins now runs over. onLoss is the job's choice about racks that were lost; empty: the
// cluster's, by whose plan some may be left out.
func (k *cluster) now(onLoss string) (*cluster, error) {
	switch onLoss {
	case "", k.Loss():
	case racks.LossWait, racks.LossFail:
		if k.Members == nil {
			return nil, fmt.Errorf("on-loss %q, and no etcd keeps who serves which rack: leave it out", onLoss)
		}
	case racks.LossGoOn:
		return nil, fmt.Errorf("on-loss %q is not the cluster's choice, and no plan leaves racks out: have its file say so, or use %s or %s",
			onLoss, racks.LossWait, racks.LossFail)
	default:
		return nil, fmt.Errorf("on-loss %q: use one of %v", printable(onLoss, maxHostName), racks.Losses)
	}
	if k.Members == nil {
		return k, nil
	}
	loss := cmp.Or(onLoss, k.Loss())
	s := k.Members.Standing()
	if s.Fenced {
		return nil, &unplanned{k.vacant(&s)}
	}
	if loss == racks.LossFail && k.lost(&s.Plan) {
		return nil, k.vacant(&s)
	}
	c := *k.Cluster
	c.Racks, c.OnLoss = slices.Clone(c.Racks), loss
	for i, h := range s.Plan.Holders {
		c.Racks[i].URL = h.URL
	}
	if loss == racks.LossGoOn && s.Plan.Epoch > 0 && !s.Plan.Holders[k.own].Out {
		c.Racks = slices.DeleteFunc(c.Racks, func(r racks.Rack) bool { return s.Plan.Holders[k.index(r.Name)].Out })
	}
	return k.over(&c)
}

// unplanned is the error of a worker that has no place by this aggregator's plan, and may have one by another.
type unplanned struct{ error }

func (e *unplanned) Unwrap() error { return e.error }

// divide divides a job's workers among its racks. Where jobs go on without lost ones, they may be more here than by a later plan.
func (k *cluster) divide(total int) ([]int, error) {
	workers, err := k.Workers(total)
	if err != nil && k.Members != nil && k.Loss() == racks.LossGoOn {
		return nil, &unplanned{err}
	}
	return workers, err
}

func (k *cluster) index(rack string) int {
	return slices.IndexFunc(k.Racks, func(r racks.Rack) bool { return r.Name == rack })
}

// lost reports whether another rack was served once and is not now.
func (k *cluster) lost(p *racks.Plan) bool {
	for i, h := range p.Holders {
		if i != k.own && h.Aggregator == "" && h.Token > 0 {
			return true
		}
	}
	return false
}

// vacant says why a job cannot begin; nil: it can.
func (k *cluster) vacant(s *racks.Standing) error {
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

// without says that the plan has left out a rack that a job waits for, which goes on without; nil: it has not.
func (k *cluster) without(p *racks.Plan) error {
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

// aggregators are those of the job's racks, as far as is known where they are.
func (k *cluster) aggregators() (all []*api.Aggregator) {
	for _, r := range k.Racks {
		if k.Members != nil {
			s := k.Members.Standing()
			r.URL = k.holder(&s.Plan, r.Name).URL
		}
		all = append(all, aggregatorOf(r))
	}
	return all
}

// holder returns who serves a rack by a plan, which is of all racks that were declared.
func (k *cluster) holder(p *racks.Plan, rack string) racks.Holder {
	if i := k.declared.index(rack); i < len(p.Holders) {
		return p.Holders[i]
	}
	return racks.Holder{}
}

// reach returns the aggregators of the other racks, when all are there by the plan.
func (k *cluster) reach(ctx context.Context) ([]peer, error) {
	for k.Members != nil {
		changed := k.Members.Changed()
		s := k.Members.Standing()
		why := k.vacant(&s)
		if why == nil {
			return k.dialPlan(&s.Plan), nil
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
			return nil, fmt.Errorf("the racks did not come together in time: %w", why)
		}
	}
	return k.dial(), nil
}

// dialPlan returns the aggregators that serve the other racks by a plan.
func (k *cluster) dialPlan(p *racks.Plan) []peer {
	at := *k
	c := *k.Cluster
	at.Cluster, c.Racks = &c, slices.Clone(c.Racks)
	for i, r := range c.Racks {
		c.Racks[i].URL = k.holder(p, r.Name).URL
	}
	peers := at.dial()
	for i := range peers {
		peers[i].aggregator = k.holder(p, c.Racks[i].Name).Aggregator
	}
	return peers
}

// holds refuses an aggregator that asks for a rack that the plan gives to another. One that a run began with may ask on: that it is
// out of the plan may only say that etcd does not hear of it. The caller holds k.mu.
func (k *cluster) holds(r *api.AskRequest) error {
	for j, u := range k.runs {
		if j.name != r.Job {
			continue
		}
		if i := j.spec.racks.index(r.From); i >= 0 && u.peers[i].aggregator == r.Aggregator {
			return nil
		}
	}
	s := k.Members.Standing()
	if h := k.holder(&s.Plan, r.From); h.Aggregator == "" || h.Aggregator != r.Aggregator {
		return refuse(connect.CodeUnavailable, "the aggregator at %s asks for rack %q, which is that of %v by the plan of epoch %d",
			printable(r.Url, maxHostName), r.From, h, s.Plan.Epoch)
	}
	return nil
}

// followPlan ends jobs that run over a rack that the plan gives to another aggregator, until the service ends.
func (s *Service) followPlan() {
	m := s.cluster.Members
	for {
		changed := m.Changed()
		standing := m.Standing()
		for _, j := range s.running() {
			j.follow(&standing)
		}
		select {
		case <-changed:
		case <-s.closing:
			return
		}
	}
}

// follow fails the job if one of its racks is another aggregator's. A rack that is nobody's does not: the data path notices
// failures.
func (j *job) follow(s *racks.Standing) {
	if s.Fenced {
		j.agg.Fail(-1, s.Refusal)
		return
	}
	k := j.spec.racks
	if k == nil {
		return
	}
	u := k.run(j)
	if u == nil {
		return
	}
	for i, p := range u.peers {
		if h := k.holder(&s.Plan, k.Racks[i].Name); i != k.own && h.Aggregator != "" && h.Aggregator != p.aggregator {
			j.agg.Fail(-1, fmt.Errorf("rack %q is now that of %v, and the job ran with the one at %s: join again", k.Racks[i].Name, h, p.url))
			return
		}
	}
}

// moved reports that a rack is no longer served by the aggregator that a run would begin with; nil: it is.
func (k *cluster) moved(u *run, rack int) error {
	if k.Members == nil {
		return nil
	}
	s := k.Members.Standing()
	h := k.holder(&s.Plan, k.Racks[rack].Name)
	if h.Aggregator == u.peers[rack].aggregator {
		return nil
	}
	return fmt.Errorf("rack %q is now that of %v, and the job was to begin with the aggregator at %s: join again", k.Racks[rack].Name, h,
		u.peers[rack].url)
}

// shutdown is why jobs end with the service.
func (s *Service) shutdown() error {
	if s.cluster != nil && s.cluster.Members != nil {
		if m := s.cluster.Members.Standing(); m.Fenced {
			return m.Refusal
		}
	}
	return errShutdown
}

// describeMembers adds what is known of the cluster to the status.
func (k *cluster) describeMembers(out *api.StatusResponse) {
	if k == nil || k.Members == nil {
		return
	}
	s := k.Members.Standing()
	m := &api.Membership{Epoch: s.Plan.Epoch, Leader: s.Store.Leader, Reachable: s.Store.Reachable, LeaseSeconds: s.Store.Seconds,
		OnLoss: k.Loss()}
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
