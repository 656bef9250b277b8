package racks

import (
	"cmp"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/rackweave/rackweave/hierarchy"
)

// measured has the aggregators of a lab measure their links.
func measured(t *testing.T, l *Lab) (links hierarchy.Links, best string) {
	t.Helper()
	argv := l.PlanCommand(l.Program, 0, "--bytes", "500KB", "--json")
	cmd := exec.CommandContext(t.Context(), argv[0], argv[1:]...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %v", argv, err)
	}
	var plan struct {
		Links hierarchy.Links
		Best  string
	}
	if err := json.Unmarshal(out, &plan); err != nil {
		t.Fatal(err)
	}
	return plan.Links, plan.Best
}

// Uplinks of 80, 80 and 20 Mb/s: a rack's links are measured as they are shaped, and the job goes around the slow rack, which a
// root elsewhere, or the end of a chain, spares a quarter of its bytes.
func TestShapeAutoGoesAroundASlowUplink(t *testing.T) {
	const fast, slow = 80e6, 20e6
	l := &Lab{Program: program(t), Log: os.Stderr, Warmup: 1, Iters: 20, Verify: true}
	l.Fabric = up(t, Config{Racks: 3, Workers: 1, Rate: fast, Core: 1})
	if err := l.SetUplink(t.Context(), 2, slow); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	c, err := l.Serve(ctx, "auto")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Stop()
	links, best := measured(t, l)
	for i := range links.Rate {
		for j, rate := range links.Rate[i] {
			want := fast
			if i == 2 || j == 2 {
				want = slow
			}
			if want *= goodput / 8; i != j && (rate > 1.15*want || rate < 0.6*want) { // other tests may take the cores
				t.Errorf("from rack %d to rack %d: %.4g B/s, %.4g are shaped", i, j, rate, want)
			}
			if hop := links.Latency[i][j]; i != j && !(hop > 0 && hop < 1) {
				t.Errorf("from rack %d to rack %d: %g s", i, j, hop)
			}
		}
	}
	if best != "root" && best != "chain" { // both put one model on the slow uplink, where sharded puts a third more
		t.Errorf("the plan chooses %s", best)
	}
	r := &trial{Lab: l, Cluster: c, ctx: ctx, outcome: make(chan error, 1)}
	done := make(chan struct{})
	go func() {
		r.outcome <- r.exchangeOnce(t) // which compares every bit with plain Go
		close(done)
	}()
	defer func() { cancel(); <-done }()
	r.crossing(t, 3*smallModel)
	shape := ""
	for rack := range l.Racks {
		s, err := l.Status(ctx, rack)
		if err != nil {
			t.Fatal(err)
		}
		if len(s.Jobs) != 1 {
			t.Fatalf("rack %d: %+v", rack, s.Jobs)
		}
		j := s.Jobs[0]
		shape = cmp.Or(shape, j.Shape)
		if j.Shape != shape || shape == "sharded" || !strings.Contains(j.ShapeReason, "rack2") {
			t.Errorf("rack %d: %+v", rack, s.Jobs)
		}
	}
	if err := r.ends(t, 2*time.Minute); err != nil {
		t.Error(err)
	}
}
