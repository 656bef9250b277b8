package service

import (
	"testing"
	"time"

	"github.com/rackweave/rackweave/service/api"
	"github.com/rackweave/rackweave/service/job"
)

// A trace that ends while the job's state is being saved waits for that, and does not keep the memory of a job that ends meanwhile:
// the save needs the memory, too, and would wait for the trace.
func TestATraceTakesLocksInOrder(t *testing.T) {
	s, w := trainAlone(t, t.Context(), 1000)
	j := s.jobs.Find("j")
	j.Model.Lock()
	traced := make(chan error, 1)
	go func() {
		_, err := s.trace((&job.Caller{Admin: true}).With(t.Context()), &api.TraceRequest{Job: "j", DurationMs: 1})
		traced <- err
	}()
	for !j.Tracing.Load() {
		time.Sleep(time.Millisecond)
	}
	time.Sleep(50 * time.Millisecond) // until it is over; a shorter wait finds no mistake
	if err := w.Close(); err != nil {
		t.Error(err)
	}
	select {
	case <-j.Over:
	case <-time.After(2 * time.Minute):
		t.Error("the job's memory is not freed: the trace holds it, and waits for the save")
	}
	j.Model.Unlock()
	if err := <-traced; err == nil {
		t.Error("a trace of a job that has ended")
	}
}
