package attacks

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/rackweave/rackweave/lab/racks"
)

// namespaces makes two network namespaces with a cable between them, and returns their names.
func namespaces(t *testing.T) (aggregator, worker string) {
	t.Helper()
	switch err := racks.Probe(t.Context()); {
	case errors.Is(err, os.ErrPermission):
		t.Skip(err)
	case err != nil:
		t.Fatal(err)
	}
	id := os.Getpid() % 10000
	aggregator, worker = fmt.Sprintf("rwa%d", id), fmt.Sprintf("rww%d", id)
	script := fmt.Sprintf(`set -e
ip netns add %[1]s; ip netns add %[2]s
ip link add %[1]s type veth peer name %[2]s
ip link set %[1]s netns %[1]s; ip link set %[2]s netns %[2]s
ip -n %[1]s addr add 10.77.0.1/24 dev %[1]s; ip -n %[2]s addr add 10.77.0.2/24 dev %[2]s
for n in %[1]s %[2]s; do ip -n $n link set $n up; ip -n $n link set lo up; done`, aggregator, worker)
	t.Cleanup(func() { exec.Command("sh", "-c", "ip netns del "+aggregator+"; ip netns del "+worker).Run() })
	if out, err := exec.Command("sh", "-c", script).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return aggregator, worker
}

// commands returns the commands of SECURITY.md in the section with this title.
func commands(t *testing.T, title string) (all []string) {
	t.Helper()
	text, err := os.ReadFile("../../SECURITY.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, ok := strings.Cut(string(text), "## "+title+"\n")
	if !ok {
		t.Fatalf("SECURITY.md has no section %q", title)
	}
	section, _, _ = strings.Cut(section, "\n## ")
	for _, m := range regexp.MustCompile(`(?m)^    (rackweave [^#\n]*)`).FindAllStringSubmatch(section, -1) {
		all = append(all, strings.TrimSpace(m[1]))
	}
	return all
}

func TestOtherHostsComeInWithATokenAndStrangersDoNot(t *testing.T) {
	aggregator, worker := namespaces(t)
	dir := t.TempDir()
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	in := func(namespace, command string) *exec.Cmd {
		command = strings.ReplaceAll(command, "/var/lib/rackweave", dir)
		cmd := exec.CommandContext(ctx, "ip", "netns", "exec", namespace, "sh", "-c", "exec "+command)
		cmd.Env = append(os.Environ(), "PATH="+program[:strings.LastIndex(program, "/")]+":"+os.Getenv("PATH"), "STATE_DIRECTORY="+dir,
			"XDG_RUNTIME_DIR="+dir+"/"+namespace)
		cmd.WaitDelay = 10 * time.Second
		return cmd
	}
	all := commands(t, "For other hosts")
	if len(all) != 3 {
		t.Fatalf("SECURITY.md says to run %q, want three commands", all)
	}
	serve := in(aggregator, all[0]+" --unpinned --providers tcp --log-level error")
	serve.Stderr = os.Stderr
	out, err := serve.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := serve.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		serve.Process.Signal(os.Interrupt)
		serve.Wait()
	}()
	fingerprint := ""
	for lines := bufio.NewScanner(out); fingerprint == "" && lines.Scan(); {
		fingerprint, _ = strings.CutPrefix(lines.Text(), "certificate sha256:")
		if fingerprint == lines.Text() {
			fingerprint = ""
		}
	}
	token, err := in(aggregator, all[1]).Output()
	if err != nil || fingerprint == "" {
		t.Fatalf("%s: %v; fingerprint %q", all[1], err, fingerprint)
	}
	for name, text := range map[string]string{"token": string(token), "guess": "GUESS"} {
		if err := os.WriteFile(dir+"/"+name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	fill := strings.NewReplacer("aggregator:", "10.77.0.1:", "FINGERPRINT", fingerprint, "-file ", "-file "+dir+"/")
	small := " --provider tcp --workers 2 --bytes 64KiB --iters 2 --no-roofline"
	for end := time.Now().Add(patience); ; {
		out, err := in(worker, fill.Replace(all[2])+small).CombinedOutput()
		if err == nil {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("%s: %v\n%s", all[2], err, out)
		}
	}
	for name, command := range map[string]string{
		"no token":        strings.ReplaceAll(all[2], " --token-file token", ""),
		"a guessed token": strings.ReplaceAll(all[2], "-file token", "-file guess"),
		"another's job":   strings.ReplaceAll(all[2], "--job resnet", "--job bert"),
		"no fingerprint":  strings.ReplaceAll(all[2], "--ca sha256:FINGERPRINT", ""),
		"no TLS":          "rackweave bench --server http://aggregator:7077 --insecure --job resnet --token-file token",
	} {
		if out, err := in(worker, fill.Replace(command)+small).CombinedOutput(); err == nil {
			t.Errorf("%s: a stranger got in:\n%s", name, out)
		}
	}
	for _, command := range []string{"status", "drain"} {
		command = fill.Replace("rackweave " + command + " --server https://aggregator:7077 --ca sha256:FINGERPRINT")
		out, err := in(worker, command).CombinedOutput()
		if err == nil {
			t.Errorf("%s: a stranger got in:\n%s", command, out)
		}
	}
}
