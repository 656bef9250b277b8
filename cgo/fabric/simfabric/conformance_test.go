package simfabric_test

import (
	"strings"
	"testing"
	"time"

	"github.com/rackweave/rackweave/cgo/fabric/simfabric"
	"github.com/rackweave/rackweave/verbs"
	"github.com/rackweave/rackweave/verbs/verbstest"
)

func TestConformance(t *testing.T) {
	for _, c := range []struct {
		name    string
		byTime  bool
		options string
	}{
		{"in random order, by reference, mapped", false, ",by_reference=1,maps=1"},
		{"by time, copying at post, mapped", true, ",copies_at_post=1,maps=1"},
		{"by time, with links", true, ",link=1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var world *simfabric.World
			var link func(*testing.T, *verbs.Device, bool)
			if strings.Contains(c.options, "link=1") {
				link = func(_ *testing.T, d *verbs.Device, up bool) { simfabric.Link(d, up) }
			}
			verbstest.Run(t, verbstest.Provider{
				Name: simfabric.Provider,
				Link: link,
				Open: func(t *testing.T) (a, b *verbs.Device) {
					var err error
					if world, err = simfabric.New(1); err != nil {
						t.Fatal(err)
					}
					world.SetNetwork(simfabric.Network{ByTime: c.byTime})
					t.Cleanup(world.Close)
					return verbstest.Ends(simfabric.Provider, "", world.Options()+c.options)(t)
				},
				Memory: verbstest.Private,
				Drive:  func() { world.Step() },
				Now:    func() time.Duration { return world.Now() },
			})
		})
	}
}

func TestConformanceOnTheWallClock(t *testing.T) {
	verbstest.Run(t, verbstest.Provider{
		Name: simfabric.Provider, Open: verbstest.Ends(simfabric.Provider, "", ""), Memory: verbstest.Private,
	})
}
