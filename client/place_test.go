package client

import (
	"testing"

	"github.com/rackweave/rackweave/service/api"
)

func TestAWorkersPlaceFollowsThePlan(t *testing.T) {
	const wait, goOn = "wait", "go-on"
	for name, tc := range map[string]struct {
		workers, sizes []uint32 // by rack
		out            int      // rack that is lost
		onLoss         string
		rank, all      int // 0 of 0: it is refused
		lasts          bool
	}{
		"even racks go on":           {[]uint32{2, 2, 2}, []uint32{1, 1, 1}, 0, goOn, 0, 4, false},
		"declared racks go on":       {[]uint32{2, 4, 6}, []uint32{1, 2, 3}, 0, goOn, 0, 10, false},
		"the rest is even":           {[]uint32{2, 3, 3}, []uint32{1, 1, 1}, 0, goOn, 0, 6, false},
		"undeclared and uneven":      {[]uint32{2, 3, 2, 3}, []uint32{0, 0, 0, 0}, 0, goOn, 0, 0, true},
		"its own rack may return":    {[]uint32{2, 2, 2}, []uint32{1, 1, 1}, 1, goOn, 0, 0, false},
		"its own rack is waited for": {[]uint32{2, 2, 2}, []uint32{1, 1, 1}, 1, wait, 0, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := place{rank: int(tc.workers[0]), rack: "b", workers: tc.workers} // the first of rack b
			m := &api.Membership{}
			for i, n := range tc.workers {
				h := &api.RackHolder{Name: string(rune('a' + i)), Url: "http://there", Token: 1, Size: tc.sizes[i]}
				s.racks = append(s.racks, &api.Aggregator{Rack: h.Name, Url: h.Url})
				if i == tc.out {
					h.Url, h.Out = "", tc.onLoss == goOn
				}
				m.Racks = append(m.Racks, h)
				s.all += int(n)
			}
			cfg := Config{Rank: s.rank, Workers: s.all}
			err := s.follow(&cfg, m)
			if tc.all == 0 {
				if err == nil || lasts(err) != tc.lasts {
					t.Errorf("it is placed as rank %d of %d: %v; for good: %v, want %v", cfg.Rank, cfg.Workers, err, lasts(err), tc.lasts)
				}
			} else if err != nil || cfg.Rank != tc.rank || cfg.Workers != tc.all {
				t.Errorf("rank %d of %d, %v, want %d of %d", cfg.Rank, cfg.Workers, err, tc.rank, tc.all)
			}
		})
	}
}
