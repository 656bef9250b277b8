package main

import (
	"bufio"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/rackweave/rackweave/client"
)

// Neither the end of whoever reads its log nor that of its terminal ends an aggregator.
func TestAnAggregatorOutlivesItsLogAndItsTerminal(t *testing.T) {
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0], "serve", "--listen", "127.0.0.1:0", "--cores", "1", "--providers", "tcp", "--log-level", "debug")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = write
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // it was killed
	}()
	write.Close()
	read.Close() // as head -1 does
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	out.Close()
	i := strings.Index(line, "http://")
	if i < 0 {
		t.Fatalf("serve said %q", line)
	}
	url := strings.Trim(strings.Fields(line[i:])[0], ";,.")
	for _, s := range []syscall.Signal{syscall.SIGHUP, syscall.SIGPIPE} {
		if err := cmd.Process.Signal(s); err != nil {
			t.Fatal(err)
		}
		for range 2 { // a second call's log line finds the pipe broken, too
			if _, err := client.Status(t.Context(), client.Config{Server: url}); err != nil {
				t.Fatalf("after %v: %v", s, err)
			}
		}
	}
}
