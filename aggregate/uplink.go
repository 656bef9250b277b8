package aggregate

import (
	"encoding/binary"
	"fmt"
	"time"
	"unsafe"

	"github.com/rackweave/rackweave/aggregate/reduce"
	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/hierarchy"
)

// The operations between aggregators. Sums and initial values go up with a note behind them, results come down.
const (
	opSum             = chunk.OpPush
	opResult          = chunk.OpPushPull
	opBroadcast       = chunk.OpBroadcast
	opBroadcastResult = chunk.OpPull
)

// Epochs of an [chunk.OpAbort] between aggregators.
const (
	peerFailed = 0 // the job has failed in the rack; the index is the rank to blame, all ones: none
	peerLeft   = 1 // the rack's workers have left the job in peace
)

// The epochs of a [chunk.OpNotice] between aggregators.
const (
	noticeNACK    = chunk.NoticeNACK    // to the parent's child: its sum is not kept
	noticeRequest = chunk.NoticeRequest // to the child: others wait for its sum
	noticeRecall  = 2                   // to the parent: the child wants a NACK of its sum
	noticeTaken   = 3                   // to the child: its sum is part of the parent's, its slot free
)

// noteBytes is the size of the note behind a sum: where its result goes, the checksum of the hyper-parameters, and flags.
const (
	noteBytes  = 16
	noteValues = 1 // initial values: the message carries them
)

// note is what a rack says with its sum of a chunk.
type note struct {
	resultAddr uint64
	hyperSum   uint32
	flags      uint32
}

func bytesAt(addr uint64, n int) []byte { return unsafe.Slice((*byte)(address(addr)), n) }

func (n *note) write(addr uint64) {
	b := bytesAt(addr, noteBytes)
	binary.LittleEndian.PutUint64(b, n.resultAddr)
	binary.LittleEndian.PutUint32(b[8:], n.hyperSum)
	binary.LittleEndian.PutUint32(b[12:], n.flags)
}

func readNote(addr uint64) note {
	b := bytesAt(addr, noteBytes)
	return note{binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint32(b[8:]), binary.LittleEndian.Uint32(b[12:])}
}

// above is a share's part of the reduction above the rack: it keeps this rack's sums until their results are there, and carries
// out what the reducer decides. A sum is made when the rack's last gradient is there, and leaves as soon as its parent has room.
type above struct {
	cfg       *Above
	reducer   *hierarchy.Reducer
	links     []*link // by rack; nil at this rack's place
	sums      sums
	buffer    []int32         // by chunk: of the rack's sum, until its workers have the result
	result    []int32         // by chunk: of the last result
	pending   []reduce.Action // chunks that wait for a buffer, oldest first
	returned  []uint32        // chunks whose results are there for the rack's workers
	recalled  []uint32        // chunks whose sums are not kept
	wanted    []uint32        // chunks that other racks wait for
	replies   []uint64        // by buffer and rack, where the rack's result goes
	slotBytes uint64
	window    int            // slots of one connection
	published []RackCounters // by rack, as the lane last published them; guarded by the lane's lock
	awaited   []int          // by rack
	owned     []uint64       // by rack, bytes of parameters
	left      []bool         // by rack: its workers have left in peace
	someLeft  bool
	commit    commit
	began     []uint8 // by chunk, the last epoch that may be begun now; nil: any
	held      int64   // since when, ns
	told      bool    // the other racks were told how the job has ended
	src       []uint64
	folded    []uint64
	one       [1]uint64
}

// leftGrace is how long a chunk may wait for its result once the workers of another rack have left.
const leftGrace = time.Second

// newAbove makes a lane's part, without connections; r has room for its sums.
func newAbove(c *JobConfig, lane, window, sends int, r *region) *above {
	n := sumBuffers(window, c.ChunkBytes, c.Above.Buddies)
	a := &above{
		cfg: c.Above, links: make([]*link, c.Above.Racks), slotBytes: peerSlotBytes(c.ChunkBytes),
		window:    peerWindow(window, c.ChunkBytes),
		published: make([]RackCounters, c.Above.Racks), awaited: make([]int, c.Above.Racks), owned: make([]uint64, c.Above.Racks),
		left: make([]bool, c.Above.Racks), sums: newSums(r, c.ChunkBytes, n, c.Above.Buddies),
		replies: make([]uint64, n*c.Above.Racks), src: make([]uint64, 0, c.Above.Racks), folded: make([]uint64, 0, c.Above.Racks),
		pending: make([]reduce.Action, 0, window), returned: make([]uint32, 0, window),
		commit: newCommit(c.Above.Racks, peerWindow(window, c.ChunkBytes)),
	}
	a.reducer = hierarchy.NewReducer(hierarchy.ReducerConfig{
		Topology: c.Above.Topology, Lane: lane, Rack: c.Above.Rack, Window: a.window,
		Open: n, Sends: sends - 1, // one is left for the end of the job
	})
	return a
}

// reply is where a rack's result goes, of the chunk whose sum is in a buffer.
func (a *above) reply(buffer int32, rack int) *uint64 {
	return &a.replies[int(buffer)*a.cfg.Racks+rack]
}

// blame is the rank in the whole job of a worker of this rack, as an immediate carries it.
func (a *above) blame(rank int) uint32 {
	if rank < 0 {
		return chunk.IndexMask
	}
	return uint32(a.cfg.first(a.cfg.Rack) + rank)
}

// add takes note of more chunks of the lane.
func (a *above) add(chunks []storedChunk) {
	owners := make([]int, len(chunks))
	for i := range chunks {
		owners[i] = int(chunks[i].owner)
		a.commit.owned[owners[i]] = append(a.commit.owned[owners[i]], uint32(len(a.buffer)))
		a.owned[owners[i]] += uint64(chunks[i].elems) * 4
		a.buffer, a.result = append(a.buffer, noResult), append(a.result, noResult)
	}
	a.reducer.Add(owners)
}

// publish copies what others may read.
func (a *above) publish() {
	clear(a.awaited)
	a.reducer.Awaited(a.awaited)
	a.commit.awaited(a.awaited)
	for rack := range a.published {
		p := &a.published[rack]
		*p = RackCounters{OwnedBytes: a.owned[rack], Awaited: uint64(a.awaited[rack])}
		if k := a.links[rack]; k != nil {
			p.RecvBytes, p.SentBytes = k.counters.RecvBytes, k.counters.SentBytes
		}
	}
}

func (a *above) name(rack int) string { return fmt.Sprintf("rack %q", a.cfg.Names[rack]) }

// waiting reports whether something is to be done that is no message.
func (a *above) waiting() bool {
	return len(a.pending)+len(a.returned)+len(a.recalled)+len(a.wanted) > 0 || a.commit.waiting()
}

// HoldPatience is how long a hold may last. Then it fails the job.
const HoldPatience = 30 * time.Second

// holds reports whether a chunk's next epoch must wait for the other racks.
func (a *above) holds(index uint32) bool {
	return a.began != nil && (int(index) >= len(a.began) || a.reducer.Begins(index, a.began[index]))
}

// overdue reports whether the job has been held too long, at a time.
func (a *above) overdue(now int64) bool {
	return a.began != nil && now-a.held > int64(HoldPatience)
}
