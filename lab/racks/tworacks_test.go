package racks

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/rackweave/rackweave/launch"
)

// twoHosts makes two network namespaces with a cable between them, known to each other as aggregator-a and aggregator-b.
func twoHosts(t *testing.T) (names [2]string) {
	t.Helper()
	switch err := Probe(t.Context()); {
	case errors.Is(err, os.ErrPermission):
		t.Skip(err)
	case err != nil:
		t.Fatal(err)
	}
	var script strings.Builder
	for i := range names {
		n := fmt.Sprintf("rw2%c%d", 'a'+i, os.Getpid()%10000)
		names[i] = n
		fmt.Fprintf(&script, "ip netns add %[1]s\nip -n %[1]s link set lo up\nmkdir -p /etc/netns/%[1]s\n"+
			`printf '127.0.0.1 localhost\n10.78.0.1 aggregator-a\n10.78.0.2 aggregator-b\n' >/etc/netns/%[1]s/hosts`+"\n", n)
	}
	fmt.Fprintf(&script, "ip link add eth0 netns %s type veth peer name eth0 netns %s\n", names[0], names[1])
	for i, n := range names {
		fmt.Fprintf(&script, "ip -n %[1]s addr add 10.78.0.%[2]d/24 dev eth0\nip -n %[1]s link set eth0 up\n", n, i+1)
	}
	t.Cleanup(func() {
		for _, n := range names {
			exec.Command("sh", "-c", "ip netns pids "+n+" | xargs -r kill -9; ip netns del "+n).Run()
			os.RemoveAll("/etc/netns/" + n)
		}
	})
	if err := sh(t.Context(), script.String()); err != nil {
		t.Fatal(err)
	}
	return names
}

// The page's commands, word by word, lead two hosts with addresses and certificates of their own to a verified result.
func TestTheTwoRacksPageLeadsToAResult(t *testing.T) {
	file := program(t)
	names := twoHosts(t)
	text, err := os.ReadFile("../../docs/two-racks.md")
	if err != nil {
		t.Fatal(err)
	}
	var script strings.Builder
	for _, line := range regexp.MustCompile(`(?m)^    (.*)$`).FindAllStringSubmatch(string(text), -1) {
		script.WriteString(line[1] + "\n")
	}
	dir := t.TempDir()
	// A host has its network, its keys and its sockets. The directory of the page is shared, but for what each host writes.
	home := `STATE_DIRECTORY=` + dir + `/$1 XDG_RUNTIME_DIR=` + dir + `/$1 exec ip netns exec $1 `
	for name, text := range map[string]string{
		"ssh": `#!/bin/sh
while [ "$1" = -o ]; do shift 2; done
case $1 in aggregator-a) n=` + names[0] + `;; aggregator-b) n=` + names[1] + `;; *) echo "ssh: unknown host $1" >&2; exit 255;; esac
shift; c="$*"; set -- $n
` + home + `setsid -w sh -c "$c"
`,
		"here":     "#!/bin/sh\n" + home + `sh -eux -c "$2"` + "\n",
		"train.py": "import os\nprint('trained', os.environ['RACKWEAVE_RANK'], os.environ['RACKWEAVE_ADDR'], os.environ['LOCAL_RANK'])\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, n := range names {
		if err := os.Mkdir(filepath.Join(dir, n), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(dir, "here"), names[0], script.String()+"wait\n")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "PATH="+dir+":"+filepath.Dir(file)+":"+os.Getenv("PATH"))
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.WaitDelay = time.Second
	p, err := launch.Start(cmd)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Wait(); err != nil {
		a, _ := os.ReadFile(filepath.Join(dir, "a.log"))
		b, _ := os.ReadFile(filepath.Join(dir, "b.log"))
		t.Fatalf("%v in\n%s\n%s\n%s", err, out.String(), a, b)
	}
	for _, want := range []string{`# workers=4: checksum of the final results (\w+), plain Go `,
		`(?m)^\[2\] trained 2 https://aggregator-a:7077 2$`, `(?m)^\[3\] trained 3 https://aggregator-a:7077 0$`} {
		if !regexp.MustCompile(want).MatchString(out.String()) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
}
