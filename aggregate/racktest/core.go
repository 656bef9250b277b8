package racktest

import (
	"github.com/rackweave/rackweave/aggregate"
	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/codec"
	"github.com/rackweave/rackweave/hierarchy"
)

// CodedCore is the network between racks in plain Go, where codecs shorten what crosses it.
type CodedCore struct {
	pair     codec.Pair
	topology hierarchy.Topology
	ref      *Reference
	pieces   [][]piece // by tensor
}

// piece is a chunk of a tensor.
type piece struct {
	from, to, owner int
	kept            [][]float32 // by rack: the residual, at the owner in mode eager the reference
	steps           []uint32    // by rack
}

// NewCodedCore returns the network of a cluster whose tensors are all registered. Parameters begin as the reference has them, after
// a broadcast.
func NewCodedCore(c *Cluster, ref *Reference) *CodedCore {
	place, plan := c.Racks[0].Config.Job.Place, c.Racks[0].Plan
	k := &CodedCore{pair: place.Codecs, topology: place.Topology, ref: ref, pieces: make([][]piece, plan.NumTensors())}
	owners := make([]int, plan.NumChunks())
	for lane := range c.Racks[0].Config.Lanes {
		next := place.NextOwner(lane)
		for _, id := range plan.LaneChunks(lane) {
			owner, _ := next(uint64(plan.Chunk(int(id)).Elems))
			owners[id] = int(owner)
		}
	}
	for t := range k.pieces {
		first, end := plan.TensorChunks(t)
		for id := first; id < end; id++ {
			at := plan.Chunk(id)
			p := piece{from: int(at.Offset), to: int(at.Offset) + at.Elems, owner: owners[id], steps: make([]uint32, place.Racks)}
			for range place.Racks {
				p.kept = append(p.kept, make([]float32, at.Elems))
			}
			if ref.Mode == aggregate.Eager {
				copy(p.kept[p.owner], ref.W[t][p.from:p.to])
			}
			k.pieces[t] = append(k.pieces[t], p)
		}
	}
	return k
}

// Step takes gradients by rack, worker and tensor, and returns the answer to a pushpull of each tensor.
func (k *CodedCore) Step(grads [][][][]float32) (out [][]float32) {
	for t := range k.pieces {
		var racks [][]float32
		for _, rack := range grads {
			g := make([][]float32, len(rack))
			for w := range rack {
				g[w] = rack[w][t]
			}
			racks = append(racks, added(onWire(k.ref.Wire, g)))
		}
		total := make([]float32, len(racks[0]))
		for i := range k.pieces[t] {
			p := &k.pieces[t][i]
			copy(total[p.from:p.to], k.sum(t, p, p.owner, racks))
		}
		result := k.ref.stepped(t, [][]float32{total})
		if k.ref.Wire == chunk.F32 {
			for i := range k.pieces[t] {
				k.answer(t, &k.pieces[t][i], result)
			}
		}
		out = append(out, OnWire(k.ref.Wire, result))
	}
	return out
}

// sum returns a rack's sum of a piece, with those of the racks below it.
func (k *CodedCore) sum(t int, p *piece, rack int, racks [][]float32) []float32 {
	var groups [][]float32
	for _, g := range k.topology.Route(rack, p.owner).Groups {
		var members [][]float32
		for _, other := range g {
			if other == rack {
				members = append(members, racks[rack][p.from:p.to])
			} else {
				members = append(members, k.sent(t, p, other, k.sum(t, p, other, racks)))
			}
		}
		groups = append(groups, added(members))
	}
	return added(groups)
}

// sent returns the values that a rack's parent gets of its sum.
func (k *CodedCore) sent(t int, p *piece, rack int, x []float32) []float32 {
	if k.ref.Wire != chunk.F32 {
		return x
	}
	return k.decoded(x, func(payload []byte) int { return k.pair.Up.Encode(payload, x, p.kept[rack], 1, p.key(t, rack)) })
}

// answer replaces a result by what all racks have of it.
func (k *CodedCore) answer(t int, p *piece, result []float32) {
	x, kept := result[p.from:p.to], p.kept[p.owner]
	if k.ref.Mode == aggregate.Eager {
		k.decoded(x, func(payload []byte) int { return k.pair.Down.EncodeChange(payload, x, kept, p.key(t, p.owner)) })
		copy(x, kept)
		return
	}
	copy(x, k.decoded(x, func(payload []byte) int { return k.pair.Down.Encode(payload, x, kept, 1, p.key(t, p.owner)) }))
}

func (k *CodedCore) decoded(x []float32, encode func(payload []byte) int) []float32 {
	payload, out := make([]byte, 4*len(x)), make([]float32, len(x))
	if err := codec.Decode(out, payload[:encode(payload)]); err != nil {
		panic(err)
	}
	return out
}

// key returns the key of a rack's next payload of the piece.
func (p *piece) key(t, rack int) codec.Key {
	p.steps[rack]++
	return codec.Key{Step: p.steps[rack] - 1, Tensor: uint32(t), Rank: codec.AnswerRank - 1 - uint32(rack), First: uint64(p.from)}
}
