package launch

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// atMost bounds everything that should be prompt, on a machine with other work.
const atMost = 2 * time.Minute

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// output collects lines as "rank stream line".
type output struct {
	mu    sync.Mutex
	lines []string
	seen  chan string // gets every line, while there is room
}

func (o *output) line(rank int, from Stream, line []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	text := fmt.Sprintf("%d %s %s", rank, from, line)
	o.lines = append(o.lines, text)
	select {
	case o.seen <- text:
	default:
	}
}

func (o *output) sorted() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Sorted(slices.Values(o.lines))
}

// await waits for n lines.
func (o *output) await(t *testing.T, n int) {
	t.Helper()
	for range n {
		select {
		case <-o.seen:
		case <-time.After(atMost):
			t.Fatalf("no %d lines of output within %v: %q", n, atMost, o.sorted())
		}
	}
}

func shell(workers int, script string) (Job, *output) {
	o := &output{seen: make(chan string, 100)}
	place := &Place{Server: "http://here", Workers: workers}
	return Job{Argv: []string{"sh", "-c", script}, Workers: workers, Env: place.Env, Line: o.line, Grace: atMost}, o
}

// gone fails if a process is still there after a while; a zombie, whose parent is elsewhere, counts as gone.
func gone(t *testing.T, file string) {
	t.Helper()
	pid, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(atMost); ; time.Sleep(10 * time.Millisecond) {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%s/stat", bytes.TrimSpace(pid)))
		if err != nil || strings.Contains(string(stat), ") Z ") {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("process %s is still there: %s", pid, stat)
		}
	}
}

func TestEveryWorkerIsToldItsPlaceAndHeard(t *testing.T) {
	j, o := shell(3, `echo $RACKWEAVE_ADDR $RACKWEAVE_RANK/$RACKWEAVE_WORLD_SIZE; printf "$RANK/$WORLD_SIZE without end" >&2`)
	exits, err := Run(t.Context(), j)
	if err != nil || len(exits) != 3 {
		t.Fatalf("%d workers ended, %v", len(exits), err)
	}
	want := []string{
		"0 stderr 0/3 without end", "0 stdout http://here 0/3", "1 stderr 1/3 without end", "1 stdout http://here 1/3",
		"2 stderr 2/3 without end", "2 stdout http://here 2/3",
	}
	if got := o.sorted(); !slices.Equal(got, want) {
		t.Errorf("output %q, want %q", got, want)
	}
}

