package job

import (
	"fmt"
	"strings"
	"testing"

	"github.com/rackweave/rackweave/service/engine"
	"github.com/rackweave/rackweave/verbs"
)

func TestAutoLeavesSharedMemoryToProcessesOfOneUserAndRoot(t *testing.T) {
	shm, tcp := &engine.Engine{}, &engine.Engine{}
	for _, c := range []struct {
		aggregator, worker uint32
		want               *engine.Engine
	}{{1000, 1000, shm}, {1000, 0, shm}, {0, 1000, tcp}, {0, 0, shm}, {1000, 1001, tcp}} {
		all := &engine.Set{UID: c.aggregator, By: map[string]*engine.Engine{verbs.ProviderSHM: shm, verbs.ProviderTCP: tcp}}
		s := &Table{Config: Config{Engines: all}}
		m := &Member{Rank: -1, uid: c.worker, providers: []string{verbs.ProviderSHM, verbs.ProviderTCP}}
		if e, err := s.chooseEngine(&Job{Members: []*Member{m}}); err != nil || e != c.want {
			t.Errorf("aggregator of user %d, worker of user %d: engine %p, error %v", c.aggregator, c.worker, e, err)
		}
		m.provider = verbs.ProviderSHM
		_, err := s.chooseEngine(&Job{Members: []*Member{m}})
		says := fmt.Sprintf("runs as user %d, the aggregator as user %d: run both as one", c.worker, c.aggregator)
		if (err != nil) != (c.want == tcp) || err != nil && !strings.Contains(err.Error(), says) {
			t.Errorf("aggregator of user %d, worker of user %d that asks for shm: error %v", c.aggregator, c.worker, err)
		}
		all.AnyUser = true
		if e, err := s.chooseEngine(&Job{Members: []*Member{m}}); err != nil || e != shm {
			t.Errorf("aggregator of user %d that takes any, worker of user %d: engine %p, error %v", c.aggregator, c.worker, e, err)
		}
	}
}
