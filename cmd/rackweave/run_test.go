package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rackweave/rackweave/client"
	"github.com/rackweave/rackweave/launch"
)

// runRole makes the test binary a worker that joins what its environment says and sums one tensor.
const runRole = "run-worker"

func runWorker() error {
	ctx, cancel := context.WithTimeout(context.Background(), 4*time.Minute)
	defer cancel()
	rank, err := strconv.Atoi(os.Getenv("RACKWEAVE_RANK"))
	if err != nil {
		return err
	}
	workers, err := strconv.Atoi(os.Getenv("RACKWEAVE_WORLD_SIZE"))
	if err != nil {
		return err
	}
	w, err := client.Join(ctx, client.Config{
		Server: os.Getenv("RACKWEAVE_ADDR"), Job: os.Getenv("RACKWEAVE_JOB"), Token: os.Getenv("RACKWEAVE_TOKEN"), Rank: rank,
		Workers: workers,
	})
	if err != nil {
		return err
	}
	defer w.Close()
	if err := w.Register(ctx, []client.Tensor{{Name: "t", Shape: []uint64{4}}}); err != nil {
		return err
	}
	src, dst := []float32{1, 2, 3, float32(rank)}, make([]float32, 4)
	h, err := w.PushPull(0, client.Bytes(src), client.Bytes(dst), 0)
	if err != nil {
		return err
	}
	if err := h.Wait(ctx); err != nil {
		return err
	}
	fmt.Println("sum", dst)
	switch os.Getenv("FAIL_RANK") {
	case "":
		return nil
	case strconv.Itoa(rank):
		return fmt.Errorf("rank %d was told to fail", rank)
	}
	<-ctx.Done() // where one fails, the others are ended by the command
	return ctx.Err()
}

func TestRunGivesWorkersAnAggregator(t *testing.T) {
	out, err := run(t, "run", "-n", "3", "--", os.Args[0], runRole)
	if err != nil {
		t.Fatal(err)
	}
	lines := slices.Sorted(strings.Lines(out))
	want := []string{"[0] sum [3 6 9 3]\n", "[1] sum [3 6 9 3]\n", "[2] sum [3 6 9 3]\n"}
	if !slices.Equal(lines, want) {
		t.Errorf("output %q, want %q", lines, want)
	}
}

func TestRunNamesCodecsToWorkers(t *testing.T) {
	out, err := run(t, "run", "-n", "2", "--compress", "int4", "--", "sh", "-c", "echo codecs=$RACKWEAVE_COMPRESS")
	if err != nil || strings.Count(out, "codecs=int4\n") != 2 {
		t.Errorf("output %q, %v", out, err)
	}
}

func TestRunUsesTheAggregatorItIsGiven(t *testing.T) {
	out, err := run(t, "run", "-n", "2", "--server", servingURL(t), "--", os.Args[0], runRole)
	if err != nil || strings.Count(out, "sum [2 4 6 1]") != 2 {
		t.Errorf("output %q, %v", out, err)
	}
}

func TestRunNamesTheWorkerThatFailed(t *testing.T) {
	t.Setenv("FAIL_RANK", "1")
	out, err := run(t, "run", "-n", "3", "--json", "--", os.Args[0], runRole)
	if err == nil || !strings.Contains(err.Error(), "worker 1 ") || !strings.Contains(err.Error(), "rank 1 was told to fail") ||
		exitCode(err) != 1 {
		t.Errorf("error %v, want worker 1 named with its last words", err)
	}
	var last struct {
		Exits []launch.Exit
		Error string
	}
	lines := strings.Split(strings.TrimSpace(out), "\n")
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &last); err != nil || len(last.Exits) != 3 || last.Error == "" {
		t.Errorf("%q has exits %+v, error %q: %v", lines[len(lines)-1], last.Exits, last.Error, err)
	}
	if last.Exits[0].Rank != 1 {
		t.Errorf("the first to end is %+v, want worker 1", last.Exits[0])
	}
}

func TestWorkersDieWithTheCommand(t *testing.T) {
	cmd := exec.Command(os.Args[0], "run", "-n", "2", "--", "sh", "-c", "echo pid $$; exec sleep 600")
	pids, _ := started(t, cmd, 2)
	cmd.Process.Kill()
	cmd.Wait()
	gone(t, pids, 2)
}

// started starts a command that runs n workers, and returns the pids that these print first, and the output that follows.
func started(t *testing.T, cmd *exec.Cmd, n int) (pids []string, lines *bufio.Scanner) {
	t.Helper()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines = bufio.NewScanner(out)
	for len(pids) < n && lines.Scan() {
		pids = append(pids, strings.Fields(lines.Text())[2])
	}
	return pids, lines
}

// gone waits for the end of n processes.
func gone(t *testing.T, pids []string, n int) {
	t.Helper()
	for _, pid := range pids {
		for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(10 * time.Millisecond) {
			stat, err := os.ReadFile("/proc/" + pid + "/stat")
			if err != nil || strings.Contains(string(stat), ") Z ") {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("worker %s outlives the command: %s", pid, stat)
			}
		}
	}
	if len(pids) != n {
		t.Errorf("workers %v, want %d", pids, n)
	}
}

func TestRunRefusesWhatItCannotDo(t *testing.T) {
	fails(t, []string{"run", "-n", "2"}, "no program", "rackweave run -n 4 --")
	fails(t, []string{"run", "-n", "0", "--", "true"}, "0 workers", "1 to 1024")
	fails(t, []string{"run", "--", "no-such-program"}, "no-such-program")
	fails(t, []string{"run", "--ca", "x", "--", "true"}, "--ca", "--server")
	fails(t, []string{"run", "--server", "http://x", "--serve-config", "f", "--", "true"}, "--server", "--serve-config")
	fails(t, []string{"run", "--compress", "int3", "--", "true"}, "--compress", "int3", "use one of none, int8")
	fails(t, []string{"run", "--serve-config", "/no/such/file", "--", "true"}, "/no/such/file")
	fails(t, []string{"run", "--server", "http://127.0.0.1:1", "--", "true"}, "http://127.0.0.1:1", "is it running (rackweave serve)")
}
