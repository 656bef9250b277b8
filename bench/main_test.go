package bench

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/rackweave/rackweave/service"
)

// First arguments that make this binary a worker or an aggregator, as the command is to its benchmark.
const (
	workerRole = "bench-test-worker"
	serveRole  = "bench-test-serve"
)

func TestMain(m *testing.M) {
	var err error
	switch role := append(os.Args, "")[1]; role {
	case workerRole:
		err = WorkerMain(context.Background(), os.Stdin, os.Stdout)
	case serveRole:
		err = serveUntilEOF(os.Args[2:])
	default:
		os.Exit(m.Run())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// serveUntilEOF serves until standard input ends, with those flags of rackweave serve that benchmarks give.
func serveUntilEOF(args []string) error {
	var o service.Options
	f := flag.NewFlagSet("serve", flag.ContinueOnError)
	f.StringVar(&o.Listen, "listen", "", "")
	f.Func("providers", "", func(s string) error { o.Providers = append(o.Providers, s); return nil })
	f.IntVar(&o.Cores, "cores", 0, "")
	f.BoolVar(&o.Unpinned, "unpinned", false, "")
	f.Bool("until-eof", true, "")
	if err := f.Parse(args); err != nil {
		return err
	}
	s, err := service.New(o)
	if err != nil {
		return err
	}
	defer s.Close()
	fmt.Println(s.URL())
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	return s.Serve(ctx)
}

// testRunner starts processes from this test binary.
func testRunner(t *testing.T) *Runner {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return &Runner{Worker: []string{self, workerRole}, Serve: []string{self, serveRole}}
}

// children are the processes that this one has started and that still exist, by pid, with their roles. Guards of process groups
// are not among them.
func children(t *testing.T) map[int]string {
	t.Helper()
	found := map[int]string{}
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil || len(stats) == 0 {
		t.Fatalf("list processes: %d found, %v", len(stats), err)
	}
	for _, stat := range stats {
		text, err := os.ReadFile(stat)
		if err != nil {
			continue // it ended meanwhile
		}
		// pid (name) state ppid: the name may hold anything (proc_pid_stat(5)).
		fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
		if fields[1] != strconv.Itoa(os.Getpid()) {
			continue
		}
		dir := filepath.Dir(stat)
		pid, _ := strconv.Atoi(filepath.Base(dir))
		cmdline, _ := os.ReadFile(filepath.Join(dir, "cmdline"))
		args := strings.Split(string(cmdline), "\x00")
		if args[0] == "/bin/sh" {
			continue
		}
		if len(args) > 1 {
			found[pid] = args[1]
		} else {
			found[pid] = "zombie"
		}
	}
	return found
}
