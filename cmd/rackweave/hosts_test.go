package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/rackweave/rackweave/launch"
)

// standIn returns a command in place of ssh, for which all hosts are this one, in a session of its own: as with ssh, only the end
// of its standard input reaches what runs there.
func standIn(t *testing.T, script string) string {
	path := file(t, "ssh", "#!/bin/sh\nhost=$1; shift\n"+script+"\nexec setsid -w sh -c \"$*\"\n")
	if err := os.Chmod(path, 0o700); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestWorkersOfSeveralHostsAreOneJob(t *testing.T) {
	url := servingURL(t)
	t.Setenv("RACKWEAVE_TOKEN", "a token that nobody reads")
	seen := t.TempDir() + "/seen"
	ssh := standIn(t, `echo "$host $*" >>`+seen+`; tr '\0' '\n' </proc/$PPID/cmdline >>`+seen)
	out, err := run(t, "run", "--hosts", "a:2,user@b", "--ssh", ssh, "--server", url, "--", os.Args[0], runRole)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"[0] sum [3 6 9 3]\n", "[1] sum [3 6 9 3]\n", "[2] sum [3 6 9 3]\n"}
	if lines := slices.Sorted(strings.Lines(out)); !slices.Equal(lines, want) {
		t.Errorf("output %q, want %q", lines, want)
	}
	text, err := os.ReadFile(seen)
	if err != nil || strings.Contains(string(text), "nobody reads") || strings.Count(string(text), "run-host") != 2 {
		t.Errorf("commands %s, %v", text, err)
	}
	out, err = run(t, "run", "--hosts", "user@a:2,b", "--ssh", ssh, "--server", url, "--", "sh", "-c",
		`echo $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $MASTER_ADDR:$MASTER_PORT; printf '%0100000d' 1 >&2`)
	want = []string{"[0] 0/3 0/2 a:29500\n", "[1] 1/3 1/2 a:29500\n", "[2] 2/3 0/1 a:29500\n"}
	if lines := slices.Sorted(strings.Lines(out)); err != nil || !slices.Equal(lines, want) {
		t.Errorf("output %q, want %q: %v", lines, want, err)
	}
}

func TestTheBenchmarksWorkersRunOnUnevenRacksHosts(t *testing.T) {
	var urls [2]string
	for i := range urls {
		port, err := launch.FreePort()
		if err != nil {
			t.Fatal(err)
		}
		urls[i] = fmt.Sprintf("127.0.0.1:%d", port)
	}
	path := file(t, "cluster.yaml", fmt.Sprintf("secret: 0123456789abcdef\nracks:\n- {name: a, url: 'http://%s', size: 3}\n"+
		"- {name: b, url: 'http://%s', size: 1}\n", urls[0], urls[1]))
	for i, url := range urls {
		serving(t, "--listen", url, "--cluster", path, "--rack", "ab"[i:i+1], "--cores", "1", "--providers", "tcp")
	}
	seen := t.TempDir() + "/seen"
	for _, where := range [][]string{
		{"--server", "http://" + urls[0], "--hosts", "a:3,b:1", "--ssh", standIn(t, "echo $host >>"+seen)},
		{"--server", "http://" + urls[1] + ",http://" + urls[0], "--workers", "4"},
	} {
		args := strings.Fields("bench --bytes 64KiB --iters 2 --warmup 1 --provider tcp --verify --optimizer sgd_torch --no-roofline --json -")
		out, err := run(t, append(args, where...)...)
		if err != nil || !strings.Contains(out, `"wrong": 0`) || !strings.Contains(out, `"verified": true`) {
			t.Errorf("%v: %v\n%s", where, err, out)
		}
	}
	if text, err := os.ReadFile(seen); err != nil || strings.Count(string(text), "a") != 3 || strings.Count(string(text), "b") != 1 {
		t.Errorf("workers on hosts %q, %v", text, err)
	}
	fails(t, strings.Fields("bench --hosts a:2 --ssh sh"), "no --server")
}

