package bench

import (
	"strings"
	"testing"
	"time"

	"github.com/rackweave/rackweave/bench/models"
	"github.com/rackweave/rackweave/chunk"
)

func jobsOf(t *testing.T, n int, flood bool) Jobs {
	t.Helper()
	m, err := models.FromBytes("200000", chunk.F32)
	if err != nil {
		t.Fatal(err)
	}
	return Jobs{N: n, Flood: flood, Spec: Spec{
		Workers: 1, Provider: "shm", Model: m, DType: chunk.F32, Optimizer: "sum", Iters: 30, Warmup: 2,
	}}
}

func TestEveryJobGetsItsShareBesideAFlood(t *testing.T) {
	res, err := testRunner(t).RunJobs(t.Context(), jobsOf(t, 3, true))
	if err != nil {
		t.Fatal(err)
	}
	if len(res.Jobs) != 3 || !res.Jobs[2].Floods || res.Jobs[2].Bytes != floodFactor*res.Jobs[0].Bytes {
		t.Fatalf("%+v", res)
	}
	for i, j := range res.Jobs {
		// How much is for the benchmark to say: here the machine may be busy.
		if !(j.GBs > 0 && j.Share > 0) || j.Floods != (i == 2) || !j.Floods && !(j.P99OverAlone > 0 && j.P99OverApart > 0) {
			t.Errorf("job %d: %+v", i, j)
		}
	}
}

func TestJobsThatCannotRunSideBySideAreRefused(t *testing.T) {
	for want, change := range map[string]func(*Jobs){
		"use 2 to 64":        func(j *Jobs) { j.N = 65 },
		"leave the name out": func(j *Jobs) { j.Job = "mine" },
		"leave --replay":     func(j *Jobs) { j.Verify = true },
		"workers is 0":       func(j *Jobs) { j.Workers = 0 },
	} {
		j := jobsOf(t, 2, false)
		change(&j)
		if err := j.Check(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", want, err)
		}
	}
}

func TestJobsAreMeasuredUntilTheSlowestExchangeHasEnded(t *testing.T) {
	at := func(s ...int) *job {
		run := &job{spec: Spec{Warmup: 1}}
		for _, s := range s {
			run.ends = append(run.ends, time.Unix(int64(s), 0))
		}
		return run
	}
	quick, slow := at(1, 2, 3, 4, 5), at(2)
	if _, to := overlap([]*job{quick, slow}, 1, 2); !to.IsZero() {
		t.Errorf("measured until %v, when a job has ended no exchange in this time", to)
	}
	slow.ends = append(slow.ends, time.Unix(9, 0))
	if from, to := overlap([]*job{quick, slow}, 1, 2); from.Unix() != 2 || to.Unix() != 4 {
		t.Errorf("measured from %v to %v, expected from 2 s to 4 s", from, to)
	}
}

func TestAnExchangeCountsByThePartThatLiesInTheTime(t *testing.T) {
	start := time.Unix(1000, 0)
	at := func(s float64) time.Time { return start.Add(time.Duration(s * float64(time.Second))) }
	spec, ends := jobsOf(t, 2, false).Spec, []time.Time{at(0), at(1), at(2), at(4)}
	each := 2 * float64(spec.Bytes()) / 1e9
	all, exchanges, within := &job{spec: spec}, 0.0, 0.0
	for _, c := range []struct{ from, to, exchanges float64 }{
		{0, 4, 3}, {0, 2, 2}, {0.5, 1.5, 1}, {2, 3, 0.5}, {2.5, 3.5, 0.5}, {5, 6, 0},
	} {
		one := &job{spec: spec}
		one.add(ends, at(c.from), at(c.to))
		if got, want := one.report().GBs, c.exchanges*each/(c.to-c.from); got < want*0.999 || got > want*1.001 {
			t.Errorf("from %v to %v: %v GB/s, expected %v", c.from, c.to, got, want)
		}
		all.add(ends, at(c.from), at(c.to))
		exchanges, within = exchanges+c.exchanges, within+c.to-c.from
	}
	if got, want := all.report().GBs, exchanges*each/within; got < want*0.999 || got > want*1.001 {
		t.Errorf("in all turns: %v GB/s, expected %v", got, want)
	}
}
