package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/spf13/pflag"
)

func TestASecretInACommandLineIsRefused(t *testing.T) {
	is := regexp.MustCompile(`token|secret|password|^jobs$`)
	found := 0
	for _, c := range visible(root()) {
		c.Flags().VisitAll(func(f *pflag.Flag) {
			if strings.HasSuffix(f.Name, "-file") || f.Value.Type() == "int" || !is.MatchString(f.Name) {
				return
			}
			found++
			args := append(strings.Fields(c.CommandPath())[1:], "--"+f.Name, "resnet=HUSH")
			if c.ValidateArgs(nil) != nil {
				args = append(args, "x")
			}
			out, err := run(t, args...)
			if err == nil || !strings.Contains(err.Error(), "--"+f.Name+"-file") || strings.Contains(out+err.Error(), "HUSH") {
				t.Errorf("%q: %v\n%s", args, err, out)
			}
		})
	}
	if found < 10 {
		t.Errorf("only %d flags hold secrets", found)
	}
}

func TestASecretComesFromItsFileOrTheConfigurationOrTheEnvironment(t *testing.T) {
	url := strings.TrimSuffix(strings.Fields(serving(t, "--providers", "tcp", "--unpinned", "--jobs-file",
		file(t, "jobs", "resnet=hush\n")))[2], ";")
	t.Setenv("XDG_RUNTIME_DIR", t.TempDir()) // the aggregator's Unix socket is not found
	bench := []string{"bench", "--server", url, "--job", "resnet", "--workers", "1", "--bytes", "64KB", "--iters", "1",
		"--warmup", "0", "--no-roofline"}
	runs := func(args ...string) {
		t.Helper()
		if out, err := run(t, append(bench, args...)...); err != nil {
			t.Errorf("%q: %v\n%s", args, err, out)
		}
	}
	const wrong = "wrong token"
	fails(t, bench, wrong)
	fails(t, append(bench, "--token-file", file(t, "token", "another")), wrong)
	fails(t, append(bench, "--token-file", file(t, "token", "\n")), "holds 0 words")
	fails(t, append(bench, "--token-file", file(t, "token", "caf\u00e9")), "use letters and digits")
	fails(t, append(bench, "--token-file", "/nonexistent"), "--token-file", "/nonexistent")
	read := file(t, "token", "hush\n")
	if err := os.Chmod(read, 0o644); err != nil {
		t.Fatal(err)
	}
	fails(t, append(bench, "--token-file", read), read, "-rw-r--r--", "chmod o-rwx it")
	config := file(t, "config.yaml", "token: hush\n")
	runs("--token-file", file(t, "token", "hush\n"))
	runs("--config", config)
	runs("--config", file(t, "config.yaml", "token: another\n"), "--token-file", file(t, "token", "hush"))
	t.Setenv("RACKWEAVE_TOKEN", "another")
	runs("--config", config)
	fails(t, bench, wrong)
	t.Setenv("RACKWEAVE_TOKEN", "hush")
	runs()
}

// commandLines calls with every process's command line, over and over until ctx ends.
func commandLines(ctx context.Context, with func([]byte)) {
	for ctx.Err() == nil {
		files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
		for _, f := range files {
			if text, err := os.ReadFile(f); err == nil { // else the process has ended
				with(text)
			}
		}
		time.Sleep(time.Millisecond)
	}
}

func TestNoSecretOfARunIsInACommandLine(t *testing.T) {
	token, admin := rand.Text(), rand.Text()
	seen := map[string]int{}
	ctx, cancel := context.WithCancel(t.Context())
	var looking sync.WaitGroup
	looking.Go(func() {
		commandLines(ctx, func(line []byte) {
			for _, word := range []string{token, admin, "bench-worker", "token-file", "sleep"} {
				if bytes.Contains(line, []byte(word)) {
					seen[word]++
				}
			}
		})
	})
	tokenFile, adminFile := file(t, "token", token), file(t, "admin", admin)
	aggregator := exec.Command(os.Args[0], "serve", "--until-eof", "--listen", "127.0.0.1:0", "--providers", "tcp", "--unpinned",
		"--jobs-file", file(t, "jobs", "j="+token), "--admin-token-file", adminFile)
	stdin, err := aggregator.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := aggregator.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := aggregator.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		stdin.Close()
		if err := aggregator.Wait(); err != nil {
			t.Error(err)
		}
	}()
	url, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	at := []string{"--server", strings.TrimSpace(url), "--token-file"}
	for _, args := range [][]string{
		append([]string{"bench", "--job", "j", "--workers", "2", "--provider", "tcp", "--bytes", "4KiB", "--iters", "2", "--no-roofline"},
			append(at, tokenFile)...),
		append([]string{"status"}, append(at, adminFile)...),
	} {
		if out, err := run(t, args...); err != nil {
			t.Errorf("%q: %v\n%s", args, err, out)
		}
	}
	launched := exec.Command(os.Args[0], append(append([]string{"run", "-n", "2", "--job", "j"}, append(at, tokenFile)...),
		"--", "sh", "-c", `test -n "$RACKWEAVE_TOKEN" && sleep 0.1`)...)
	if out, err := launched.CombinedOutput(); err != nil {
		t.Errorf("run: %v\n%s", err, out)
	}
	cancel()
	looking.Wait()
	if seen[token]+seen[admin] > 0 || seen["bench-worker"] == 0 || seen["token-file"] == 0 || seen["sleep"] == 0 {
		t.Errorf("command lines had the job's token %d times, the admin's %d, workers %d, and their files %d", seen[token], seen[admin],
			seen["bench-worker"], seen["token-file"])
	}
}
