package attacks

import (
	"context"
	"fmt"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// flood connects, from several addresses without pause, and asks for the metrics, until ctx ends. It returns how often it came in
// or was left outside.
func flood(ctx context.Context, to string, addresses int) int64 {
	var all sync.WaitGroup
	var n atomic.Int64
	for i := range addresses {
		all.Go(func() {
			d := net.Dialer{Timeout: 100 * time.Millisecond, LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 1, byte(1+i))}}
			for ctx.Err() == nil {
				c, err := d.DialContext(ctx, "tcp", to)
				if err == nil || os.IsTimeout(err) {
					n.Add(1)
				}
				if err != nil {
					continue
				}
				c.Write([]byte("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"))
				c.(*net.TCPConn).SetLinger(0)
				c.Close()
			}
		})
	}
	all.Wait()
	return n.Load()
}

// floodPorts floods ports of this host.
func floodPorts(ctx context.Context, t *testing.T, ports []int64, length time.Duration) {
	t.Helper()
	flooding, end := context.WithTimeout(ctx, length)
	defer end()
	var all sync.WaitGroup
	for _, port := range ports {
		all.Go(func() {
			n := flood(flooding, fmt.Sprint("127.0.0.1:", port), 16)
			t.Logf("%d attempts at port %d in %v", n, port, length)
			if n < 100 {
				t.Errorf("a flood has %d attempts in %v: it is none", n, length)
			}
		})
	}
	all.Wait()
}

// silent starts an aggregator that logs no refusals.
func silent(t *testing.T) (context.Context, *Aggregator) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	a, err := Start(ctx, program, "--log-level", "error")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Stop() })
	return ctx, a
}

// during returns the processor time that an aggregator takes while f runs.
func during(t *testing.T, a *Aggregator, f func()) time.Duration {
	t.Helper()
	before, err := a.CPU()
	if err != nil {
		t.Fatal(err)
	}
	f()
	after, err := a.CPU()
	if err != nil {
		t.Fatal(err)
	}
	return after - before
}

// TestAFloodOfStrangersTakesLittle measures until the first moment is over, in which a rack of workers may come at once.
func TestAFloodOfStrangersTakesLittle(t *testing.T) {
	t.Parallel()
	ctx, a := silent(t)
	ports, err := a.listening()
	if err != nil || len(ports) < 2 {
		t.Fatalf("the aggregator listens on %d, %v, want the control plane's port and the data path's", ports, err)
	}
	// The promise is 1 % of a core. The kernel counts hundredths of a second, and work takes longer on a machine with other load.
	const most = 2 * time.Second / 100
	windows := make([]time.Duration, 5)
	for i := range windows {
		windows[i] = during(t, a, func() { floodPorts(ctx, t, ports, 3*time.Second) }) / 3
	}
	slices.Sort(windows)
	used := windows[len(windows)/2]
	if used > most {
		t.Errorf("a flood takes %v of a core in each second, the median of %v, want at most 1 %%", used, windows)
	}
	rss, err := a.resident()
	if err != nil || rss > a.idle+64<<20 {
		t.Errorf("%d MiB are resident, %d when idle: %v", rss>>20, a.idle>>20, err)
	}
	t.Logf("a flood costs %v of a core in each second; %d MiB are resident, %d when idle", used, rss>>20, a.idle>>20)
}

// TestFramesThatMakeNoCallTakeLittle sends frames of each kind over a connection of its own, all at once.
func TestFramesThatMakeNoCallTakeLittle(t *testing.T) {
	t.Parallel()
	ctx, a := silent(t)
	flooding, end := context.WithTimeout(ctx, 3*time.Second)
	defer end()
	// Work takes longer on a machine with other load.
	used, most := during(t, a, func() { a.floodAll(flooding) })/3, time.Duration(len(belowCalls))*2*time.Second/100
	if used > most {
		t.Errorf("%d connections take %v of a core in each second, want at most 1 %% each", len(belowCalls), used)
	}
	t.Logf("%d connections cost %v of a core in each second", len(belowCalls), used)
}
