package bench

import (
	"context"
	"encoding/json"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rackweave/rackweave/client"
	"github.com/rackweave/rackweave/service/api"
	"github.com/rackweave/rackweave/service/racks"
	"github.com/rackweave/rackweave/verbs"
)

// promptly bounds how long after a death everybody may take to notice it. The promise is a second; a loaded machine gets more.
const promptly = 30 * time.Second

// patience is how long a test waits for what may take failGrace, on a machine where nothing runs when it should.
const patience = 2 * time.Minute

// needsProcesses leaves out a test of what happens to processes, which a detector does not see and makes slow to start.
func needsProcesses(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("starts several processes several times: left out by -short")
	}
}

// running starts a benchmark that would take for ever and returns once all its workers' gradients flow, with the aggregator's
// view of the job and what Run will return.
func running(t *testing.T, s Spec) (*api.JobStatus, <-chan error) {
	t.Helper()
	needsProcesses(t)
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	t.Cleanup(cancel)
	s.Iters, s.Verify = maxIters, false
	r := testRunner(t)
	started := make(chan string, 1)
	r.Started = func(url string) { started <- url }
	ended := make(chan error, 1)
	go func() {
		_, err := r.Run(ctx, s)
		ended <- err
	}()
	var url string
	for {
		select {
		case err := <-ended:
			t.Fatalf("the benchmark ended: %v", err)
		case url = <-started:
		case <-time.After(5 * time.Millisecond):
		}
		if url == "" {
			continue
		}
		status, err := client.Status(ctx, client.Config{Server: url})
		if err != nil {
			t.Fatal(err)
		}
		if len(status.Jobs) == 1 && len(status.Jobs[0].Members) == s.Workers && !slices.ContainsFunc(status.Jobs[0].Members,
			func(m *api.WorkerStatus) bool { return m.ReceivedBytes < 4*s.Bytes() }) {
			return status.Jobs[0], ended
		}
	}
}

// outcome waits for the benchmark's end and checks that it left no process behind.
func outcome(t *testing.T, ended <-chan error, killed time.Time) string {
	t.Helper()
	select {
	case err := <-ended:
		if err == nil {
			t.Fatal("the benchmark succeeded")
		}
		if left := children(t); len(left) > 0 {
			t.Errorf("still running: %v", left)
		}
		t.Logf("%v after the kill: %v", time.Since(killed).Round(time.Millisecond), err)
		return err.Error()
	case <-time.After(patience):
		t.Fatalf("the benchmark still runs %v after the kill, with %v", patience, children(t))
		return ""
	}
}

func mentions(t *testing.T, text string, wants ...string) {
	t.Helper()
	for _, want := range wants {
		if !strings.Contains(text, want) {
			t.Errorf("error %q does not mention %q", text, want)
		}
	}
}

func kill(t *testing.T, pid int) time.Time {
	t.Helper()
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	return time.Now()
}

func TestAWorkerThatIsSilentAfterAnothersEndIsEnded(t *testing.T) {
	needsProcesses(t)
	r := &Runner{Silence: 100 * time.Millisecond, Worker: []string{"sh", "-c",
		`read order; case $order in *'"Rank":1'*) echo '{"done":true}';; *) exec sleep 1000;; esac`}}
	_, err := r.workers(t.Context(), &Spec{Workers: 2}, nil)
	if want := "worker 0: reported no step after another worker's end for 100ms"; err == nil || err.Error() != want {
		t.Errorf("%v: want %q", err, want)
	}
}

func TestAKilledWorkerEndsTheExchangeByName(t *testing.T) {
	for _, provider := range []string{verbs.ProviderSHM, verbs.ProviderTCP} {
		t.Run(provider, func(t *testing.T) {
			job, ended := running(t, momentumSpec(provider))
			text := outcome(t, ended, kill(t, int(job.Members[1].Pid)))
			mentions(t, text, "worker 1: signal: killed", "failed: worker ")
			// Nothing has to be cleaned up by hand.
			exchange(t, momentumSpec(provider))
		})
	}
}

func TestAKilledAggregatorEndsTheExchange(t *testing.T) {
	for _, provider := range []string{verbs.ProviderSHM, verbs.ProviderTCP} {
		t.Run(provider, func(t *testing.T) {
			_, ended := running(t, momentumSpec(provider))
			all := children(t)
			pids := slices.DeleteFunc(slices.Collect(maps.Keys(all)), func(pid int) bool { return all[pid] != serveRole })
			if len(pids) != 1 {
				t.Fatalf("aggregators %v of the processes %v, want one", pids, all)
			}
			text := outcome(t, ended, kill(t, pids[0]))
			mentions(t, text, "the aggregator: signal: killed", client.ErrServerLost.Error())
			exchange(t, momentumSpec(provider))
		})
	}
}

func TestACancelledBenchmarkLeavesNothingBehind(t *testing.T) {
	s := momentumSpec(verbs.ProviderSHM)
	s.Iters, s.Verify = maxIters, false
	r := testRunner(t)
	ctx, cancel := context.WithCancel(context.Background())
	var at time.Time
	r.Started = func(string) {
		time.AfterFunc(500*time.Millisecond, func() { at = time.Now(); cancel() })
	}
	if _, err := r.Run(ctx, s); err == nil {
		t.Fatal("the benchmark succeeded")
	}
	if took := time.Since(at); took > promptly {
		t.Errorf("it took %v to end", took)
	}
	if left := children(t); len(left) > 0 {
		t.Errorf("still running: %v", left)
	}
}

