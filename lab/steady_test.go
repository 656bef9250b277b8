package lab

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// serve runs an aggregator in the guest until the test ends, and returns its port's URL there once it answers.
func serve(t *testing.T, g *Guest, provider, flags string) *Cmd {
	t.Helper()
	c := g.Start("exec " + program(t, g) + " serve --providers " + provider + " " + flags)
	t.Cleanup(func() {
		c.Kill()
		if t.Failed() {
			t.Logf("the aggregator in %s says:\n%s", g.Name(), c.Output())
		}
	})
	return c
}

// untilItServes waits, in a guest, until an aggregator answers.
func untilItServes(t *testing.T, g *Guest, url string) {
	t.Helper()
	run(t, g, fmt.Sprintf(`for i in $(seq 2000); do
	busybox wget -q -O - --header 'content-type: application/json' --post-data '{}' %s/grpc.health.v1.Health/Check && exit
	sleep 0.2
done 2>/dev/null; exit 1`, url))
}

// counters reads soft-RoCE's counters of a device.
func counters(t *testing.T, g *Guest, names ...string) map[string]int {
	t.Helper()
	values := map[string]int{}
	for _, name := range names {
		v, err := strconv.Atoi(run(t, g, "cat /sys/class/infiniband/rxe0/ports/1/hw_counters/"+name))
		if err != nil {
			t.Fatal(err)
		}
		values[name] = v
	}
	return values
}

// metric adds up an aggregator's metric over its lanes on RDMA devices.
func metric(text, name string) (sum float64) {
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, name+"{") || !strings.Contains(line, `provider="ibv"`) {
			continue
		}
		if v, err := strconv.ParseFloat(line[strings.LastIndexByte(line, ' ')+1:len(line)-1], 64); err == nil {
			sum += v
		}
	}
	return sum
}

// steadyState shows what an exchange asks of the device: several requests per doorbell, and receivers that are always ready. An
// overrun completion queue would have failed the job.
func steadyState(t *testing.T, g *Guest) {
	const url = "http://127.0.0.1:7079"
	c := serve(t, g, "ibv", "--listen 127.0.0.1:7079")
	defer c.Kill()
	untilItServes(t, g, url)
	rnr := []string{"send_rnr_err", "rcvd_rnr_err"}
	before := counters(t, g, rnr...)
	exchange(t, g, "--bytes 8MB --workers 2 --iters 3 --warmup 1 --verify --no-roofline --provider ibv --server "+url)
	for name, v := range counters(t, g, rnr...) {
		if v != before[name] {
			t.Errorf("%s: %d more: a message came for which no receive was posted", name, v-before[name])
		}
	}
	text := run(t, g, "busybox wget -q -O - "+url+"/metrics")
	answers, doorbells := metric(text, "rackweave_lane_answers_total"), metric(text, "rackweave_lane_doorbells_total")
	t.Logf("%.0f answers with %.0f doorbells: %.1f requests each", answers, doorbells, answers/doorbells)
	if answers == 0 || answers < 2*doorbells {
		t.Errorf("%.0f answers took %.0f doorbells: want at least 2 requests for each", answers, doorbells)
	}
}

// shareOfPerftest prints an exchange's share of the rate that ib_write_bw has in the same guest right after. It is no test of
// speed: both share this machine with other programs. The documentation of roofline.Perftest has figures and explains the
// difference.
func shareOfPerftest(t *testing.T, g *Guest) {
	file := filepath.Join(g.Dir(), "share.json")
	out, err := g.Run(within(t, patience),
		program(t, g)+" bench --provider ibv --bytes 4MB --workers 2 --iters 2 --warmup 1 --arena "+
			"--json "+SharedDir+"/share.json")
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var result struct {
		Roofline struct {
			Name       string
			GBs, Share float64
		}
		Note string
	}
	if err := json.Unmarshal(text, &result); err != nil {
		t.Fatal(err)
	}
	if r := result.Roofline; r.Name != "ib_write_bw" || r.GBs <= 0 || r.Share <= 0 {
		t.Errorf("no share of ib_write_bw: %+v\n%s", r, out)
	}
	if !strings.Contains(result.Note, "not line rate") {
		t.Errorf("the note %q does not say that this is no hardware", result.Note)
	}
	t.Logf("%.0f%% of ib_write_bw's %.3f GB/s", 100*result.Roofline.Share, result.Roofline.GBs)
}
