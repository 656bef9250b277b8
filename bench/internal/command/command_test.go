package command

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// gone waits until no process whose number is in the file is left; a zombie, whose parent is elsewhere, counts as gone.
func gone(t *testing.T, file string) {
	t.Helper()
	pid, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%s/stat", strings.TrimSpace(string(pid))))
		if err != nil || strings.Contains(string(stat), ") Z ") {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("process %s is still there: %s", pid, stat)
		}
	}
}

func TestRunEndsTheWholeGroup(t *testing.T) {
	for _, c := range []struct {
		name, script string
		limit        time.Duration
		cancel       time.Duration
		want         error
		text         string
	}{
		{"at its deadline", `sleep 600 & echo $! >$TMPDIR/pid; echo waiting >&2; wait`, 300 * time.Millisecond, 0,
			context.DeadlineExceeded, "waiting"},
		{"when cancelled", `sleep 600 & echo $! >$TMPDIR/pid; wait`, time.Minute, 300 * time.Millisecond, context.Canceled, ""},
		{"when it succeeds and leaves something behind", `sleep 600 >/dev/null 2>&1 & echo $! >$TMPDIR/pid`, time.Minute, 0, nil, ""},
		{"when it fails", `sleep 600 >/dev/null 2>&1 & echo $! >$TMPDIR/pid; exit 5`, time.Minute, 0, nil, "exit status 5"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if c.cancel > 0 {
				time.AfterFunc(c.cancel, cancel)
			}
			start := time.Now()
			_, err := Run(ctx, c.limit, dir, []string{"sh", "-c", c.script})
			if took := time.Since(start); took > 30*time.Second {
				t.Errorf("it took %v", took)
			}
			if c.want != nil && !errors.Is(err, c.want) {
				t.Errorf("error = %v, want %v", err, c.want)
			}
			if (c.text == "") != (err == nil) && c.want == nil || c.text != "" && !strings.Contains(fmt.Sprint(err), c.text) {
				t.Errorf("error = %v, want %q in it", err, c.text)
			}
			gone(t, filepath.Join(dir, "pid"))
		})
	}
}

func TestACommandThatIgnoresItsEndIsKilled(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	_, err := Run(t.Context(), 200*time.Millisecond, dir,
		[]string{"sh", "-c", `trap "" TERM; echo $$ >$TMPDIR/pid; while :; do sleep 0.1; done`})
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error = %v, want %v", err, context.DeadlineExceeded)
	}
	gone(t, filepath.Join(dir, "pid"))
}

func TestTheErrorHasTheEndOfStderr(t *testing.T) {
	_, err := Run(t.Context(), time.Minute, t.TempDir(),
		[]string{"sh", "-c", `yes chatter | head -n 1000 >&2; echo the reason >&2; exit 1`})
	if err == nil || !strings.HasSuffix(err.Error(), "the reason") || len(err.Error()) > 5000 {
		t.Errorf("error = %v, want the end of stderr", err)
	}
	if _, err := Run(t.Context(), time.Minute, t.TempDir(), []string{"/no/such/peer"}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("error = %v, want %v", err, os.ErrNotExist)
	}
}
