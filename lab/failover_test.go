package lab

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// failover takes a netdev down during an exchange, and up again: its lanes fail over to the other NIC and return.
func failover(t *testing.T, g *Guest) {
	if os.Getenv("RACKWEAVE_LONG") == "" {
		t.Skip("RACKWEAVE_LONG is not set: beside other work an emulated guest takes longer to connect than a worker may")
	}
	rw := program(t, g) + " "
	const (
		server = "http://127.0.0.1:7077"
		log    = SharedDir + "/serve.log"
		file   = "failover.json"
	)
	aggregator := g.Start("exec " + rw + "serve --providers ibv --listen 127.0.0.1:7077 > " + log + " 2>&1")
	t.Cleanup(func() {
		if !t.Failed() {
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
		defer cancel()
		out, err := g.Run(ctx, "cat "+log+"; "+rw+"status; ip addr; dmesg | tail -20")
		t.Logf("%s\n%v", out, err)
	})
	const metrics = "curl -sf " + server + "/metrics"
	run(t, g, waitUntil(metrics, "rackweave_nic_up.*rxe1"))
	// Jitter makes it last, on a fast machine too, until the netdev has been down and up again.
	bench := g.Start(fmt.Sprintf("%sbench --server %s --provider ibv --bytes 1MB --workers 2 --iters 60 --jitter 500ms --warmup 1 --optimizer sgd_torch --verify --no-roofline --json %s/%s",
		rw, server, SharedDir, file))
	// A lane of nic1 is in the midst of it. The log costs a slow guest less than metrics do, and the exchange goes on meanwhile.
	const resumed = "connection resumed.* rank=0 lane=1 to=%s primary=rxe1"
	run(t, g, strings.Join([]string{
		waitUntil(metrics, `lane_chunks_total.*device="rxe1",lane="1".* [1-9]`),
		"ip link set nic1 down",
		waitUntil("cat "+log, fmt.Sprintf(resumed, "rxe0")),
		waitUntil(metrics, `nic_up.*device="rxe1".* 0$`),
		"ip link set nic1 up",
		waitUntil("cat "+log, fmt.Sprintf(resumed, "rxe1")),
		waitUntil(metrics, `nic_up.*device="rxe1".* 1$`),
	}, " &&\n"))
	if out, err := bench.Wait(within(t, patience)); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	checksum(t, filepath.Join(g.Dir(), file), "with a link down for a while")
	events := run(t, g, "cat "+log)
	down, moved := when(t, events, `msg="link down" device=rxe1`), when(t, events, `msg="connection resumed"`)
	if moved.Before(down) {
		t.Errorf("a connection moved at %v, before the link was down at %v", moved, down)
	}
	t.Logf("the first connection moved %v after its link went down", moved.Sub(down))
	run(t, g, "pkill -x rackweave")
	aggregator.Wait(within(t, patience))
}

// when returns the time of the first line of a log that contains a text.
func when(t *testing.T, log, text string) time.Time {
	t.Helper()
	for line := range strings.Lines(log) {
		if !strings.Contains(line, text) {
			continue
		}
		stamp, _, _ := strings.Cut(strings.TrimPrefix(line, "time="), " ")
		at, err := time.Parse(time.RFC3339Nano, stamp)
		if err != nil {
			t.Fatal(err)
		}
		return at
	}
	t.Fatalf("the log does not say %s", text)
	return time.Time{}
}

// waitUntil returns a script that runs a command until its output matches.
func waitUntil(command, pattern string) string {
	return fmt.Sprintf("until %s > /tmp/until 2>/dev/null && grep -qE '%s' /tmp/until; do sleep 0.1; done", command, pattern)
}
