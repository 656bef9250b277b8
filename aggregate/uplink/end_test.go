package uplink

import (
	"testing"
	"time"

	"github.com/rackweave/rackweave/aggregate/failure"
	"github.com/rackweave/rackweave/aggregate/lane"
)

func TestAChunkThatWaitsWhenARackLeavesHasAGrace(t *testing.T) {
	const second = int64(time.Second)
	at := &lane.Lane{Stamp: 100 * second}
	u := &Uplink{cfg: Config{
		Place: &Place{Names: []string{"a", "b", "c"}}, Lane: at, Fail: failure.NewLatch(func() {}, 0),
	}}
	u.Links = Links{u: u, peers: make([]peer, 3)}
	u.exchange = exchange{u: u}
	u.buffers.since = []int64{at.Stamp - 5*second} // another rack is slow
	if u.missLeft(); u.cfg.Fail.Has() {
		t.Fatal("a chunk may wait as long as no rack has left:", u.cfg.Fail.Failure().Err)
	}
	u.ended(0, Left, 0)
	at.Stamp += leftGrace.Nanoseconds() / 2
	if u.missLeft(); u.cfg.Fail.Has() {
		t.Fatal("its result may be under way from a third rack:", u.cfg.Fail.Failure().Err)
	}
	at.Stamp += leftGrace.Nanoseconds()
	if u.missLeft(); !u.cfg.Fail.Has() {
		t.Error("the job waits for a rack whose workers have left")
	}
}
