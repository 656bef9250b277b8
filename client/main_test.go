package client_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/rackweave/rackweave/client"
	"github.com/rackweave/rackweave/service"
)

// roleEnv makes the test binary play a part in another process: a worker or an aggregator that the test can kill.
const roleEnv = "RACKWEAVE_TEST_ROLE"

func TestMain(m *testing.M) {
	switch os.Getenv(roleEnv) {
	case "":
		goleak.VerifyTestMain(m)
	case "worker":
		fmt.Println("error:", playWorker())
	case "aggregator":
		fmt.Println("error:", playAggregator())
	}
}

// part is another process of the test.
type part struct {
	cmd   *exec.Cmd
	lines *bufio.Scanner
}

// play starts a part; config goes to it as JSON. It is killed when the test ends.
func play(t *testing.T, role string, config any) *part {
	t.Helper()
	raw, err := json.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), roleEnv+"="+role)
	cmd.Stdin = strings.NewReader(string(raw))
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := &part{cmd, bufio.NewScanner(out)}
	t.Cleanup(func() { p.kill() })
	return p
}

// kill is kill -9, and waits for the end.
func (p *part) kill() {
	if p.cmd.ProcessState == nil {
		p.cmd.Process.Kill()
		p.cmd.Wait()
	}
}

// line is the next line that the part prints.
func (p *part) line(t *testing.T) string {
	t.Helper()
	if !p.lines.Scan() {
		t.Fatalf("the other process ended: %v", p.lines.Err())
	}
	return p.lines.Text()
}

// playWorker joins and pushes one tensor for ever.
func playWorker() error {
	var cfg client.Config
	if err := json.NewDecoder(os.Stdin).Decode(&cfg); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()
	w, err := client.Join(ctx, cfg)
	if err != nil {
		return err
	}
	if err := w.Register(ctx, endlessModel); err != nil {
		return err
	}
	buf, err := w.Alloc(int(endlessModel[0].Elems()) * 4)
	if err != nil {
		return err
	}
	for step := 0; ; step++ {
		h, err := w.PushPull(0, buf, buf, 0)
		if err == nil && cfg.Policy != "" { // it never ends its step
			fmt.Println("pushing")
			<-ctx.Done()
		}
		if err == nil {
			err = h.Wait(ctx)
		}
		if err != nil {
			return err
		}
		if step == 3 {
			fmt.Println("pushing")
		}
	}
}

// endlessModel is exchanged until someone is killed.
var endlessModel = []client.Tensor{{Name: "endless", Shape: []uint64{1 << 18}}}

// playAggregator serves until it is killed.
func playAggregator() error {
	var o service.Options
	if err := json.NewDecoder(os.Stdin).Decode(&o); err != nil {
		return err
	}
	o.Listen = "127.0.0.1:0"
	s, err := service.New(o)
	if err != nil {
		return err
	}
	fmt.Println(s.URL())
	go func() {
		time.Sleep(2 * deadline) // if the test is gone
		os.Exit(1)
	}()
	return s.Serve(context.Background())
}
