package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"connectrpc.com/connect"

	"github.com/rackweave/rackweave/client/membership"
	"github.com/rackweave/rackweave/service/api"
)

// Save writes the parameters and the optimizer's state to the aggregator's disk under a name, and returns the path of the file
// there. One worker calls it while no worker has a gradient under way: after a barrier, with another one before the next step. If
// the job is spread over several aggregators, each writes its part to its own disk, and the path is that of the first one's
// manifest.
func (j *job) Save(ctx context.Context, name string) (path string, err error) {
	ctx, cancel, ms := membership.Bound(ctx, j.cfg.Timeout)
	defer cancel()
	if !j.member.Several() {
		r, err := j.member.All[0].RPC.Save(ctx, &api.SaveRequest{Name: name, TimeoutMs: ms})
		if err != nil {
			return "", j.member.Explain("save", err)
		}
		return r.Path, nil
	}
	first := j.member.All[0]
	before, err := first.RPC.ReadManifest(ctx, &api.ReadManifestRequest{Name: name, TimeoutMs: ms})
	if err != nil && connect.CodeOf(err) != connect.CodeNotFound {
		return "", j.member.Explain("save at "+first.Server, err)
	}
	m := &api.CheckpointManifest{Parts: make([]*api.CheckpointPart, len(j.member.All))}
	err = j.member.Each(func(a *membership.Aggregator) error {
		r, err := a.RPC.Save(ctx, &api.SaveRequest{Name: name, TimeoutMs: ms, Replaces: before.GetManifest()})
		if err == nil {
			m.Parts[a.Number] = r.Part
		}
		return err
	})
	if err != nil {
		return "", j.member.Explain("save", err)
	}
	for _, a := range j.member.All { // the first one's manifest decides which parts are the checkpoint
		r, err := a.RPC.WriteManifest(ctx, &api.WriteManifestRequest{Name: name, TimeoutMs: ms, Manifest: m})
		if err != nil {
			return "", j.member.Explain("save at "+a.Server, err)
		}
		path = cmp.Or(path, r.Path)
	}
	return path, nil
}

// BuddyName is the name under which [Worker.Restore] finds what racks keep of each other's state.
const BuddyName = api.BuddyName

// GoOn takes up the job at the last whole step of its run before, which failed: from the memory of the aggregators that live, in a
// cluster whose racks have buddies. All workers call it once all tensors are registered, and then pull the parameters. It returns
// how many optimizer steps those have had. An error at one worker is one at all.
func (j *job) GoOn(ctx context.Context) (step int, err error) {
	if _, err := j.barrier(ctx, "go-on"); err != nil {
		return 0, err
	}
	var why error
	if j.Rank() == 0 {
		why = j.Restore(ctx, BuddyName)
	}
	switch r, err := j.barrier(ctx, "gone-on"); {
	case why != nil || err != nil:
		return 0, cmp.Or(why, err)
	case r.RestoredStep == nil:
		return 0, errors.New("go on: worker 0 could not restore the state: see its error")
	default:
		return int(*r.RestoredStep), nil
	}
}

// Restore reads back what Save wrote under a name, in this run or an earlier one, for a job of the same name, tensors and
// optimizer; under [BuddyName], what racks keep of each other's state. One worker calls it, as it does Save; then every worker
// pulls the parameters. A job that is spread over several aggregators restores what as many have saved, with the same lanes and
// chunk size.
func (j *job) Restore(ctx context.Context, name string) error {
	ctx, cancel, ms := membership.Bound(ctx, j.cfg.Timeout)
	defer cancel()
	first := j.member.All[0]
	if !j.member.Several() {
		_, err := first.RPC.Restore(ctx, &api.RestoreRequest{Name: name, TimeoutMs: ms})
		return j.member.Explain("restore", err)
	}
	m, err := first.RPC.ReadManifest(ctx, &api.ReadManifestRequest{Name: name, TimeoutMs: ms})
	if err != nil {
		return j.member.Explain("restore at "+first.Server, err)
	}
	restore := func(check bool) error {
		return j.member.Each(func(a *membership.Aggregator) error {
			_, err := a.RPC.Restore(ctx, &api.RestoreRequest{Name: name, TimeoutMs: ms, Manifest: m.Manifest, Check: check})
			return err
		})
	}
	if err := restore(true); err != nil {
		return j.member.Explain("restore", err)
	}
	if err := restore(false); err != nil {
		err = j.member.Explain("restore", err)
		j.member.GiveUp(fmt.Errorf("only some aggregators have restored their parts: %w", err))
		return err
	}
	return nil
}
