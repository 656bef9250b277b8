package main

import (
	"bufio"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// What a worker has started ends with the command that runs the workers, however that ends.
func TestNothingOutlivesALauncherThatIsKilled(t *testing.T) {
	cmd := exec.Command(os.Args[0], "run", "-n", "1", "--", "sh", "-c", "sleep 1000 & echo sleeps as $!; wait")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	_ = cmd.Process.Kill()
	_ = cmd.Wait() // it was killed
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(strings.TrimSpace(line), "sleeps as ")
	pid, err := strconv.Atoi(text)
	if err != nil {
		t.Fatalf("the worker said %q", line)
	}
	for end := time.Now().Add(2 * time.Minute); ; time.Sleep(10 * time.Millisecond) {
		stat, err := os.ReadFile("/proc/" + text + "/stat")
		if err != nil || strings.Contains(string(stat), ") Z ") { // it has ended, though nobody may have awaited it
			return
		}
		if time.Now().After(end) {
			_ = syscall.Kill(pid, syscall.SIGKILL)
			t.Fatalf("process %d, which a worker started, outlived the launcher", pid)
		}
	}
}
