package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"slices"
	"testing"
	"time"

	"github.com/rackweave/rackweave/client"
)

// movingRacks is aggregators, each a process of its own, of racks that have buddies; etcd keeps who serves which.
type movingRacks struct {
	t    *testing.T
	file string
	etcd string
	at   []string // by rack, where its first aggregator is
	runs []*exec.Cmd
}

func openMovingRacks(t *testing.T, racks int) *movingRacks {
	m := &movingRacks{t: t, etcd: "http://" + freeAddress(t)}
	text := "secret: a secret of the racks\nbuddy: true\nshape: sharded\nracks:\n"
	for i := range racks {
		m.at = append(m.at, freeAddress(t))
		text += fmt.Sprintf("  - {name: r%d, url: http://%s}\n", i, m.at[i])
	}
	m.file = file(t, "cluster.yaml", text)
	t.Cleanup(func() {
		for _, run := range m.runs {
			_ = run.Process.Kill()
			_ = run.Wait() // it was killed
		}
	})
	return m
}

// freeAddress is where nothing listens.
func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// serve starts an aggregator, and waits until it answers.
func (m *movingRacks) serve(at string, args ...string) (run *exec.Cmd) {
	m.t.Helper()
	run = exec.Command(os.Args[0], append([]string{"serve", "--listen", at, "--cluster", m.file, "--cores", "1", "--providers", "tcp",
		"--etcd-ttl", "2s"}, args...)...)
	run.Stderr = m.t.Output()
	if err := run.Start(); err != nil {
		m.t.Fatal(err)
	}
	m.runs = append(m.runs, run)
	for end := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		_, err := client.Status(m.t.Context(), client.Config{Server: "http://" + at})
		if err == nil {
			return run
		}
		if time.Now().After(end) {
			m.t.Fatalf("the aggregator %v does not answer: %v", args, err)
		}
	}
}

// A rack's aggregator is killed in mid-step. Another, on the box of the first rack beside that rack's own, takes its place; the
// workers find it by themselves, and the job goes on with the bits of a run that nothing interrupts.
func TestAnotherRacksBoxTakesARackWhoseAggregatorIsKilled(t *testing.T) {
	const steps, in = 6, 3
	for _, racks := range []int{2, 3} {
		t.Run(fmt.Sprintf("%d racks", racks), func(t *testing.T) {
			t.Parallel()
			m := openMovingRacks(t, racks)
			m.serve(m.at[0], "--rack", "r0", "--etcd", "embed", "--etcd-dir", t.TempDir(), "--etcd-listen", m.etcd, "--etcd-peer",
				"http://"+freeAddress(t))
			for i := 1; i < racks; i++ {
				m.serve(m.at[i], "--rack", fmt.Sprintf("r%d", i), "--etcd", m.etcd)
			}
			standby := freeAddress(t)
			m.serve(standby, "--rack", "r1", "--standby", "--etcd", m.etcd)

			w := joinBuddies(t, m.at)
			var want [][]float32
			for n := range steps {
				w.step(n)
				want = append(want, slices.Clone(w.x[0]))
			}
			w.close()

			w = joinBuddies(t, m.at)
			w.step(0)
			after, killed := time.Duration(rand.IntN(5_000))*time.Microsecond, make(chan time.Time, 1)
			w.every(func(i int) error {
				for n := 1; ; n++ {
					h, err := w.push(i, n)
					if i == 0 && n == in {
						time.Sleep(after) // anywhere in the step, or in the next
						_ = m.runs[1].Process.Kill()
						killed <- time.Now()
					}
					if err == nil {
						err = h.Wait(t.Context())
					}
					if err != nil {
						return err
					}
				}
			})
			since := <-killed
			noticed, last := time.Since(since), w.rejoin()
			t.Logf("rack r1, killed %v after a push of step %d, is served at %s, and the job goes on after step %d: noticed after %v, an outage of %v",
				after, in, standby, last, noticed, time.Since(since))
			if last < in-1 || last > in+1 {
				t.Errorf("it goes on after step %d, and was interrupted in step %d or the next", last, in)
			}
			for n := last; n < steps; n++ {
				if n > last {
					w.step(n)
				}
				for i := range w.x {
					if !slices.Equal(w.x[i], want[n]) {
						t.Fatalf("after step %d worker %d has not the parameters of a run that nothing interrupts", n, i)
					}
				}
			}
			w.close()
		})
	}
}

// rejoin has the workers come again, wherever their racks are served, and returns the step whose parameters they have then.
func (w *buddyWorkers) rejoin() int {
	w.t.Helper()
	steps := make([]int, len(w.workers))
	w.must(func(i int) error {
		ctx, cancel := context.WithTimeout(w.t.Context(), time.Minute)
		defer cancel()
		next, step, err := w.workers[i].Rejoin(ctx)
		if err != nil {
			return err
		}
		w.workers[i], steps[i] = next, step
		h, err := next.Pull(0, client.Bytes(w.x[i]), 0)
		if err != nil {
			return err
		}
		return h.Wait(ctx)
	})
	return steps[0]
}
