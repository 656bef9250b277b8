package aggregate_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/rackweave/rackweave/aggregate"
	"github.com/rackweave/rackweave/aggregate/optim"
	"github.com/rackweave/rackweave/aggregate/racktest"
	"github.com/rackweave/rackweave/cgo/worker"
	"github.com/rackweave/rackweave/chunk"
)

// The lane is busy when the worker leaves. The worker stops waiting for it, and closes its connections.
func TestAWorkerThatLeftFailsNobodyAlsoWhereTheLaneHearsLate(t *testing.T) {
	for _, provider := range []string{"tcp", "shm"} {
		t.Run(provider, func(t *testing.T) {
			r := threadedRack(t, provider, 2, racktest.Config{
				Lanes: 1, Window: 8,
				Job:     aggregate.JobConfig{Name: "job", Mode: aggregate.Aggregate, Hyper: optim.Sum.Defaults(), ChunkBytes: 4096},
				Tensors: tensorsOf(chunk.F32, 3000),
			})
			lane := r.Engine.Lanes()[0]
			busy, free := make(chan struct{}), make(chan struct{})
			go lane.Do(context.Background(), func() { close(busy); <-free })
			<-busy
			ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
			defer cancel()
			if err := r.Job.Detach(ctx, 1); err == nil {
				t.Fatal("the lane was not busy")
			}
			if err := r.Workers[1].Session.Close(); err != nil {
				t.Fatal(err)
			}
			close(free)
			select {
			case <-r.Job.Failed():
				t.Errorf("the others fail: %v", r.Job.Failure().Err)
			case <-time.After(300 * time.Millisecond):
			}
			r.Workers = r.Workers[:1]
		})
	}
}

// The worker is alive when it is taken out. Its messages are under way, or answers whose buffers serve another worker at once.
func TestALostWorkerThatLivesEndsNoJobAndGetsNoBytesOfLaterAnswers(t *testing.T) {
	for rounds := range 30 {
		s := newSimStream(t, 2, "", streamJob(t, "asp"), chunk.F32)
		loseAlive(t, s, rounds, 0)
	}
}

// A lane of several jobs runs commands between the messages that it has polled and their handling.
func TestMessagesOfALostWorkerThatAreInTheLaneEndNoJob(t *testing.T) {
	for rounds := range 30 {
		s := newSimStream(t, 2, "", streamJob(t, "asp"), chunk.F32)
		c := streamJob(t, "asp")
		c.Name, c.Workers = "other", 1
		other, err := s.Engine.NewJob(c)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { other.Close() })
		loseAlive(t, s, rounds, 60)
	}
}

// loseAlive loses worker 1 some rounds into its pull, after further messages have reached the lanes, and checks the answers.
func loseAlive(t *testing.T, s *simStream, rounds, messages int) {
	t.Helper()
	s.push(0)
	s.proceed(0, false)
	stays, lost := s.workers[0], s.workers[1]
	s.do(func() error { return lost.submit(chunk.OpPull) })
	run := func(rounds int) {
		for range rounds {
			s.network()
			s.do(func() error { _, err := s.Step(make([][]uint64, 2), false); return err })
		}
	}
	run(rounds)
	for range messages {
		s.network()
		worker.Progress(lost.C)
	}
	if !s.Job.Lose(lost.Rank, errors.New("its membership stream ended")) {
		t.Fatal(s.Job.Failure().Err)
	}
	s.do(func() error { return stays.submit(chunk.OpPull) })
	s.drive(stays.Rank)
	run(100)
	if f := s.Job.Failure(); f != nil {
		t.Fatalf("lost after %d rounds: %v", rounds, f.Err)
	}
	for k, h := range lost.handles {
		if done, err := lost.Done(h); !done || err != nil {
			continue
		}
		if i, same := racktest.SameBits(stays.DstF32(k), lost.DstF32(k)); !same {
			t.Errorf("lost after %d rounds, element %d of tensor %d is %v, want %v", rounds, i, k, lost.DstF32(k)[i], stays.DstF32(k)[i])
		}
	}
}
