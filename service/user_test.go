package service

import (
	"strings"
	"testing"

	"github.com/rackweave/rackweave/verbs"
)

func TestAutoLeavesSharedMemoryToProcessesOfOneUserAndRoot(t *testing.T) {
	shm, tcp := &engine{}, &engine{}
	for _, c := range []struct {
		aggregator, worker uint32
		want               *engine
	}{{1000, 1000, shm}, {1000, 0, shm}, {0, 1000, shm}, {1000, 1001, tcp}} {
		s := &Service{uid: c.aggregator, engines: map[string]*engine{verbs.ProviderSHM: shm, verbs.ProviderTCP: tcp}}
		m := &member{rank: -1, uid: c.worker, providers: []string{verbs.ProviderSHM, verbs.ProviderTCP}}
		if e, err := s.chooseEngine(&job{members: []*member{m}}); err != nil || e != c.want {
			t.Errorf("aggregator of user %d, worker of user %d: engine %p, error %v", c.aggregator, c.worker, e, err)
		}
		m.provider = verbs.ProviderSHM
		_, err := s.chooseEngine(&job{members: []*member{m}})
		if (err != nil) != (c.want == tcp) || err != nil &&
			!strings.Contains(err.Error(), "runs as user 1001, the aggregator as user 1000: run both as one") {
			t.Errorf("aggregator of user %d, worker of user %d that asks for shm: error %v", c.aggregator, c.worker, err)
		}
	}
}