func TestAProgramThatCannotServeIsNamed(t *testing.T) {
	needsProcesses(t)
	r := testRunner(t)
	r.Serve = []string{"/bin/false"}
	_, err := r.Run(t.Context(), momentumSpec("auto"))
	if err == nil {
		t.Fatal("the benchmark succeeded")
	}
	mentions(t, err.Error(), "the aggregator: exit status 1")
	r = testRunner(t)
	r.Worker = []string{"/nonexistent/worker"}
	if _, err = r.Run(t.Context(), momentumSpec("auto")); err == nil {
		t.Fatal("the benchmark succeeded")
	}
	mentions(t, err.Error(), "workers 0, 1, 2: ", "/nonexistent/worker: no such file")
}

// A worker learns why it is ended while it waits for others.
func TestAWorkerGivesUpWhenTheBenchmarkEnds(t *testing.T) {
	for _, tc := range []struct {
		name string
		end  func(orders *os.File) error
		want string
	}{
		{"killed", (*os.File).Close, "the benchmark has ended"},
		{"another worker failed", func(orders *os.File) error {
			return json.NewEncoder(orders).Encode(ending{"worker 2: it was refused"})
		}, "context canceled: worker 2: it was refused"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			aggregator, err := testRunner(t).serve(t.Context(), &Spec{Provider: verbs.ProviderTCP})
			if err != nil {
				t.Fatal(err)
			}
			defer aggregator.Stop()
			in, orders, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			defer orders.Close()
			s := momentumSpec(verbs.ProviderTCP) // of three workers, of which one comes
			s.Verify = false
			ended := make(chan error, 1)
			go func() { ended <- WorkerMain(t.Context(), in, io.Discard) }()
			s.Server, s.Job = aggregator.URL, "orphan"
			if err := json.NewEncoder(orders).Encode(&order{Spec: s}); err != nil {
				t.Fatal(err)
			}
			select {
			case err := <-ended:
				t.Fatalf("the worker ended while its benchmark ran: %v", err)
			case <-time.After(300 * time.Millisecond):
			}
			if err := tc.end(orders); err != nil {
				t.Fatal(err)
			}
			select {
			case err := <-ended:
				if err == nil {
					t.Fatal("the worker succeeded")
				}
				mentions(t, err.Error(), tc.want)
			case <-time.After(promptly):
				t.Errorf("the worker still waits %v after its benchmark ended", promptly)
			}
		})
	}
}

// A worker that nobody else notifies is ended, and only the failure itself is told as one. A stopped worker is killed.
func TestTheFirstFailureEndsWorkersThatWait(t *testing.T) {
	needsProcesses(t)
	t.Run("waiting", func(t *testing.T) {
		s := momentumSpec(verbs.ProviderTCP)
		s.Workers = 2
		first, _, _ := strings.Cut(serveRacks(t, 2, verbs.ProviderTCP, racks.Cluster{}), ",")
		s.Server = first + ",http://127.0.0.1:1" // nobody listens there
		began := time.Now()
		_, err := testRunner(t).Run(t.Context(), s)
		if err == nil {
			t.Fatal("the benchmark succeeded")
		}
		mentions(t, err.Error(), "worker 1: join job", "cannot reach the aggregator", "\nworker 0: ended because another worker failed")
		if took := time.Since(began); took > patience {
			t.Errorf("it took %v", took)
		}
	})
	t.Run("told", func(t *testing.T) {
		s := momentumSpec(verbs.ProviderTCP)
		s.Workers, s.Server = 2, "http://127.0.0.1:1"
		r, told := testRunner(t), filepath.Join(t.TempDir(), "told")
		r.Enter = func(rank int) []string {
			if rank == 0 {
				return []string{"sh", "-c", "cat >" + told} // instead of the worker
			}
			return nil
		}
		if _, err := r.Run(t.Context(), s); err == nil {
			t.Fatal("the benchmark succeeded")
		}
		text, err := os.ReadFile(told)
		if err != nil {
			t.Fatal(err)
		}
		mentions(t, string(text), `{"Why":"ended because another worker failed: worker 1: join job`)
	})
	t.Run("stopped", func(t *testing.T) {
		job, ended := running(t, momentumSpec(verbs.ProviderSHM))
		if err := syscall.Kill(int(job.Members[0].Pid), syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		mentions(t, outcome(t, ended, kill(t, int(job.Members[1].Pid))), "worker 1: signal: killed", "worker 0: ended because")
	})
}

// Workers of aggregators of no cluster would wait for each other for a minute.
func TestSeveralAggregatorsOfNoClusterAreRefusedAtOnce(t *testing.T) {
	s := momentumSpec(verbs.ProviderTCP)
	var servers []string
	for range 2 {
		aggregator, err := testRunner(t).serve(context.Background(), &Spec{Provider: verbs.ProviderTCP})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := aggregator.Stop(); err != nil {
				t.Error(err)
			}
		})
		servers = append(servers, aggregator.URL)
	}
	s.Server, s.Workers, s.Verify = strings.Join(servers, ","), 2, false
	for what, run := range map[string]func() error{
		"one job":  func() error { _, err := new(Runner).Run(t.Context(), s); return err },
		"two jobs": func() error { _, err := new(Runner).RunJobs(t.Context(), Jobs{Spec: s, N: 2}); return err },
	} {
		began := time.Now()
		err := run()
		if err == nil {
			t.Fatalf("%s: exchanged", what)
		}
		mentions(t, err.Error(), servers[0]+" is of no cluster", "--spread")
		if took := time.Since(began); took > patience {
			t.Errorf("%s: took %v", what, took)
		}
	}
}
