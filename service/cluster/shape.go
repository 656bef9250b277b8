package cluster

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/hierarchy"
	"github.com/rackweave/rackweave/hierarchy/planner"
	"github.com/rackweave/rackweave/service/rpc"
)

// stageShape is the stage at which the first rack announces the shape of a job.
const stageShape = "shape"

// choice is the shape that the first rack has chosen, with its reason.
type choice struct{ Shape, Reason string }

// Shape gives the job the shape that the first rack chooses, when its model is known and before it has any of it.
func (r *Rendezvous) Shape(ctx context.Context, elems uint64) error {
	k, j := r.k, r.j
	if k.ShapeName() != "auto" || len(k.Racks) <= 2 { // between two racks all shapes put the same bytes on the links
		return nil
	}
	k.mu.Lock()
	chosen := r.choice != nil
	k.mu.Unlock()
	if chosen {
		return nil
	}
	var ours *choice
	if k.own == 0 {
		ours = r.chooseShape(ctx, elems)
		k.jobs.Log.Info("shape chosen", "job", j.Name, "shape", ours.Shape, "because", ours.Reason)
	}
	answers, err := swap(ctx, r, stageShape, ours)
	if err != nil {
		return err
	}
	c := answers[0]
	if c == nil {
		return fmt.Errorf("rack %q chooses no shape: %w", k.Racks[0].Name, rpc.ErrVersions)
	}
	shape, err := hierarchy.ParseShape(c.Shape)
	if err == nil {
		err = j.Agg.SetShape(ctx, shape)
	}
	if err != nil {
		return fmt.Errorf("rack %q chooses a shape: %w", k.Racks[0].Name, err)
	}
	c.Reason = rpc.Printable(c.Reason, rpc.MaxTextBytes)
	k.mu.Lock()
	r.choice = c
	k.mu.Unlock()
	return nil
}

// chooseShape returns the shape that is fastest for these tensors by the measured links.
func (r *Rendezvous) chooseShape(ctx context.Context, elems uint64) *choice {
	k, j := r.k, r.j
	now := k.topology.Shape
	links, err := k.measured(ctx, j.Engine.Provider)
	if err != nil {
		k.jobs.Log.Warn("links between racks were not measured", "job", j.Name, "err", err)
		return &choice{now.String(), "the links were not measured: " + err.Error()}
	}
	all, err := r.predict(links, float64(elems))
	if err != nil {
		return &choice{now.String(), err.Error()}
	}
	return &choice{planner.Prefer(all, now).String(), explainShapes(all, links)}
}

// predict predicts the time in which a model of so many elements crosses the core in each shape, as [planner.Links.Choose] does.
func (r *Rendezvous) predict(links *planner.Links, elems float64) ([]planner.Prediction, error) {
	j := r.j
	core, codecs, err := r.k.CrossesAs()
	if err != nil {
		return nil, err
	}
	bytes, rounds := float64(core.Size())*codecs.Share(), core != chunk.F32
	all, err := links.Choose(max(1, elems)*bytes, float64(j.Spec.ChunkBytes)/4*bytes, rounds)
	if err == nil && j.Buddies() {
		all = slices.DeleteFunc(all, func(p planner.Prediction) bool {
			t := j.Above.Topology
			t.Shape = p.Shape
			return t.CheckBuddies() != nil
		})
	}
	return all, err
}

// explainShapes describes the predictions of the shapes that fit.
func explainShapes(all []planner.Prediction, l *planner.Links) string {
	var times []string
	for _, p := range all {
		if p.Unfit == "" {
			times = append(times, fmt.Sprintf("%v %v", p.Shape, time.Duration(p.Seconds*1e9).Round(10*time.Microsecond)))
		}
	}
	return fmt.Sprintf("predicted to cross the core in %s, bound by %s, as the links were over %s", strings.Join(times, ", "),
		all[0].Binding, l.By)
}

// shapeWarning returns the reason for which the job's racks would reduce faster in another shape than the one that was chosen, by
// the links as they were measured since. It returns an empty text without a reason.
func (r *Rendezvous) shapeWarning() string {
	k, j := r.k, r.j
	_, _, bytes := j.Size()
	k.mu.Lock()
	c, links := r.choice, k.links[j.Engine.Provider+k.names()]
	k.mu.Unlock()
	if c == nil || links == nil {
		return ""
	}
	shape, err := hierarchy.ParseShape(c.Shape)
	if err != nil {
		return ""
	}
	all, err := r.predict(links, float64(bytes)/4)
	if err != nil || planner.Prefer(all, shape) == shape {
		return ""
	}
	return fmt.Sprintf("shape %v is faster by now, %s: a new run chooses again", all[0].Shape, explainShapes(all, links))
}
