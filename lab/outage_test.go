package lab

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// endless is an exchange that lasts until something ends it.
const endless = "--bytes 1MB --workers 2 --iters 100000 --warmup 0 --no-roofline --provider ibv --server "

// startExchange starts a benchmark in a guest and returns once its gradients flow.
func startExchange(t *testing.T, g *Guest, flags string) *Cmd {
	t.Helper()
	sent := func() int { return counters(t, g, "sent_pkts")["sent_pkts"] }
	before := sent()
	c := g.Start("exec " + program(t, g) + " bench " + flags)
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(200 * time.Millisecond) {
		if sent() > before+500 {
			return c
		}
		select {
		case <-c.Done():
			t.Fatalf("%s: it ended before it began:\n%s", flags, c.Output())
		default:
		}
	}
	c.Kill()
	t.Fatalf("%s: nothing flows:\n%s", flags, c.Output())
	return nil
}

// fails waits for a command to fail, with output that has all of wants.
func fails(t *testing.T, c *Cmd, wants ...string) {
	t.Helper()
	start := time.Now()
	out, err := c.Wait(within(t, patience))
	took := time.Since(start)
	if err == nil || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("after %v: %v, want a command that fails\n%s", took, err, out)
	}
	for _, want := range wants {
		if !strings.Contains(out, want) {
			t.Errorf("want %q in what it says:\n%s", want, out)
		}
	}
	t.Logf("after %v: %s", took.Round(100*time.Millisecond), firstLine(out[max(strings.LastIndex(out, "rackweave:"), 0):]))
}

// rideOut pulls a worker's cable during an exchange and plugs it in 3 s later.
func rideOut(t *testing.T, aggregator, worker *Guest) {
	url := fmt.Sprintf("http://%s:7077", aggregator.Addr(0))
	serve(t, aggregator, "ibv", "--insecure --listen :7077")
	untilItServes(t, worker, url)
	c := startExchange(t, worker,
		"--bytes 4MB --workers 2 --iters 8 --jitter 500ms --warmup 0 --optimizer sgd_torch --verify --no-roofline --json "+SharedDir+
			"/result.json --provider ibv --server "+url)
	link(t, worker, false)
	time.Sleep(3 * time.Second)
	select {
	case <-c.Done():
		t.Fatalf("it ended with the cable pulled:\n%s", c.Output())
	default:
	}
	link(t, worker, true)
	if out, err := c.Wait(within(t, patience)); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	checksum(t, filepath.Join(worker.Dir(), "result.json"), "3 s without a cable")
}

// giveUp pulls a worker's cable for good: both sides give up when the link timeout has passed, and the aggregator serves others.
func giveUp(t *testing.T, aggregator, worker *Guest) {
	url := fmt.Sprintf("http://%s:7077", aggregator.Addr(0))
	serving := serve(t, aggregator, "ibv", "--insecure --listen :7077")
	untilItServes(t, worker, url)
	c := startExchange(t, worker, endless+url)
	link(t, worker, false)
	fails(t, c, "rackweave:", "lost")
	says(t, serving, "job failed")
	link(t, worker, true)
	exchange(t, worker, small+" --provider ibv --server "+url)
}

func link(t *testing.T, g *Guest, up bool) {
	t.Helper()
	if err := g.SetLink(0, up); err != nil {
		t.Fatal(err)
	}
}

// says waits until a command has printed a text.
func says(t *testing.T, c *Cmd, want string) {
	t.Helper()
	for end := time.Now().Add(patience); !strings.Contains(c.Output(), want); time.Sleep(100 * time.Millisecond) {
		if time.Now().After(end) {
			t.Errorf("after %v it has not said %q:\n%s", patience, want, c.Output())
			return
		}
	}
}

// powerFailures kills a worker's host, which fails its job alone, and then the aggregator's, which fails all other jobs.
func powerFailures(t *testing.T, aggregator, first, second *Guest) {
	url := fmt.Sprintf("http://%s:7077", aggregator.Addr(0))
	serving := serve(t, aggregator, "ibv", "--insecure --listen :7077")
	untilItServes(t, first, url)
	doomed := startExchange(t, second, endless+url)
	going := startExchange(t, first,
		"--bytes 4MB --workers 2 --iters 4 --warmup 0 --optimizer sgd_torch --verify --no-roofline --json "+SharedDir+
			"/result.json --provider ibv --server "+url)
	second.Kill()
	<-doomed.agent.gone
	says(t, serving, "job failed")
	if out, err := going.Wait(within(t, patience)); err != nil {
		t.Fatalf("the job beside that of a host without power: %v\n%s", err, out)
	}
	checksum(t, filepath.Join(first.Dir(), "result.json"), "beside a host without power")

	last := startExchange(t, first, endless+url)
	aggregator.Kill()
	fails(t, last, "rackweave:", "lost")
}
