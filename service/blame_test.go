package service

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rackweave/rackweave/client"
	"github.com/rackweave/rackweave/service/api"
	"github.com/rackweave/rackweave/service/job"
	"github.com/rackweave/rackweave/verbs"
)

// Aggregators are no witnesses of each other's failures: workers tell who is to blame.
func TestAWorkerThatGivesUpSaysOfAJobOnSeveralAggregatorsWhoIsToBlame(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	services := []*Service{start(t, Options{Listen: "127.0.0.1:0"}), start(t, Options{Listen: "127.0.0.1:0"})}
	one, several := services[0].URL(), services[0].URL()+","+services[1].URL()
	for i, tc := range []struct {
		at    string
		blame *int32
		want  int
	}{
		{several, nil, 0}, {several, new(int32(1)), 1}, {several, new(int32(-1)), -1}, {several, new(int32(0)), 0},
		{several, new(int32(2)), 0}, {several, new(int32(-2)), 0}, {one, new(int32(1)), 0},
	} {
		name := fmt.Sprint("job", i)
		workers := make([]*client.Worker, 2)
		errs := make([]error, len(workers))
		var all sync.WaitGroup
		for rank := range workers {
			all.Go(func() {
				workers[rank], errs[rank] = client.Join(ctx, client.Config{Server: tc.at, Job: name, Rank: rank, Workers: len(workers),
					Provider: verbs.ProviderTCP})
			})
		}
		all.Wait()
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
		jobs := make(map[*Service]*job.Job)
		for _, s := range services {
			if j := s.jobs.Find(name); j != nil {
				jobs[s] = j
			}
		}
		jobs[services[0]].Members[0].Leave(ctx, &api.LeaveRequest{Failure: "for the test", Blame: tc.blame})
		for rank, w := range workers {
			select {
			case <-w.Failed():
			case <-ctx.Done():
				t.Fatal("the job does not fail")
			}
			var failure *client.JobError
			if !errors.As(w.Err(), &failure) || failure.Rank != tc.want || !strings.Contains(failure.Text, "for the test") {
				t.Errorf("%v: worker %d: %v, want the job to fail because of %d", tc, rank, w.Err(), tc.want)
			}
			w.Close()
		}
		if len(jobs) != 1+strings.Count(tc.at, ",") {
			t.Errorf("%v: %d aggregators have the job", tc, len(jobs))
		}
		for _, j := range jobs {
			if f := j.Agg.Failure(); f == nil || f.Rank != tc.want {
				t.Errorf("%v: at an aggregator: %v, want rank %d", tc, f, tc.want)
			}
		}
	}
}
