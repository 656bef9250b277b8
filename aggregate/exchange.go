package aggregate

import (
	"bytes"
	"encoding/binary"
	"math"

	"github.com/rackweave/rackweave/chunk"
)

// normBytes is the room for what one rack tells another at once: the commit's record, then norms.
const normBytes = 4 << 10

// More operations between aggregators, which carry norms of the sender's own chunks for the commit of a two-phase step.
const (
	opNorms = chunk.OpCommit // of gradients
	opTrust = chunk.OpTensor // of parameters and steps, for LAMB
)

// noticeHeard is the epoch of a [chunk.OpNotice] that answers norms: there is room for more.
const noticeHeard = 4

// commit is a lane's part in the end of a two-phase step over several racks. Ahead of each of the job's barriers the lanes of one
// number tell each other the norms of the chunks that they own, so that every rack adds those of all chunks, in the plan's order.
// After the update the owners of the chunks broadcast their parameters, by the reducer.
type commit struct {
	owned [][]uint32  // by rack, its chunks of the lane
	peers []peerNorms // by rack

	op     chunk.Op // what is told; under way if active
	active bool
	began  int64  // ns
	turn   uint64 // exchanges begun
	record [chunk.RecordBytes]byte

	refreshing bool
	next       uint32 // the chunk to go on with
	under      int    // chunks whose parameters are on their way
	most       int    // of those: with no more, every sum finds a slot, and nothing can stall
}

// peerNorms is how far a lane and its peer in another rack have told each other.
type peerNorms struct {
	sent int  // norms
	all  bool // everything was sent
	full bool // what was sent last has not been taken note of
	owes bool // word that what came last was

	op    chunk.Op // what comes, or came last
	epoch uint8
	open  bool // more is to come
	heard int
	done  uint64                     // exchanges
	said  [2][chunk.RecordBytes]byte // by the parity of the exchange: a peer may be one ahead
}

func newCommit(racks, most int) commit {
	return commit{owned: make([][]uint32, racks), peers: make([]peerNorms, racks), most: most}
}

// waiting reports whether there may be something to send.
func (e *commit) waiting() bool {
	if e.active || e.refreshing {
		return true
	}
	for i := range e.peers {
		if e.peers[i].owes {
			return true
		}
	}
	return false
}

// since is when the racks began to wait for each other's norms; the end of time: they do not.
func (e *commit) since() int64 {
	if e.active {
		return e.began
	}
	return math.MaxInt64
}

// awaited adds to counts, by rack, those whose norms are missing.
func (e *commit) awaited(counts []int) {
	for rack := range e.peers {
		if e.active && e.peers[rack].done < e.turn {
			counts[rack]++
		}
	}
}

// normSize is the bytes that a chunk takes.
func normSize(op chunk.Op) int {
	if op == opTrust {
		return 16
	}
	return 8
}

// write puts the norms of a chunk into b.
func (n *norms) write(b []byte, op chunk.Op, parity uint8) {
	if op == opTrust {
		put(b, n.param)
		put(b[8:], n.step)
		return
	}
	put(b, n.gradient[parity])
}

// read takes them from there.
func (n *norms) read(b []byte, op chunk.Op, parity uint8) {
	if op == opTrust {
		n.param, n.step = float(b), float(b[8:])
		return
	}
	n.gradient[parity] = float(b)
}

func put(b []byte, x float64) { binary.LittleEndian.PutUint64(b, math.Float64bits(x)) }

func float(b []byte) float64 { return math.Float64frombits(binary.LittleEndian.Uint64(b)) }

// expects tells whether a message goes on with what the peer tells, or begins what comes next.
func (p *peerNorms) expects(op chunk.Op, epoch uint8, from uint32) bool {
	switch {
	case p.open:
		return op == p.op && epoch == p.epoch && int(from) == p.heard
	case op == opTrust:
		return from == 0 && p.op == opNorms && epoch == p.epoch
	}
	return from == 0 && epoch == (p.epoch+1)&chunk.EpochMask
}

// differs returns a rack that has said another record of the exchange under way; -1: none.
func (e *commit) differs(own int) int {
	for rack := range e.peers {
		if p := &e.peers[rack]; rack != own && !bytes.Equal(p.said[e.turn&1][:], e.record[:]) {
			return rack
		}
	}
	return noRank
}