func TestAStoppedGuardHoldsNobodyUp(t *testing.T) {
	p, err := Start(exec.Command("sleep", "600"))
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(p.group, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(p.PID(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	select {
	case <-p.Ended():
	case <-time.After(atMost):
		_ = syscall.Kill(p.group, syscall.SIGCONT)
		t.Error("the group is not killed")
	}
}

func TestOneFailureEndsAllAndIsNamed(t *testing.T) {
	for _, c := range []struct {
		name, script string
		code         int
		wants        []string
	}{
		{"exit status", `[ $RANK = 1 ] && { echo "the reason" >&2; exit 7; }; exec sleep 600`, 7,
			[]string{"worker 1", "exit status 7", "the reason"}},
		{"signal", `[ $RANK = 1 ] && kill -9 $$; exec sleep 600`, 137, []string{"worker 1", "signal: killed"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			j, _ := shell(3, c.script)
			start := time.Now()
			exits, err := Run(t.Context(), j)
			failed := new(FailedError)
			if !errors.As(err, &failed) || failed.ExitCode() != c.code {
				t.Fatalf("error %v with exit code %d, want %d", err, failed.ExitCode(), c.code)
			}
			for _, want := range c.wants {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q does not mention %q", err, want)
				}
			}
			if time.Since(start) > atMost {
				t.Errorf("it took %v", time.Since(start))
			}
			for _, e := range exits {
				if e.Told != (e.Rank != 1) {
					t.Errorf("worker %d: told to end is %v", e.Rank, e.Told)
				}
			}
		})
	}
}

func TestAWorkerThatIgnoresItsEndIsKilledAfterGrace(t *testing.T) {
	ready := filepath.Join(t.TempDir(), "ready")
	j, _ := shell(2, `if [ $RANK = 1 ]; then until [ -e `+ready+` ]; do sleep 0.01; done; exit 3; fi
trap "" TERM; echo >`+ready+`; while :; do sleep 0.1; done`)
	j.Grace = 300 * time.Millisecond
	exits, err := Run(t.Context(), j)
	if err == nil || len(exits) != 2 || exits[1].Rank != 0 || exits[1].Signal != syscall.SIGKILL.String() {
		t.Errorf("exits %+v, %v: want worker 0 killed", exits, err)
	}
}

func TestWhatAWorkerLeavesBehindEndsWithIt(t *testing.T) {
	dir := t.TempDir()
	j, _ := shell(1, `sleep 600 & echo $! >`+dir+`/pid`)
	if _, err := Run(t.Context(), j); err != nil {
		t.Fatal(err)
	}
	gone(t, filepath.Join(dir, "pid"))
}

func TestSignalsReachTheWorkers(t *testing.T) {
	j, o := shell(2, `exec 2>/dev/null; trap "echo usr1" USR1; trap "echo saved; exit 0" TERM; echo ready; while :; do sleep 0.05; done`)
	signals := make(chan os.Signal, 1)
	j.Signals = signals
	go func() {
		o.await(t, 2)
		signals <- syscall.SIGUSR1
		o.await(t, 2)
		signals <- syscall.SIGTERM
	}()
	if _, err := Run(t.Context(), j); err != nil {
		t.Errorf("workers that end well when told to failed: %v", err)
	}
	want := []string{"0 stdout ready", "0 stdout saved", "0 stdout usr1", "1 stdout ready", "1 stdout saved", "1 stdout usr1"}
	if got := o.sorted(); !slices.Equal(got, want) {
		t.Errorf("output %q, want %q", got, want)
	}
}

func TestASecondSignalKills(t *testing.T) {
	j, o := shell(2, `exec 2>/dev/null; trap "echo no" INT; echo ready; while :; do sleep 0.05; done`)
	signals := make(chan os.Signal, 1)
	j.Signals = signals
	go func() {
		o.await(t, 2)
		signals <- syscall.SIGINT
		o.await(t, 2)
		signals <- syscall.SIGINT
	}()
	_, err := Run(t.Context(), j)
	if failed := new(FailedError); !errors.As(err, &failed) || failed.ExitCode() != 137 {
		t.Errorf("error %v, want workers that were killed", err)
	}
}

func TestACancelledJobAndALostAggregatorEndTheWorkers(t *testing.T) {
	cause := errors.New("the reason")
	t.Run("cancelled", func(t *testing.T) {
		j, o := shell(2, `echo ready; exec sleep 600`)
		ctx, cancel := context.WithCancelCause(t.Context())
		go func() {
			o.await(t, 2)
			cancel(cause)
		}()
		if _, err := Run(ctx, j); !errors.Is(err, cause) {
			t.Errorf("error %v, want %v", err, cause)
		}
	})
	t.Run("lost", func(t *testing.T) {
		j, o := shell(2, `echo ready; exec sleep 600`)
		lost := make(chan struct{})
		j.Lost, j.LostWhy = lost, func() error { return cause }
		go func() {
			o.await(t, 2)
			close(lost)
		}()
		_, err := Run(t.Context(), j)
		if !errors.Is(err, cause) || strings.Contains(err.Error(), "worker") {
			t.Errorf("error %v, want %v and no worker blamed", err, cause)
		}
	})
}

func TestJobsThatCannotRunAreRefused(t *testing.T) {
	good, _ := shell(1, "true")
	for _, c := range []struct {
		want string
		with func(*Job)
	}{
		{"no command", func(j *Job) { j.Argv = nil }},
		{"0 workers: use 1 to 1024", func(j *Job) { j.Workers = 0 }},
		{"1025 workers: use 1 to 1024", func(j *Job) { j.Workers = 1025 }},
		{"no-such-program", func(j *Job) { j.Argv = []string{"no-such-program"} }},
		{"grace", func(j *Job) { j.Grace = 0 }},
	} {
		j := good
		c.with(&j)
		if _, err := Run(t.Context(), j); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("error %v does not mention %q", err, c.want)
		}
	}
}

func TestLinesAreDividedAsATerminalShowsThem(t *testing.T) {
	for _, c := range []struct {
		writes []string
		max    int
		want   []string
	}{
		{[]string{"a\nb\n"}, 0, []string{"a", "b"}},
		{[]string{"a", "b\nc"}, 0, []string{"ab", "c"}},
		{[]string{"1%\r", "2%\r", "\n"}, 0, []string{"1%", "2%"}},
		{[]string{"a\r\n\r\nb"}, 0, []string{"a", "", "b"}},
		{[]string{"abcdefgh\ni"}, 3, []string{"abc", "def", "gh", "i"}},
		{[]string{"abc\n"}, 3, []string{"abc"}},
		{nil, 0, nil},
	} {
		var got []string
		l := Lines{Max: c.max, Line: func(line []byte) error { got = append(got, string(line)); return nil }}
		for _, w := range c.writes {
			if n, err := l.Write([]byte(w)); n != len(w) || err != nil {
				t.Fatalf("write %q: %d, %v", w, n, err)
			}
		}
		if err := l.Close(); err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%q become %q, %v; want %q", c.writes, got, err, c.want)
		}
	}
}

func TestAnAggregatorIsHeardAndEnds(t *testing.T) {
	var log strings.Builder
	a, err := StartAggregator(t.Context(), []string{"sh", "-c", `echo http://here; echo said >&2; read end; exit 0`}, &log)
	if err != nil || a.URL != "http://here" {
		t.Fatalf("%+v, %v", a, err)
	}
	if err := a.Stop(); err != nil || log.String() != "said\n" {
		t.Errorf("log %q, %v", log.String(), err)
	}
	for script, want := range map[string]string{"echo why >&2; exit 1": "the aggregator: why", "exit 0": "ended before it listened"} {
		if _, err := StartAggregator(t.Context(), []string{"sh", "-c", script}, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want %q", script, err, want)
		}
	}
}

func TestAServerTakesItsOrders(t *testing.T) {
	echo := exec.Command("sh", "-c", `read order; echo "$order"; read end`)
	s, err := StartServer("it", echo, []byte("http://there\n"), startWithin, nil)
	if err != nil || s.URL != "http://there" {
		t.Fatalf("%+v, %v", s, err)
	}
	if err := s.Stop(); err == nil || !strings.HasPrefix(err.Error(), "it: exit status 1") { // read finds no line
		t.Error(err)
	}
	_, err = StartServer("it", exec.Command("sh", "-c", "read end"), nil, 10*time.Millisecond, nil)
	if err == nil || !strings.Contains(err.Error(), "it did not start within 10ms") {
		t.Error(err)
	}
}
