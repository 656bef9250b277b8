package uplink

import (
	"math"
	"sync"

	"github.com/rackweave/rackweave/aggregate/failure"
	"github.com/rackweave/rackweave/aggregate/lane"
	"github.com/rackweave/rackweave/aggregate/reduce"
	"github.com/rackweave/rackweave/aggregate/store"
	"github.com/rackweave/rackweave/cgo/kernel"
	"github.com/rackweave/rackweave/hierarchy"
)

// Shard is the job's chunks of one rack in the lane, below the uplink.
type Shard interface {
	// Gradients returns the addresses of the payloads of a chunk that was handed up, in rank order. They are valid until the next
	// call.
	Gradients(a *reduce.Action) kernel.Sources
	// CarryOut does what the shard's machine has decided in the last event. For a result it calls [Uplink.Deliver].
	CarryOut()
	// ReachBarrier announces this lane at the next barrier of the job's lanes.
	ReachBarrier()
	// TakeRows gives the workers a block of a sparse tensor's results, and reports false if it must wait for room. taken and last
	// are as in [reduce.Machine.RowsReturned].
	TakeRows(t *store.Tensor, addr uint64, count uint32, taken, last bool) bool
}

// Config describes an uplink.
type Config struct {
	Place      *Place
	Lane       *lane.Lane
	Fail       *failure.Latch
	Shard      Shard
	Machine    *reduce.Machine // the shard's
	Reduction  Reduction
	Store      *store.Store
	Arithmetic *store.Arithmetic
	Region     *store.Region // has [BuffersBytes]
	Window     int
	ChunkBytes int
}

// Counters holds a lane's counters for another rack.
type Counters struct {
	OwnedBytes           uint64 // of parameters, on which that rack runs the optimizer
	RecvBytes, SentBytes uint64 // sums, with their notes, results and norms
	Awaited              uint64 // chunks that wait for that rack's sum or result, and a commit that waits for its norms
}

// chunkBuffers names a chunk's buffers. There are two, because the rack's next sum may be complete before the previous result has
// reached every child.
type chunkBuffers struct {
	sum int32 // of the rack's sum and its result, until the result is delivered; otherwise [store.NoBuffer]
	// result is the buffer of the last result, from which the children are sent it. It is held once for each child, until the message
	// has arrived. The next result cannot replace it before all are sent, because that needs the next sum of every child, and a child
	// sends its next sum only when it has this result.
	result int32
	length uint32 // of the result's payload
}

// Uplink reduces one lane's chunks above the rack.
type Uplink struct {
	Links Links // connections to other racks

	cfg      Config
	reducer  *hierarchy.Reducer
	buffers  buffers
	chunks   []chunkBuffers  // by chunk
	pending  []reduce.Action // chunks that wait for a buffer, oldest first; fewer than cfg.Window
	exchange exchange
	refresh  refresh
	coding   coding
	rows     rows
	// The actions of these chunks wait for Advance, because they enter the shard's machine, which may be in an event now.
	returned  []uint32 // chunks whose results have come: Return
	discarded []uint32 // chunks whose sums were dropped: Discard
	wanted    []uint32 // chunks that the workers must send first: Follow

	resultAddrs [][]uint64 // by buffer of the sum, then by child: the address at the child for the result, from its note
	peerWindow  int        // sums that a rack may have at another, unanswered, fewer than the workers' window (wire.go)
	// src, groups and one hold addresses during a call, so that it allocates nothing.
	src, groups []uint64
	one         [1]uint64
	published   published
}

type published struct {
	mu      sync.Mutex
	racks   []Counters
	awaited []int
}

