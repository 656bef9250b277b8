package checkpoint

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/service/api"
	"github.com/rackweave/rackweave/service/job"
	"github.com/rackweave/rackweave/service/rpc"
)

func TestAManifestListsThePartsOfOneStep(t *testing.T) {
	plan, err := chunk.NewPlan(chunk.Config{ChunkBytes: 4096, Lanes: []chunk.Lane{{}, {Core: 1}}})
	if err != nil {
		t.Fatal(err)
	}
	if err := plan.Add([]chunk.Tensor{{Name: "w", Elems: 5000, DType: chunk.F32}}); err != nil {
		t.Fatal(err)
	}
	half := uint64(plan.NumChunks() / 2)
	j := &job.Job{Name: "j", Spec: job.Spec{Part: 1, Parts: 2}, Placement: job.Placement{Lanes: make([]chunk.Lane, 1)}}
	j.Model.Plan = plan
	s := (&Store{Racks: func(*job.Job) Racks { return OneRack{} }}).Of(j)
	for name, c := range map[string]struct {
		change func(m *api.CheckpointManifest)
		why    string
	}{
		"as it was saved": {func(*api.CheckpointManifest) {}, ""},
		"no chunks": {func(m *api.CheckpointManifest) {
			m.Parts[0].Chunks, m.Parts[1].Chunks, m.Parts[0].Step = 0, 2*half+1, 0
		}, ""},
		"another step":   {func(m *api.CheckpointManifest) { m.Parts[1].Step++ }, "part 1 is of step 7 and part 2 of step 8"},
		"one part":       {func(m *api.CheckpointManifest) { m.Parts = m.Parts[:1] }, "spread over 2 aggregators"},
		"no parts":       {func(m *api.CheckpointManifest) { m.Parts = nil }, "it has no parts"},
		"the same twice": {func(m *api.CheckpointManifest) { m.Parts[1] = m.Parts[0] }, "part 2 is missing"},
		"another's file": {func(m *api.CheckpointManifest) { m.Parts[1].File = "../k/" + m.Parts[1].File }, "part 2 is missing"},
		"fewer chunks":   {func(m *api.CheckpointManifest) { m.Parts[1].Chunks-- }, "and the job has"},
	} {
		t.Run(name, func(t *testing.T) {
			m := &api.CheckpointManifest{}
			for i := range 2 {
				m.Parts = append(m.Parts, &api.CheckpointPart{File: fmt.Sprintf("c.%dof2-%s.rwck", i+1, rpc.NewID()), Chunks: half,
					Step: 7, Part: uint32(i), Parts: 2})
			}
			m.Parts[1].Chunks = uint64(plan.NumChunks()) - half
			c.change(m)
			own, err := s.ownPart("c", m)
			switch {
			case c.why == "" && (err != nil || own != m.Parts[1]):
				t.Errorf("part %v, %v", own, err)
			case c.why != "" && (!errors.Is(err, errMismatch) || !strings.Contains(err.Error(), c.why)):
				t.Errorf("%v, want %q", err, c.why)
			}
		})
	}
}
