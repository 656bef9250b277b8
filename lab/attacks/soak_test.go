package attacks

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"net"
	"testing"
	"time"
)

var soak = flag.Duration("soak", 0, "how long TestSoak lasts")

// TestSoak runs attacks at random on one aggregator, with jobs that come, save and go, or are killed, and looks whether it grows.
func TestSoak(t *testing.T) {
	if *soak == 0 {
		t.Skip("-soak is 0: make soak gives it an hour")
	}
	ctx, cancel := context.WithTimeout(t.Context(), *soak+5*time.Minute)
	defer cancel()
	a, err := Start(ctx, binary, "--checkpoint-dir", t.TempDir(), "--max-job-memory", fmt.Sprint(512<<20), "--log-level", "error")
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := a.Stop(); err != nil {
			t.Errorf("%v\n%s", err, a.log.Bytes())
		}
	}()
	all := append(append([]attack{{"huge tensors", HugeTensors}}, strangers...), tenants...)
	var files, threads int
	began := time.Now()
	for round := 0; time.Since(began) < *soak; round++ {
		dialer.LocalAddr = &net.TCPAddr{IP: net.IPv4(127, 0, byte(1+round/200%200), byte(2+round%200))} // one may call only so often
		name := fmt.Sprint("victim", round%3)
		v, err := Join(ctx, a.URL, name, name, "tcp")
		if err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		chosen := all[rand.IntN(len(all))]
		if chosen.name != "another's token" { // it is about the job "victim"
			if err := chosen.run(ctx, a); err != nil {
				t.Fatalf("round %d, %s: %v", round, chosen.name, err)
			}
		}
		if round%5 == 4 {
			v.Kill()
		} else if err := v.SaveAndLeave(ctx); err != nil {
			t.Fatalf("round %d, %s: %v", round, chosen.name, err)
		}
		if round%20 != 19 {
			continue
		}
		if err := a.Recovers(256 << 20); err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		f, err := a.count("fd")
		if err != nil {
			t.Fatal(err)
		}
		n, err := a.count("task")
		if err != nil {
			t.Fatal(err)
		}
		if files == 0 {
			files, threads = f, n
		}
		t.Logf("%v: round %d, %d descriptors, %d threads", time.Since(began).Round(time.Second), round, f, n)
		if f > files+500 || n > threads+64 {
			t.Fatalf("round %d: %d descriptors and %d threads, and %d and %d at first", round, f, n, files, threads)
		}
	}
}
