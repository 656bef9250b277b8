package lab

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// racksExchange makes two guests the aggregators of a rack each, whose two workers run in a third guest. Plain Go confirms every
// bit, and one model crosses the core in each direction and step: 2(R-1)/R.
func racksExchange(t *testing.T, aggregators []*Guest, workers *Guest) {
	const size = 2
	names := []string{"a", "b"}
	var urls []string
	file := "secret: sixteen characters and more\nracks:\n"
	for i, g := range aggregators {
		urls = append(urls, fmt.Sprintf("http://%s:7081", g.Addr(0)))
		file += fmt.Sprintf("- {name: %s, url: %q, size: %d}\n", names[i], urls[i], size)
	}
	for i, g := range aggregators {
		if err := os.WriteFile(filepath.Join(g.Dir(), "cluster.yaml"), []byte(file), 0o600); err != nil {
			t.Fatal(err)
		}
		c := serve(t, g, "ibv", "--insecure --listen :7081 --cluster "+SharedDir+"/cluster.yaml --rack "+names[i])
		defer c.Kill()
	}
	for _, url := range urls {
		untilItServes(t, workers, url)
	}
	carried := func() [2]uint64 {
		return [2]uint64{Carried(aggregators[0], aggregators[1]), Carried(aggregators[1], aggregators[0])}
	}
	const bytes, exchanges = 2e6, 5 // a broadcast and four steps
	resent := func() (n int) {
		for _, g := range aggregators {
			n += counters(t, g, "duplicate_request")["duplicate_request"]
		}
		return n
	}
	before, resentBefore := carried(), resent()
	exchange(t, workers, fmt.Sprintf("--bytes 2MB --workers %d --iters 3 --warmup 1 --optimizer sgd_torch --verify --no-roofline "+
		"--provider ibv --server %s", size*len(names), strings.Join(urls, ",")))
	after, resentAfter := carried(), resent()
	for i, g := range aggregators {
		text := run(t, g, "busybox wget -q -O - "+urls[i]+"/metrics")
		payload := metric(text, "rackweave_lane_racks_sent_bytes_total") / (bytes * exchanges)
		frames := float64(after[i]-before[i]) / (bytes * exchanges)
		t.Logf("rack %s sent %.4f models a step to the other, %.4f with the headers of frames", names[i], payload, frames)
		if payload < 0.8 || payload > 1.03 {
			t.Errorf("rack %s's aggregator counts %.4f models a step to the other: want at most 1", names[i], payload)
		}
		if frames < payload || resentAfter == resentBefore && frames > 1.1 {
			t.Errorf("the wire carries %.4f models a step from rack %s to the other, which counts %.4f: want the headers of frames and heartbeats more",
				frames, names[i], payload)
		}
	}
}
