package aggregate_test

import (
	"strings"
	"testing"
	"time"

	"github.com/rackweave/rackweave/aggregate"
	"github.com/rackweave/rackweave/aggregate/optim"
	"github.com/rackweave/rackweave/aggregate/racktest"
	"github.com/rackweave/rackweave/cgo/fabric/simfabric"
	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/hierarchy"
)

// cutCluster returns two racks. The second's aggregator loses its link in mid-step, for away in virtual time.
func cutCluster(t *testing.T, away time.Duration) (c *racktest.Cluster, network func(), now func() time.Duration) {
	t.Helper()
	sim, open := simNetwork(t, 4)
	c, step := clusterOn(t, sim, open, hierarchy.Topology{Shape: hierarchy.Sharded, Racks: 2}, []int{2, 2}, racktest.Config{
		Lanes: 2, Window: 4, AckTimeout: 40 * time.Second, Tensors: tensorsOf(chunk.F32, 5000, 20000, 3),
		Job: aggregate.JobConfig{Name: "job", Mode: aggregate.Eager, Rule: optim.AdamTorch, Hyper: optim.AdamTorch.Defaults(),
			ChunkBytes: 4096},
	})
	link := c.Racks[1].Config.NICs[0]
	rounds, since := 0, time.Duration(0)
	return c, func() {
		switch rounds++; {
		case rounds == 400:
			simfabric.Link(link, false)
			since = sim.Now()
		case since > 0 && sim.Now() > since+away:
			simfabric.Link(link, true)
			since = 0
		}
		step()
	}, sim.Now
}

func TestACoreLinkThatIsDownForFiveSecondsChangesNoBit(t *testing.T) {
	c, network, now := cutCluster(t, 5*time.Second)
	exchangeRacks(t, 1, c, 1, 5, network)
	if now() < 5*time.Second {
		t.Errorf("the exchange took %v: the link was not down in it", now())
	}
}

func TestACoreLinkThatIsDownForGoodEndsTheJobNamingBothRacks(t *testing.T) {
	c, network, now := cutCluster(t, time.Hour)
	var err error
	for err == nil && now() < 10*time.Minute {
		var handles [][][]uint64
		if handles, err = c.Submit(c.AllOps(chunk.OpPushPull)); err == nil {
			err = c.Drive(network, handles, 1_000_000)
		}
	}
	if err == nil || !strings.Contains(err.Error(), `rack "rack1"`) || !strings.Contains(err.Error(), `rack "rack0"`) {
		t.Errorf("%v: want it to name both racks", err)
	}
	if now() > 2*time.Minute {
		t.Errorf("it took %v", now())
	}
}
