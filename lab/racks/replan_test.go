package racks

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/rackweave/rackweave/bench/models"
	"github.com/rackweave/rackweave/chunk"
)

// Four racks are in two pods, whose uplinks become a quarter as fast while a job runs in shape sharded. It goes over to shape pods,
// which spares them half of the bytes, and every bit is plain Go's.
func TestAJobChangesItsShapeWhenPodUplinksBecomeSlow(t *testing.T) {
	l := &Lab{Program: program(t), Log: os.Stderr, Warmup: 1, Iters: 120, Verify: true}
	l.Fabric = up(t, Config{Racks: 4, Workers: 1, Rate: 80e6, Core: 1, Pods: 2})
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
	defer cancel()
	c, err := l.Serve(ctx, "auto")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Stop()
	for range 5 {
		if changesShape(t, ctx, &trial{Lab: l, Cluster: c, ctx: ctx, outcome: make(chan error, 1)}) {
			return
		}
	}
	t.Error("five jobs kept their shapes")
}

// changesShape runs a job. It returns false if the job kept its shape, which it may where others on the machine make steps slow at
// other times than links do.
func changesShape(t *testing.T, ctx context.Context, r *trial) bool {
	t.Helper()
	for range 5 { // the job goes by the last measurement, which others on the machine may spoil
		if measured(t, r.Lab).Best == "sharded" {
			break
		}
	}
	m, err := models.FromBytes("500KB", chunk.F32)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		_, err := r.exchange(ctx, r.spec(m, r.Servers())) // which compares every bit with plain Go
		r.outcome <- err
		close(done)
	}()
	defer func() { cancel(); <-done }()
	// These steps take longer than it does to learn what is usual, as none is faster than the links.
	r.crossing(t, 60*1.5*smallModel)
	before, _ := r.shapes(t)
	shapePods(t, r.Lab, r.PodUplink()/4)
	changed := false
	for deadline := time.Now().Add(30 * time.Second); !changed && len(r.outcome) == 0 && time.Now().Before(deadline); {
		time.Sleep(100 * time.Millisecond)
		now, changes := r.shapes(t)
		changed = before == "sharded sharded sharded sharded" && now == "pods pods pods pods" && changes == r.Racks
	}
	shapePods(t, r.Lab, r.PodUplink()) // so that the rest does not take long
	if err := r.ends(t, time.Minute); err != nil {
		t.Error(err)
	}
	return changed
}

func shapePods(t *testing.T, l *Lab, rate float64) {
	t.Helper()
	for pod := range l.Pods {
		if err := l.SetPodUplink(t.Context(), pod, rate); err != nil {
			t.Fatal(err)
		}
	}
}

// shapes are how the only job reduces, by each rack's status, and how many racks say that it has changed once, because of a link.
func (r *trial) shapes(t *testing.T) (shapes string, changes int) {
	t.Helper()
	var all []string
	for rack := range r.Racks {
		s, err := r.Status(r.ctx, rack)
		if err != nil {
			t.Fatal(err)
		}
		for _, j := range s.Jobs {
			if j.State == "running" {
				all = append(all, j.Shape)
			}
			if j.Changes == 1 && strings.HasPrefix(j.ShapeReason, "a link changed: ") {
				changes++
			}
		}
	}
	return strings.Join(all, " "), changes
}
