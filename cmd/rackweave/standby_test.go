package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rackweave/rackweave/client"
)

// movingRacks is aggregators, each a process of its own, of racks that have buddies; etcd keeps who serves which.
type movingRacks struct {
	t    *testing.T
	file string
	etcd []string // where its members serve
	at   []string // by rack, where its first aggregator is
	runs []*exec.Cmd
}

// openMovingRacks starts the racks' aggregators, with a member of etcd in as many of the first.
func openMovingRacks(t *testing.T, racks, etcds int) *movingRacks {
	t.Helper()
	m := &movingRacks{t: t}
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
	var peers, members []string
	for i := range etcds {
		m.etcd, peers = append(m.etcd, "http://"+freeAddress(t)), append(peers, "http://"+freeAddress(t))
		members = append(members, fmt.Sprintf("r%d=%s", i, peers[i]))
	}
	for i := range racks {
		args := []string{"--rack", fmt.Sprintf("r%d", i), "--etcd"}
		if i < etcds {
			args = append(args, "embed", "--etcd-dir", t.TempDir(), "--etcd-listen", m.etcd[i], "--etcd-peer", peers[i], "--etcd-members",
				strings.Join(members, ","))
		} else {
			m.answers(m.at[0]) // and its etcd
			args = append(args, m.etcd[0])
		}
		m.serve(m.at[i], args...)
	}
	for _, at := range m.at {
		m.answers(at)
	}
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

// serve starts an aggregator.
func (m *movingRacks) serve(at string, args ...string) {
	m.t.Helper()
	run := exec.Command(os.Args[0], append([]string{"serve", "--listen", at, "--cluster", m.file, "--cores", "1", "--providers", "tcp",
		"--etcd-ttl", "5s"}, args...)...)
	run.Stderr = m.t.Output()
	if err := run.Start(); err != nil {
		m.t.Fatal(err)
	}
	m.runs = append(m.runs, run)
}

// answers waits until an aggregator does.
func (m *movingRacks) answers(at string) {
	m.t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		_, err := client.Status(m.t.Context(), client.Config{Server: "http://" + at})
		if err == nil {
			return
		}
		if time.Now().After(end) {
			m.t.Fatalf("the aggregator at %s does not answer: %v", at, err)
		}
	}
}

// A rack's aggregator is killed in mid-step. Another, on the box of the first rack beside that rack's own, takes its place. The
// workers find it by themselves, and the job goes on with the bits of a run that nothing interrupts. Of three etcds one is killed,
// too.
func TestAnotherRacksBoxTakesARackWhoseAggregatorIsKilled(t *testing.T) {
	const steps, in = 6, 3
	for _, tc := range []struct{ racks, etcds int }{{2, 1}, {3, 3}} {
		t.Run(fmt.Sprintf("%d racks, %d etcds", tc.racks, tc.etcds), func(t *testing.T) {
			m := openMovingRacks(t, tc.racks, tc.etcds)
			standby := freeAddress(t)
			m.serve(standby, "--rack", "r1", "--standby", "--etcd", strings.Join(m.etcd, ","))
			m.answers(standby)

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
