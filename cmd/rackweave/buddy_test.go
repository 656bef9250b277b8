package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rackweave/rackweave/client"
)

// buddyCluster is three aggregators, each a process of its own, whose racks have buddies.
type buddyCluster struct {
	t        *testing.T
	file     string
	provider string
	at       []string
	runs     []*exec.Cmd
}

func openBuddyCluster(t *testing.T, provider string) *buddyCluster {
	t.Helper()
	b := &buddyCluster{t: t, provider: provider, runs: make([]*exec.Cmd, 3)}
	text := "secret: a secret of the racks\nbuddy: true\nracks:\n"
	for i := range b.runs {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		b.at = append(b.at, l.Addr().String())
		text += fmt.Sprintf("  - {name: r%d, url: http://%s}\n", i, l.Addr())
		l.Close()
	}
	b.file = file(t, "cluster.yaml", text)
	for i := range b.runs {
		b.serve(i)
	}
	t.Cleanup(func() {
		for i := range b.runs {
			b.kill(i)
		}
	})
	return b
}

// serve starts a rack's aggregator, and waits until it answers.
func (b *buddyCluster) serve(i int) {
	b.t.Helper()
	cmd := exec.Command(os.Args[0], "serve", "--listen", b.at[i], "--cluster", b.file, "--rack", fmt.Sprintf("r%d", i), "--cores", "1",
		"--providers", b.provider)
	if err := cmd.Start(); err != nil {
		b.t.Fatal(err)
	}
	b.runs[i] = cmd
	for end := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		_, err := client.Status(b.t.Context(), client.Config{Server: "http://" + b.at[i]})
		if err == nil {
			return
		}
		if time.Now().After(end) {
			b.t.Fatalf("the aggregator of rack %d does not answer: %v", i, err)
		}
	}
}

// kill kills a rack's aggregator as kill -9 does.
func (b *buddyCluster) kill(i int) {
	_ = b.runs[i].Process.Kill()
	_ = b.runs[i].Wait() // it was killed
}

// buddyWorkers are a job's workers, two in each rack, with what they got last.
type buddyWorkers struct {
	t       *testing.T
	workers []*client.Worker
	x       [][]float32
}

const buddyElems = 200_000

// joinBuddies begins a job over the racks of aggregators.
func joinBuddies(t *testing.T, at []string) *buddyWorkers {
	t.Helper()
	n := 2 * len(at)
	w := &buddyWorkers{t: t, workers: make([]*client.Worker, n), x: make([][]float32, n)}
	w.must(func(i int) (err error) {
		w.x[i] = make([]float32, buddyElems)
		c := client.Config{Server: "http://" + at[i/2], Job: "j", Token: "a token of the job", Rank: i, Workers: n,
			Optimizer: "adam_torch", Timeout: time.Minute}
		for end := time.Now().Add(time.Minute); ; { // an aggregator that lives may not have noticed the loss yet
			if w.workers[i], err = client.Join(t.Context(), c); err == nil || time.Now().After(end) {
				break
			}
		}
		if err != nil {
			return err
		}
		return w.workers[i].Register(t.Context(), []client.Tensor{{Name: "x", Shape: []uint64{buddyElems}}})
	})
	return w
}

func (w *buddyWorkers) every(f func(i int) error) []error {
	errs := make([]error, len(w.workers))
	var wg sync.WaitGroup
	for i := range w.workers {
		wg.Go(func() { errs[i] = f(i) })
	}
	wg.Wait()
	return errs
}

func (w *buddyWorkers) must(f func(i int) error) {
	w.t.Helper()
	if err := errors.Join(w.every(f)...); err != nil {
		w.t.Fatal(err)
	}
}

// push pushes a step's gradients, or broadcasts values; the handle's wait ends the step.
func (w *buddyWorkers) push(i, step int) (client.Handle, error) {
	rng := rand.New(rand.NewPCG(uint64(step), uint64(i)))
	g := make([]float32, buddyElems)
	for k := range g {
		g[k] = rng.Float32() - 0.5
	}
	if step == 0 {
		copy(w.x[i], g)
		return w.workers[i].Broadcast(0, client.Bytes(w.x[i]))
	}
	return w.workers[i].PushPull(0, client.Bytes(g), client.Bytes(w.x[i]), 0)
}

func (w *buddyWorkers) step(n int) {
	w.t.Helper()
	w.must(func(i int) error {
		h, err := w.push(i, n)
		if err != nil {
			return err
		}
		return h.Wait(w.t.Context())
	})
}

func (w *buddyWorkers) close() {
	w.every(func(i int) error { return w.workers[i].Close() })
}

// The aggregator of a rack is killed in mid-step, one after the other. The job goes on from its last whole step, with the bits of a
// run that nothing interrupts.
func TestAJobOutlivesTheAggregatorOfAnyRackThatIsKilled(t *testing.T) {
	const rounds = 4
	b := openBuddyCluster(t, "tcp")
	w := joinBuddies(t, b.at)
	var want [][]float32
	for n := range 5*rounds + 2 {
		w.step(n)
		want = append(want, slices.Clone(w.x[0]))
	}
	w.close()

	w = joinBuddies(t, b.at)
	w.step(0)
	last := 0
	for seed := range rounds {
		rng := rand.New(rand.NewPCG(uint64(seed), 3))
		lost, in, after := rng.IntN(3), last+1+rng.IntN(2), time.Duration(rng.IntN(5))*time.Millisecond
		begun, killed := make(chan struct{}), make(chan struct{})
		go func() {
			<-begun
			<-time.After(after) // anywhere in the step, or in the next
			b.kill(lost)
			close(killed)
		}()
		errs := w.every(func(i int) error {
			for n := last + 1; n <= in+2; n++ {
				h, err := w.push(i, n)
				if i == 0 && n == in {
					close(begun)
				}
				if err == nil {
					err = h.Wait(t.Context())
				}
				if err != nil {
					return err
				}
			}
			<-killed
			return w.workers[i].Barrier(t.Context(), "steps") // which fails, if no step has
		})
		if text := fmt.Sprint(errs); !strings.Contains(text, `restore "buddy"`) {
			t.Errorf("the loss says %s, and not how to go on", text)
		}
		w.close()
		b.serve(lost)
		w = joinBuddies(t, b.at)
		steps := make([]int, len(w.workers))
		w.must(func(i int) (err error) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			if steps[i], err = w.workers[i].GoOn(ctx); err != nil {
				return err
			}
			h, err := w.workers[i].Pull(0, client.Bytes(w.x[i]), 0)
			if err != nil {
				return err
			}
			return h.Wait(ctx)
		})
		if steps[0] < in-1 || steps[0] > in+2 {
			t.Fatalf("it goes on from step %d, and was killed in step %d or one of the next two", steps[0], in)
		}
		t.Logf("rack %d killed from step %d on, it goes on from step %d", lost, in, steps[0])
		last = steps[0]
		if !slices.Equal(w.x[5], want[last]) {
			t.Fatalf("after step %d the parameters are not those of a run that nothing interrupts", last)
		}
		last++
		if w.step(last); !slices.Equal(w.x[0], want[last]) {
			t.Fatalf("after step %d, the first that goes on, the parameters are not those of a run that nothing interrupts", last)
		}
	}
	w.close()
}
