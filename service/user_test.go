package service

import (
	"fmt"
	"strings"
	"testing"

	"github.com/rackweave/rackweave/verbs"
)

func TestAutoLeavesSharedMemoryToProcessesOfOneUserAndRoot(t *testing.T) {
	shm, tcp := &engine{}, &engine{}
	for _, c := range []struct {
		aggregator, worker uint32
		want               *engine
	}{{1000, 1000, shm}, {1000, 0, shm}, {0, 1000, tcp}, {0, 0, shm}, {1000, 1001, tcp}} {
		s := &Service{uid: c.aggregator, engines: map[string]*engine{verbs.ProviderSHM: shm, verbs.ProviderTCP: tcp}}
		m := &member{rank: -1, uid: c.worker, providers: []string{verbs.ProviderSHM, verbs.ProviderTCP}}
		if e, err := s.chooseEngine(&job{members: []*member{m}}); err != nil || e != c.want {
			t.Errorf("aggregator of user %d, worker of user %d: engine %p, error %v", c.aggregator, c.worker, e, err)
		}
		m.provider = verbs.ProviderSHM
		_, err := s.chooseEngine(&job{members: []*member{m}})
		says := fmt.Sprintf("runs as user %d, the aggregator as user %d: run both as one", c.worker, c.aggregator)
		if (err != nil) != (c.want == tcp) || err != nil && !strings.Contains(err.Error(), says) {
			t.Errorf("aggregator of user %d, worker of user %d that asks for shm: error %v", c.aggregator, c.worker, err)
		}
		s.opts.ProviderOptions = map[string]string{verbs.ProviderSHM: "users=any"}
		if e, err := s.chooseEngine(&job{members: []*member{m}}); err != nil || e != shm {
			t.Errorf("aggregator of user %d that takes any, worker of user %d: engine %p, error %v", c.aggregator, c.worker, e, err)
		}
	}
}
