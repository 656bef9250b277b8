package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"connectrpc.com/connect"

	"github.com/rackweave/rackweave/service/api"
	"github.com/rackweave/rackweave/service/job"
	"github.com/rackweave/rackweave/service/racks"
	"github.com/rackweave/rackweave/service/rpc"
)

// answerState answers another rack's question about a job's state. It asks back for the payload, at the stage of the question. If
// the question is asked again, that has the same nonce.
func (k *Cluster) answerState(ctx context.Context, q *api.AskRequest) ([]byte, error) {
	var r *Rendezvous
	k.mu.Lock()
	for other := range k.runs {
		if other.job == q.Job && other.id == q.Run && other.j.State() == "running" {
			r = other
		}
	}
	k.mu.Unlock()
	if r == nil {
		return nil, endedHere(q.Job, k.Own)
	}
	from := slices.Index(r.k.Names(), q.From)
	return k.State(ctx, r.j, from, q.State, func(bytes int) ([]byte, error) {
		b, err := r.ask(ctx, from, &api.AskRequest{Stage: q.State.Stage, Nonce: q.Nonce + " back"})
		if err == nil && len(b) != bytes {
			err = fmt.Errorf("rack %q gives %d bytes for %d: %w", q.From, len(b), bytes, rpc.ErrVersions)
		}
		return b, err
	})
}

// Serve answers another rack.
func (k *Cluster) Serve(ctx context.Context, r *api.AskRequest) (*api.AskResponse, error) {
	if k == nil {
		return nil, errAlone()
	}
	if !racks.Sealed(r.Seal, k.Secret, fields(r)...) {
		k.jobs.Refused("rack")
		return nil, rpc.Refuse(connect.CodePermissionDenied, "an aggregator that calls itself rack %q, at %q, has not this cluster's secret",
			rpc.Printable(r.From, rpc.MaxNameBytes), rpc.Printable(r.Url, rpc.MaxNameBytes))
	}
	job.CallerOf(ctx).IsRack(r.From)
	if err := k.checkFile(r); err != nil {
		k.jobs.EndForming(r.Job, nil, err)
		return nil, connect.NewError(connect.CodeFailedPrecondition, err)
	}
	if err := k.checkClaim(r); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, timeout(r))
	defer cancel()
	go func() {
		select {
		case <-k.jobs.Closing:
			cancel()
		case <-ctx.Done():
		}
	}()
	payload, err := k.answer(ctx, r)
	out := &api.AskResponse{Payload: payload, Ready: err == nil}
	if err != nil && (r.State != nil || r.Probe != nil || !errors.Is(err, ctx.Err())) {
		return nil, err
	}
	out.Seal = racks.Seal(k.Secret, r.Nonce, fmt.Sprint(out.Ready), string(out.Payload))
	return out, nil
}

// checkFile returns an error if the file of an aggregator that asks differs from this one's, because workers would wait until their
// timeout.
func (k *Cluster) checkFile(r *api.AskRequest) error {
	switch own := k.declared.Division(); {
	case r.To != k.Own:
		return fmt.Errorf("rack %q asks for rack %q, this is rack %q: %s", r.From, r.To, k.Own, sameFile)
	case r.From == k.Own || !slices.Contains(k.Names(), r.From):
		return fmt.Errorf("rack %q is not one of the others of %v: %s", r.From, k.Names(), sameFile)
	case r.Division != own:
		return fmt.Errorf("rack %q has the file of a cluster of %s; rack %q that of %s: %s", r.From, rpc.Printable(r.Division, rpc.MaxTextBytes), k.Own,
			own, sameFile)
	}
	return nil
}

// answer answers a question, or returns the error of ctx if it cannot in time.
func (k *Cluster) answer(ctx context.Context, r *api.AskRequest) ([]byte, error) {
	switch {
	case r.State != nil:
		return k.answerState(ctx, r)
	case r.Probe != nil:
		return k.answerProbe(ctx, r.Probe)
	case r.Stage == stageForm && k.jobs.TurnsAway(r.Job):
		return nil, rpc.Refuse(connect.CodeFailedPrecondition,
			"its aggregator is draining and takes no workers: begin the job when the rack is served again")
	}
	payload, err := k.board.Take(ctx, racks.Question{From: r.From, Job: r.Job, Run: r.Run, Stage: r.Stage, Nonce: r.Nonce,
		Asker: r.OwnRun, Since: time.Now().Add(-time.Duration(r.AgeMs) * time.Millisecond)})
	if why := new(racks.GivenUp); errors.As(err, &why) {
		return nil, rpc.Refuse(connect.CodeAborted, "job %q could not start in rack %q: %s", r.Job, k.Own,
			rpc.Printable(why.Why, rpc.MaxTextBytes))
	}
	if errors.Is(err, racks.ErrEnded) {
		return nil, endedHere(r.Job, k.Own)
	}
	return payload, err
}

// checkClaim refuses an aggregator that claims a rack of another: by the plan if there is one, and otherwise while a run goes on
// with the other.
func (k *Cluster) checkClaim(r *api.AskRequest) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.Members != nil {
		return k.checkHolder(r)
	}
	for other := range k.runs {
		if s := other.j.State(); s == "failed" || s == "ended" {
			continue
		}
		if was, is := other.aggregators[r.From]; is && was.aggregator != r.Aggregator {
			return rpc.Refuse(connect.CodeAlreadyExists, "two aggregators claim rack %q, at %s and at %s, and job %q runs with the first: end one of them",
				r.From, was.url, r.Url, other.job)
		}
	}
	for of := range k.runs {
		if of.job == r.Job {
			of.aggregators[r.From] = ask{r.Aggregator, rpc.Printable(r.Url, rpc.MaxNameBytes)}
		}
	}
	return nil
}

// checkHolder refuses an aggregator that asks for a rack that the plan gives to another. One that a run began with may ask on: that
// it is out of the plan may only mean that it cannot reach etcd. The caller holds h.mu.
func (h *hub) checkHolder(r *api.AskRequest) error {
	for of := range h.runs {
		if i := slices.Index(of.k.Names(), r.From); of.job == r.Job && i >= 0 && of.peers[i].aggregator == r.Aggregator {
			return nil
		}
	}
	s := h.Cluster.Members.Standing()
	if by := h.holder(&s.Plan, r.From); by.Aggregator == "" || by.Aggregator != r.Aggregator {
		return rpc.Refuse(connect.CodeUnavailable, "the aggregator at %s asks for rack %q, which is that of %v by the plan of epoch %d",
			rpc.Printable(r.Url, rpc.MaxNameBytes), r.From, by, s.Plan.Epoch)
	}
	return nil
}
