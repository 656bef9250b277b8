package attacks

import (
	"context"
	"net"
	"sync"
	"testing"
	"time"
)

// TestAFloodOfStrangersTakesLittleMemory also says what it takes of a processor.
func TestAFloodOfStrangersTakesLittleMemory(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	a, err := Start(ctx, binary, "--log-level", "error")
	if err != nil {
		t.Fatal(err)
	}
	defer a.Stop()
	before, err := a.CPU()
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	var all sync.WaitGroup
	var mu sync.Mutex
	n := 0
	for range 8 {
		all.Go(func() {
			for time.Since(began) < 2*time.Second {
				c, err := dialer.DialContext(ctx, "tcp", a.Addr())
				if err != nil {
					continue
				}
				c.Write([]byte("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"))
				c.(*net.TCPConn).SetLinger(0)
				c.Close()
				mu.Lock()
				n++
				mu.Unlock()
			}
		})
	}
	all.Wait()
	used, err := a.CPU()
	if err != nil {
		t.Fatal(err)
	}
	rss, err := a.resident()
	if err != nil || rss > a.idle+64<<20 {
		t.Errorf("%d MiB are resident, %d when idle: %v", rss>>20, a.idle>>20, err)
	}
	took := time.Since(began).Round(time.Millisecond)
	t.Logf("%d connections in %v cost %v of a processor, %d MiB are resident, %d when idle", n, took, used-before, rss>>20, a.idle>>20)
}