func TestAFailureOnOneHostEndsAllAndIsNamed(t *testing.T) {
	ssh := standIn(t, `[ $host = unknown ] && { echo "ssh: no such host" >&2; exit 255; }`)
	args := []string{"run", "--ssh", ssh, "--server", servingURL(t), "--json"}
	script := `[ $RANK = 2 ] && { echo the reason >&2; exit 7; }; exec sleep 600`
	out, err := run(t, append(args, "--hosts", "a:2,b", "--", "sh", "-c", script)...)
	if err == nil || exitCode(err) != 7 || !strings.Contains(err.Error(), "host b: worker 2 ") ||
		!strings.Contains(err.Error(), "the reason") {
		t.Errorf("error %v", err)
	}
	var last struct{ Exits []launch.Exit }
	lines := strings.Split(strings.TrimSpace(out), "\n")
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &last); err != nil || len(last.Exits) != 3 || last.Exits[0].Rank != 2 {
		t.Errorf("%s: %v", lines[len(lines)-1], err)
	}
	fails(t, append(args, "--hosts", "a,unknown", "--", "sleep", "600"), "host unknown: ssh: no such host")
	fails(t, append(args, "--hosts", "a,b", "--", "no-such-program"), "host ", "no-such-program")
	fails(t, append(args, "--hosts", "a:0", "--", "true"), `"a:0"`, "HOST:WORKERS")
	fails(t, append(args, "--hosts", "-oX:1", "--", "true"), `"-oX:1"`, "HOST:WORKERS")
	fails(t, append(args, "--hosts", "a", "-n", "2", "--", "true"), "--workers", "leave it out")
	fails(t, append(args, "--hosts", "a", "--srun", "--", "true"), "--hosts and --srun")
	fails(t, append(args, "--hosts", "a", "--ssh", "no-such-ssh -v", "--", "true"), `--ssh "no-such-ssh -v"`, "install it")
	fails(t, []string{"run", "--hosts", "a", "--ssh", ssh, "--", "true"}, "no --server", "rackweave serve")
}

func TestWorkersOnHostsGetSignalsAndDieWithTheCommand(t *testing.T) {
	cmd := exec.Command(os.Args[0], "run", "--hosts", "a,b:2", "--ssh", standIn(t, ""), "--server", servingURL(t), "--",
		"sh", "-c", `trap "echo usr1" USR1; echo pid $$; while :; do sleep 0.05; done`)
	pids, lines := started(t, cmd, 3)
	cmd.Process.Signal(syscall.SIGUSR1)
	for n := 0; n < 3 && lines.Scan(); n++ {
		if !strings.HasSuffix(lines.Text(), "] usr1") {
			t.Errorf("%q", lines.Text())
		}
	}
	cmd.Process.Kill()
	cmd.Wait()
	gone(t, pids, 3)
}

func TestAWorkerOfSrunKnowsItsPlace(t *testing.T) {
	for name, value := range map[string]string{
		"SLURM_PROCID": "5", "SLURM_NTASKS": "7", "SLURM_LOCALID": "1", "SLURM_NODEID": "2", "SLURM_STEP_TASKS_PER_NODE": "2(x3),1",
		"SLURM_STEP_NODELIST": "node[03-05,9],other", "SLURM_JOB_ID": "12", "SLURM_STEP_ID": "0",
	} {
		t.Setenv(name, value)
	}
	args := []string{"run", "--srun", "--server", servingURL(t), "--", "sh", "-c",
		"echo $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $MASTER_ADDR $RACKWEAVE_JOB $RACKWEAVE_RUN"}
	if out, err := run(t, args...); err != nil || out != "[5] 5/7 1/2 node03 slurm-12-0 12:0\n" {
		t.Errorf("%q, %v", out, err)
	}
	t.Setenv("SLURM_PROCID", "")
	fails(t, args, "SLURM_PROCID", "srun -n 4 rackweave run --srun")
}