// New makes an uplink without connections.
func New(cfg Config) *Uplink {
	p := cfg.Place
	all, size := numBuffers(cfg.Window, cfg.ChunkBytes, p), bufferBytes(cfg.ChunkBytes, p)
	n := all - MostSparse(cfg.Window, cfg.ChunkBytes)
	u := &Uplink{
		cfg: cfg, peerWindow: peerWindow(cfg.Window, cfg.ChunkBytes),
		buffers: buffers{
			store.NewBuffers(cfg.Region, size, n), slotBytes(cfg.ChunkBytes), uint64(cfg.ChunkBytes), roomBytes(cfg.ChunkBytes),
			make([]int64, all),
		},
		src: make([]uint64, 0, p.Racks+1), groups: make([]uint64, 0, p.Racks),
		pending: make([]reduce.Action, 0, cfg.Window), returned: make([]uint32, 0, cfg.Window),
		published: published{racks: make([]Counters, p.Racks), awaited: make([]int, p.Racks)},
	}
	for range n {
		u.resultAddrs = append(u.resultAddrs, make([]uint64, p.Racks))
	}
	for b := range u.buffers.since {
		u.buffers.since[b] = math.MaxInt64
	}
	u.rows = rows{u: u}
	u.coding = coding{u: u, forms: make([]uint64, 0, p.Racks+1)}
	if p.Coded() {
		u.coding.lengths = make([][]uint32, p.Racks)
	}
	u.Links = Links{u: u, peers: make([]peer, p.Racks)}
	u.exchange = exchange{u: u, peers: make([]normPeer, p.Racks)}
	u.reducer = hierarchy.NewReducer(hierarchy.ReducerConfig{
		Topology: p.Topology, Lane: cfg.Lane.Index, Rack: p.Rack, Window: u.peerWindow,
		Sums: n, Sends: cfg.Lane.Depths.PeerSend - 1, // one send is reserved for the end of the job
	})
	return u
}

// TempChunk returns the address for [store.Store.TempChunk], behind the norms of the last rack.
func (u *Uplink) TempChunk() uint64 { return u.buffers.norms(u.cfg.Place.Racks) }

// SetShape changes the shape. The uplink must not have chunks yet.
func (u *Uplink) SetShape(s hierarchy.Shape) { u.reducer.SetShape(s) }

// Add adds chunks to those of the lane.
func (u *Uplink) Add(chunks []store.Chunk) {
	owners := make([]int, len(chunks))
	for i := range chunks {
		owners[i] = int(chunks[i].Owner)
		p := &u.Links.peers[owners[i]]
		p.owned = append(p.owned, uint32(len(u.chunks)))
		p.ownedBytes += uint64(chunks[i].Elems) * 4
		if c := &u.cfg.Store.Chunks[len(u.chunks)]; c.Core != 0 && int(c.Owner) == u.cfg.Place.Rack {
			c.Refers = u.cfg.Reduction.Base(c) != 0
		}
		u.chunks = append(u.chunks, chunkBuffers{sum: store.NoBuffer, result: store.NoBuffer})
	}
	for rack := range u.coding.lengths {
		u.coding.lengths[rack] = append(u.coding.lengths[rack], make([]uint32, len(chunks))...)
	}
	u.reducer.Add(owners)
	u.rows.add()
}

// Publish copies the counters for other goroutines.
func (u *Uplink) Publish() {
	u.published.mu.Lock()
	defer u.published.mu.Unlock()
	awaited := u.published.awaited
	clear(awaited)
	u.reducer.Awaited(awaited)
	u.exchange.awaited(awaited)
	u.rows.awaited(awaited)
	for rack := range u.Links.peers {
		p := &u.Links.peers[rack]
		u.published.racks[rack] = Counters{OwnedBytes: p.ownedBytes, Awaited: uint64(awaited[rack]), RecvBytes: p.recv, SentBytes: p.sent}
	}
}

// Counters adds the counters that were published last to out, by rack. Any goroutine may call it.
func (u *Uplink) Counters(out []Counters) {
	u.published.mu.Lock()
	defer u.published.mu.Unlock()
	for rack := range out {
		c, o := &out[rack], &u.published.racks[rack]
		c.OwnedBytes += o.OwnedBytes
		c.RecvBytes += o.RecvBytes
		c.SentBytes += o.SentBytes
		c.Awaited += o.Awaited
	}
}
