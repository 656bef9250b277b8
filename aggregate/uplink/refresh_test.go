package uplink

import (
	"testing"
	"time"

	"github.com/rackweave/rackweave/aggregate/failure"
	"github.com/rackweave/rackweave/aggregate/lane"
	"github.com/rackweave/rackweave/aggregate/reduce"
	"github.com/rackweave/rackweave/aggregate/store"
	"github.com/rackweave/rackweave/hierarchy"
)

// A rack whose refresh waits for a third rack has the next step's sums of racks that are done. It must not collect a request for
// them at each tick, because its own workers cannot send before their commit is answered.
func TestARefreshThatWaitsKeepsNoRequests(t *testing.T) {
	top := hierarchy.Topology{Shape: hierarchy.Sharded, Racks: 3}
	at := &lane.Lane{Stamp: int64(time.Second)}
	u := &Uplink{
		cfg: Config{
			Place: &Place{Topology: top, Rack: 1, Names: []string{"a", "b", "c"}}, Lane: at, Fail: failure.NewLatch(func() {}, 0),
			Machine: reduce.New(reduce.Config{Workers: 1, Mode: reduce.TwoPhase, Above: true}),
			Store:   &store.Store{Chunks: make([]store.Chunk, 2)},
		},
		reducer: hierarchy.NewReducer(hierarchy.ReducerConfig{Topology: top, Rack: 1, Window: 1, Sums: 4}), peerWindow: 1,
	}
	u.Links, u.buffers.since = Links{u: u, peers: make([]peer, 3)}, []int64{at.Stamp}
	u.reducer.Add([]int{1, 1})
	u.refresh = refresh{u: u, active: true, next: 1, inFlight: 1} // chunk 0 waits for rack c
	u.reducer.Sum(0, 1, 1, false)                                 // chunk 1 of the next step
	for range 1000 {
		u.Tick(true)
	}
	if u.reducer.Idle() < 1000 {
		t.Fatalf("%d idle ticks: the chunk moved", u.reducer.Idle())
	}
	if n := len(u.wanted); n > 0 {
		t.Errorf("%d requests wait for the end of the refresh", n)
	}
}
