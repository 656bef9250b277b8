package attacks

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

var soak = flag.Duration("soak", 0, "how long TestSoak lasts")

// TestSoak runs attacks at random on one aggregator, with jobs that come, save, change their size and go, or are killed, and looks
// whether it grows.
func TestSoak(t *testing.T) {
	if *soak == 0 {
		t.Skip("-soak is 0: make soak gives it an hour")
	}
	ctx, cancel := context.WithTimeout(t.Context(), *soak+5*time.Minute)
	defer cancel()
	a, err := Start(ctx, program, "--checkpoint-dir", t.TempDir(), "--max-job-memory", fmt.Sprint(512<<20), "--log-level", "error")
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := a.Stop(); err != nil {
			t.Errorf("%v\n%s", err, a.log.Bytes())
		}
	}()
	all := slices.Concat(Strangers, Tenants(""))
	start, err := a.size()
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	for round := 0; time.Since(began) < *soak; round++ {
		moveOn()
		name := fmt.Sprint("victim", round%3)
		v, err := a.comeIn(ctx, name, name)
		if err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		chosen := all[rand.IntN(len(all))]
		if chosen.Name != "another's token" { // it is about the job "victim"
			if err := chosen.Run(ctx, a); err != nil {
				t.Fatalf("round %d, %s: %v", round, chosen.Name, err)
			}
		}
		if round%5 == 4 {
			v.Kill()
		} else if err := v.SaveAndLeave(ctx); err != nil {
			t.Fatalf("round %d, %s: %v", round, chosen.Name, err)
		}
		if round%50 == 49 {
			grown, err := a.settles(start)
			if err != nil {
				t.Fatalf("round %d: %v", round, err)
			}
			t.Logf("%v: round %d, %v", time.Since(began).Round(time.Second), round, grown)
		}
	}
}
