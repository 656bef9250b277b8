package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rackweave/rackweave/service/etcd"
	"github.com/rackweave/rackweave/service/etcd/server"
)

// The benchmark starts its workers and its aggregator from the running binary, which here is the test.
func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == etcd.Program {
		os.Exit(server.Main(os.Stdin, os.Stdout))
	}
	switch role := append(os.Args, "")[1]; role {
	case "bench-worker", "serve", "run", "run-host":
		main()
	case runRole:
		if err := runWorker(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	default:
		os.Exit(runTests(m))
	}
}

// runTests runs the tests with this binary as the program of etcd's, too.
func runTests(m *testing.M) int {
	dir, err := os.MkdirTemp("", "rackweave-")
	if err == nil {
		defer os.RemoveAll(dir)
		var self string
		self, err = os.Executable()
		err = errors.Join(err, os.Symlink(self, filepath.Join(dir, etcd.Program)), os.Setenv("PATH", dir+":"+os.Getenv("PATH")))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// run executes the command line in this process and returns what it printed.
func run(t *testing.T, args ...string) (stdout string, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 4*time.Minute)
	defer cancel()
	cmd := root()
	var out, errs bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetErr(&errs)
	cmd.SetArgs(args)
	err = cmd.ExecuteContext(ctx)
	t.Logf("rackweave %s\n%s", strings.Join(args, " "), errs.String())
	return out.String(), err
}

// fails executes a command line that must fail, with an error that mentions all of wants.
func fails(t *testing.T, args []string, wants ...string) {
	t.Helper()
	out, err := run(t, args...)
	if err == nil {
		t.Fatalf("rackweave %s succeeded:\n%s", strings.Join(args, " "), out)
	}
	for _, want := range wants {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("rackweave %s: error %q does not mention %q", strings.Join(args, " "), err, want)
		}
	}
}

// file writes a file that lasts as long as the test.
func file(t *testing.T, name, text string) string {
	t.Helper()
	path := t.TempDir() + "/" + name
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}
