package aggregate_test

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/rackweave/rackweave/aggregate"
	"github.com/rackweave/rackweave/aggregate/optim"
	"github.com/rackweave/rackweave/aggregate/racktest"
	"github.com/rackweave/rackweave/cgo/worker"
	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/hierarchy"
	"github.com/rackweave/rackweave/hierarchy/outer"
	"github.com/rackweave/rackweave/policy"
	"github.com/rackweave/rackweave/verbs"
)

// Codecs leave rows as they are, also of a type that they cannot shorten.
func TestSparseTensorsAreBroadcastAndPulledWhole(t *testing.T) {
	for _, codecs := range []string{"none", "int8/int8"} {
		tensors := []chunk.Tensor{
			{Name: "table", Elems: 51 * 400, DType: chunk.F32, Width: 51}, {Name: "bias", Elems: 3000, DType: chunk.F32, Width: 1},
			{Name: "wide", Elems: 5 * 1019, DType: chunk.F32, Width: 1019}, {Name: "half", Elems: 700 * 10, DType: chunk.BF16, Width: 700},
		}
		r := threadedRack(t, verbs.ProviderSHM, 3, racktest.Config{
			Lanes: 3, Tensors: tensors, Staging: 4 * len(tensors), Job: aggregate.JobConfig{
				Name: "job", Mode: aggregate.Eager, Rule: optim.SGDTorch, Hyper: optim.SGDTorch.Defaults(), ChunkBytes: 4096,
				Compress: pair(t, codecs, true),
			},
		})
		rng := rand.New(rand.NewPCG(1, 2))
		for k, d := range tensors {
			fill(rng, r.Workers[0].SrcF32(k)[:d.Elems])
		}
		for _, kind := range []chunk.Op{chunk.OpBroadcast, chunk.OpPull} {
			ops := make([][]worker.Op, len(r.Workers))
			for i, w := range r.Workers {
				for k := range tensors {
					clear(w.DstF32(k))
					ops[i] = append(ops[i], w.Op(kind, k, 0))
				}
			}
			if err := runAll(r, ops); err != nil {
				t.Fatal(err)
			}
			for k, d := range tensors {
				want := racktest.OnWire(d.DType, r.Workers[0].SrcF32(k)[:d.Elems])
				for _, w := range r.Workers {
					if i, same := racktest.SameBits(w.DstF32(k)[:d.Elems], want); !same {
						t.Fatalf("codecs %s, %v: worker %d, tensor %q, element %d is %v, want %v", codecs, kind, w.Rank, d.Name, i, w.DstF32(k)[i],
							want[i])
					}
				}
			}
		}
	}
}

func TestTheNeedOfWideRowsCountsTheirChunks(t *testing.T) {
	c := sumJob("job", 1000)
	c.Job.ChunkBytes = 4096
	r := threadedRack(t, verbs.ProviderSHM, 1, c)
	dense := chunk.Tensor{Name: "w", Elems: 600 * 1000, DType: chunk.F32}
	wide := dense
	wide.Width = 600 // a chunk has room for one
	few, many := r.Engine.TensorsNeed(c.Job, []chunk.Tensor{dense}), r.Engine.TensorsNeed(c.Job, []chunk.Tensor{wide})
	if many.Bytes < few.Bytes*3/2 {
		t.Errorf("1000 chunks need %d bytes, and 586 chunks %d", many.Bytes, few.Bytes)
	}
}

func TestJobsThatCannotUpdateRowsRefuseSparseTensors(t *testing.T) {
	policyOf := func(text string) policy.Spec {
		p, err := policy.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	for _, c := range []struct {
		job  aggregate.JobConfig
		want string
	}{
		{aggregate.JobConfig{Mode: aggregate.TwoPhase, Rule: optim.AdamTorch}, ""},
		{aggregate.JobConfig{Mode: aggregate.Stream, Rule: optim.SGDTorch, Policy: policyOf("ssp:s=3")}, ""},
		{aggregate.JobConfig{Mode: aggregate.Eager, Part: aggregate.Part{Of: 2, RackWorkers: []int{4}}}, ""},
		{aggregate.JobConfig{Mode: aggregate.TwoPhase, Rule: optim.LAMB}, "lamb needs whole tensors' norms: use another"},
		{aggregate.JobConfig{Mode: aggregate.Stream, Rule: optim.SGDTorch, Policy: policyOf("bsp")}, "policy bsp adds up sets"},
		{aggregate.JobConfig{Mode: aggregate.Eager, Place: &aggregate.Place{}}, ""},
		{aggregate.JobConfig{Mode: aggregate.Eager, Place: &aggregate.Place{Core: chunk.BF16}}, "with 16-bit sums: change that"},
		{aggregate.JobConfig{Mode: aggregate.Eager, Place: &aggregate.Place{Buddies: true}}, "with buddies: change that"},
		{aggregate.JobConfig{Mode: aggregate.Eager, Place: &aggregate.Place{Topology: hierarchy.Topology{Pods: 2}}}, "in pods: "},
		{aggregate.JobConfig{Mode: aggregate.Eager, Place: &aggregate.Place{}, Outer: outer.Optimizer{Every: 2}}, "outer opt"},
		{aggregate.JobConfig{Mode: aggregate.Eager, Part: aggregate.Part{Of: 2, RackWorkers: []int{2, 2}}}, "in shape flat: change that"},
	} {
		d := chunk.Tensor{Name: "table", Elems: 100, DType: chunk.F32, Width: 10}
		err := c.job.CheckTensor(d, false)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), `sparse tensor "table"`) ||
			err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("mode %v, rule %v, policy %v: %v, want %q", c.job.Mode, c.job.Rule, c.job.Policy, err, c.want)
		}
		if d.Width = 0; c.job.CheckTensor(d, false) != nil {
			t.Errorf("mode %v refuses a dense tensor", c.job.Mode)
		}
	}
}

func TestRacksRefuseUpdatesOfRowsThatNobodyTouched(t *testing.T) {
	d := chunk.Tensor{Name: "table", Elems: 100, DType: chunk.F32, Width: 10}
	for mode, refused := range map[aggregate.Mode]bool{aggregate.Eager: true, aggregate.TwoPhase: false} {
		job := aggregate.JobConfig{Mode: mode, Place: &aggregate.Place{}}
		err := job.CheckTensor(d, true)
		if (err != nil) != refused || refused && !strings.Contains(err.Error(), "for standard updates in mode eager: change that") {
			t.Errorf("mode %v: %v", mode, err)
		}
	}
}
