package cluster

import (
	"context"
	"fmt"
	"slices"

	"github.com/rackweave/rackweave/service/api"
	"github.com/rackweave/rackweave/service/job"
	"github.com/rackweave/rackweave/service/rpc"
)

// Own returns the number of this rack.
func (r *Rendezvous) Own() int { return r.k.own }

// Names returns the names of all racks.
func (r *Rendezvous) Names() []string { return r.k.Names() }

// Buddies reports whether racks of the cluster keep each other's state.
func (r *Rendezvous) Buddies() bool { return r.k.Buddy }

// Run identifies the run in the first rack. It returns false if the run has ended.
func (r *Rendezvous) Run() (id string, ok bool) {
	u := r.k.run(r.j)
	if u == nil {
		return "", false
	}
	return u.ids[0], true
}

// Ask puts questions to all other racks at once, and returns the answers by rack.
func (r *Rendezvous) Ask(ctx context.Context, about func(rack int) *api.StateQuestion) ([][]byte, error) {
	u := r.k.run(r.j)
	if u == nil {
		return nil, r.j.FailureError()
	}
	return r.k.askAll(ctx, r.j, u, func(rack int) *api.AskRequest {
		if q := about(rack); q != nil {
			return &api.AskRequest{State: q}
		}
		return nil
	})
}

// Replace lets the other racks ask back for the payload, as a question must be small.
func (r *Rendezvous) Replace(ctx context.Context, about func(int) *api.StateQuestion, payload func() []byte) (some bool,
	err error) {
	u := r.k.run(r.j)
	if u == nil {
		return false, r.j.FailureError()
	}
	stage := "state " + rpc.NewID()
	questions := make([]*api.StateQuestion, len(r.k.Racks))
	var asked []string
	var given []byte
	for rack, name := range r.k.Names() {
		if rack == r.k.own {
			continue
		}
		if questions[rack] = about(rack); questions[rack] != nil {
			if questions[rack].Stage = stage; asked == nil {
				given = payload()
			}
			asked = append(asked, name)
		}
	}
	if asked == nil {
		return false, nil
	}
	r.k.board.Post(r.j.Name, u.id, stage, given, asked)
	_, err = r.Ask(ctx, func(rack int) *api.StateQuestion { return questions[rack] })
	return r.k.board.Withdraw(r.j.Name, u.id, stage), err
}

// answerState answers another rack's question about a job's state.
func (k *Cluster) answerState(ctx context.Context, r *api.AskRequest) ([]byte, error) {
	u := k.named(r.Job, r.Run)
	if u == nil {
		return nil, endedHere(r.Job, k.Own)
	}
	k, j := u.r.k, u.r.j
	payload := func(bytes int) ([]byte, error) { return k.askBack(ctx, j, r, bytes) }
	return k.State(ctx, j, slices.Index(k.Names(), r.From), r.State, payload)
}

// named returns a run by its job and id, if it is under way.
func (h *hub) named(name, id string) *run {
	h.mu.Lock()
	defer h.mu.Unlock()
	for j, u := range h.runs {
		if j.Name == name && u.id == id && j.State() == "running" {
			return u
		}
	}
	return nil
}

// askBack returns so many bytes, the payload of the rack that has asked, at the stage of its question. If the question is asked
// again, it has the same nonce.
func (k *Cluster) askBack(ctx context.Context, j *job.Job, r *api.AskRequest, bytes int) ([]byte, error) {
	u := k.run(j)
	if u == nil {
		return nil, j.FailureError()
	}
	from := slices.Index(k.Names(), r.From)
	b, err := k.ask(ctx, u, from, &api.AskRequest{Job: j.Name, Run: u.ids[from], Stage: r.State.Stage, Nonce: r.Nonce + " back"})
	if err == nil && len(b) != bytes {
		err = fmt.Errorf("rack %q gives %d bytes for %d: %w", r.From, len(b), bytes, rpc.ErrVersions)
	}
	return b, err
}
