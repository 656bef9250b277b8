package service

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/rackweave/rackweave/hierarchy"
)

// stageShape is the stage at which the first rack says how a job's racks reduce.
const stageShape = "shape"

// choice is the shape that the first rack has chosen, and why.
type choice struct{ Shape, Reason string }

// chooses reports whether a job's shape is chosen by the links. Between two racks all shapes put the same bytes on them.
func (k *cluster) chooses() bool { return k.ShapeName() == "auto" && len(k.Racks) > 2 }

// takeShape gives a job the shape that the first rack chooses, when its model is known and before it has any of it.
func (j *job) takeShape(ctx context.Context, tensors []declared) error {
	k := j.spec.racks
	if k == nil || !k.chooses() {
		return nil
	}
	j.mu.Lock()
	chosen := j.choice != nil
	j.mu.Unlock()
	if chosen {
		return nil
	}
	u := k.run(j)
	if u == nil {
		return j.failureError()
	}
	var ours []byte
	if k.own == 0 {
		c := j.chooseShape(ctx, tensors)
		j.s.log.Info("shape chosen", "job", j.name, "shape", c.Shape, "because", c.Reason)
		var err error
		if ours, err = json.Marshal(c); err != nil {
			return err
		}
	}
	answers, err := k.meet(ctx, j, u, stageShape, ours)
	if err != nil {
		return err
	}
	c := &choice{}
	if err := json.Unmarshal(answers[0], c); err != nil {
		return fmt.Errorf("rack %q chooses a shape that cannot be read: %w", k.Racks[0].Name, err)
	}
	shape, err := hierarchy.ParseShape(c.Shape)
	if err == nil {
		err = j.agg.SetShape(ctx, shape)
	}
	if err != nil {
		return fmt.Errorf("rack %q chooses a shape: %w", k.Racks[0].Name, err)
	}
	c.Reason = printable(c.Reason, maxFailureText)
	j.mu.Lock()
	j.choice = c
	j.mu.Unlock()
	if k.own == 0 && len(j.ways()) > 1 {
		j.s.background.Go(j.watchLinks)
	}
	return nil
}

// chooseShape picks the shape that is fastest for these tensors by the links as they were measured.
func (j *job) chooseShape(ctx context.Context, tensors []declared) *choice {
	k := j.spec.racks
	now := k.topology.Shape
	links, err := k.measured(ctx, j.s, j.engine.provider)
	if err != nil {
		j.s.log.Warn("links between racks were not measured", "job", j.name, "err", err)
		return &choice{now.String(), "the links were not measured: " + err.Error()}
	}
	var elems uint64
	for i := range tensors {
		elems += tensors[i].elems
	}
	all, err := j.predict(links, float64(elems))
	if err != nil {
		return &choice{now.String(), err.Error()}
	}
	return &choice{hierarchy.Prefer(all, now).String(), explainShapes(all, links)}
}

// predict returns what a model of so many elements takes across the core in each shape, as hierarchy.Links.Choose does.
func (j *job) predict(links *hierarchy.Links, elems float64) ([]hierarchy.Prediction, error) {
	bytes := float64(4)
	rounds := j.spec.racks.CoreName() != "f32"
	if rounds {
		bytes = 2
	}
	all, err := links.Choose(max(1, elems)*bytes, float64(j.spec.chunkBytes)/4*bytes, rounds)
	if err == nil && j.buddies() {
		all = slices.DeleteFunc(all, func(p hierarchy.Prediction) bool {
			t := j.above.Topology
			t.Shape = p.Shape
			return t.CheckBuddies() != nil
		})
	}
	return all, err
}

// explainShapes says what is predicted of each shape that fits.
func explainShapes(all []hierarchy.Prediction, l *hierarchy.Links) string {
	var times []string
	for _, p := range all {
		if p.Unfit == nil {
			times = append(times, fmt.Sprintf("%s %v", p.Name, time.Duration(p.Seconds*1e9).Round(10*time.Microsecond)))
		}
	}
	return fmt.Sprintf("predicted to cross the core in %s, bound by %s, as the links were over %s", strings.Join(times, ", "),
		all[0].Binding, l.By)
}
