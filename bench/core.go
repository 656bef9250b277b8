package bench

import (
	"context"
	"fmt"

	"github.com/rackweave/rackweave/aggregate/optim"
	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/client"
	"github.com/rackweave/rackweave/codec"
	"github.com/rackweave/rackweave/hierarchy"
)

// crossing describes how chunks travel between racks.
type crossing struct {
	Shape  hierarchy.Shape `json:"shape"`
	Owners [][]byte        `json:"owners"` // racks, by tensor and chunk
}

// crossing returns how the job's chunks travel between racks if codecs shorten them there, else nil.
func (x *exchanger) crossing(ctx context.Context) (*crossing, error) {
	if _, err := chunk.ParseDType(x.w.Core()); err == nil {
		return nil, nil
	}
	cfg := client.Config{Server: x.s.Server, CA: x.s.CA, Job: x.s.Job, Token: x.s.Token, Insecure: x.s.Insecure}
	status, err := client.Status(ctx, cfg)
	if err != nil {
		return nil, err
	}
	c, top := &crossing{}, hierarchy.Topology{}
	for _, j := range status.Jobs {
		if j.Name == x.s.Job {
			if c.Shape, err = hierarchy.ParseShape(j.Shape); err != nil {
				return nil, err
			}
			top = hierarchy.Topology{Shape: c.Shape, Racks: len(j.Racks)}
		}
	}
	if top.Racks == 0 {
		return nil, fmt.Errorf("the aggregator at %s names no racks of job %q", x.s.Server, x.s.Job)
	}
	plan := x.w.Plan()
	owners := make([]byte, plan.NumChunks())
	for lane := range plan.NumLanes() {
		dealer := top.NewDealer(lane)
		for _, id := range plan.LaneChunks(lane) {
			owners[id] = byte(dealer.Next(uint64(plan.Chunk(int(id)).Elems)))
		}
	}
	for t := range plan.NumTensors() {
		first, end := plan.TensorChunks(t)
		c.Owners = append(c.Owners, owners[first:end])
	}
	return c, nil
}

// coded is a tensor between racks in plain Go, where codecs shorten what crosses.
type coded struct {
	codec.Pair
	hierarchy.Topology
	owners []byte // of its chunks
	elems  int    // of a chunk
	key    codec.Key
	kept   [][]float32 // by rack: the residuals of its sums; of its own chunks, the results' residuals or, with refers, references
	refers bool
}

// crosses returns a tensor between racks with these parameters, or nil if no codec shortens it there.
func (s *Spec) crosses(rule optim.Rule, tensor int, initial []float32) *coded {
	if s.coreCodecs == (codec.Pair{}) || s.DType != chunk.F32 {
		return nil
	}
	c := &coded{Pair: s.coreCodecs, Topology: hierarchy.Topology{Shape: s.crossing.Shape, Racks: len(s.racks), Pods: s.pods},
		owners: s.crossing.Owners[tensor], elems: s.ChunkBytes / 4, key: codec.Key{Tensor: uint32(tensor)}, refers: rule != optim.Sum}
	for range s.racks {
		c.kept = append(c.kept, make([]float32, len(initial)))
	}
	c.each(initial, func(owner, from, to int) {
		if c.refers {
			copy(c.kept[owner][from:to], initial[from:to])
		}
	})
	return c
}

func (c *coded) each(x []float32, f func(owner, from, to int)) {
	for i, owner := range c.owners {
		f(int(owner), i*c.elems, min((i+1)*c.elems, len(x)))
	}
}

// total returns the sum of all racks' sums as the chunks' owners make it.
func (c *coded) total(racks [][]float32) []float32 {
	total := make([]float32, len(racks[0]))
	c.each(total, func(owner, from, to int) { copy(total[from:to], c.sum(owner, owner, from, to, racks)) })
	return total
}

// sum returns a rack's sum of a chunk, with those of the racks below it.
func (c *coded) sum(rack, owner, from, to int, racks [][]float32) []float32 {
	var groups [][]float32
	for _, g := range c.Route(rack, owner).Groups {
		var sums [][]float32
		for _, other := range g {
			x := racks[rack][from:to]
			if other != rack {
				below, kept := c.sum(other, owner, from, to, racks), c.kept[other][from:to]
				x = c.sent(other, from, below, func(p []byte, key codec.Key) int { return c.Up.Encode(p, below, kept, 1, key) })
			}
			sums = append(sums, x)
		}
		groups = append(groups, added(sums, []int{len(sums)})...)
	}
	return added(groups, []int{len(groups)})[0]
}

// results replaces a step's result by what all racks have of it, and ends the step.
func (c *coded) results(result []float32) {
	c.each(result, func(owner, from, to int) {
		x, kept := result[from:to], c.kept[owner][from:to]
		if !c.refers {
			copy(x, c.sent(owner, from, x, func(p []byte, key codec.Key) int { return c.Down.Encode(p, x, kept, 1, key) }))
			return
		}
		c.sent(owner, from, x, func(p []byte, key codec.Key) int { return c.Down.EncodeChange(p, x, kept, key) })
		copy(x, kept)
	})
	c.key.Step++
}

// sent returns the values that other racks decode of a rack's payload.
func (c *coded) sent(rack, from int, x []float32, encode func(p []byte, key codec.Key) int) []float32 {
	key, p, out := c.key, make([]byte, 4*len(x)), make([]float32, len(x))
	key.Rank, key.First = codec.AnswerRank-1-uint32(rack), uint64(from)
	if err := codec.Decode(out, p[:encode(p, key)]); err != nil {
		panic(err)
	}
	return out
}
