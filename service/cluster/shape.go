package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/rackweave/rackweave/hierarchy"
	"github.com/rackweave/rackweave/hierarchy/planner"
	"github.com/rackweave/rackweave/service/rpc"
)

// stageShape is the stage at which the first rack announces the shape of a job.
const stageShape = "shape"

// choice is the shape that the first rack has chosen, with its reason.
type choice struct{ Shape, Reason string }

// chooses reports whether a job's shape is chosen by the links. Between two racks all shapes put the same bytes on the links.
func chooses(k *Cluster) bool { return k.ShapeName() == "auto" && len(k.Racks) > 2 }

// Shape gives the job the shape that the first rack chooses, when its model is known and before it has any of it.
func (r *Rendezvous) Shape(ctx context.Context, elems uint64) error {
	k, j := r.k, r.j
	if !chooses(k) {
		return nil
	}
	k.mu.Lock()
	chosen := r.choice != nil
	k.mu.Unlock()
	if chosen {
		return nil
	}
	u := k.run(j)
	if u == nil {
		return j.FailureError()
	}
	var ours []byte
	if k.own == 0 {
		c := r.chooseShape(ctx, elems)
		k.Log.Info("shape chosen", "job", j.Name, "shape", c.Shape, "because", c.Reason)
		var err error
		if ours, err = json.Marshal(c); err != nil {
			return err
		}
	}
	answers, err := k.exchange(ctx, j, u, stageShape, ours)
	if err != nil {
		return err
	}
	c := &choice{}
	if err := json.Unmarshal(answers[0], c); err != nil {
		return fmt.Errorf("rack %q chooses a shape that cannot be read: %w", k.Racks[0].Name, err)
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
	if j.Spec.Outer.Every == 0 { // else steps differ
		k.Background.Go(r.watchSteps)
	}
	return nil
}

// chooseShape returns the shape that is fastest for these tensors by the measured links.
func (r *Rendezvous) chooseShape(ctx context.Context, elems uint64) *choice {
	k, j := r.k, r.j
	now := k.topology.Shape
	links, err := k.measured(ctx, j.Engine.Provider)
	if err != nil {
		k.Log.Warn("links between racks were not measured", "job", j.Name, "err", err)
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
	bytes, j := float64(4), r.j
	rounds := r.k.CoreName() != "f32"
	if rounds {
		bytes = 2
	}
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
