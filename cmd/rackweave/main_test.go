package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
)

// The benchmark starts its workers and its aggregator from the running binary, which here is the test.
func TestMain(m *testing.M) {
	switch role := append(os.Args, "")[1]; role {
	case "bench-worker", "serve", "run":
		main()
	case runRole:
		if err := runWorker(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	default:
		os.Exit(m.Run())
	}
}

// run executes the command line in this process and returns what it printed.
func run(t *testing.T, args ...string) (stdout string, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
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
