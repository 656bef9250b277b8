package lab

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// dependOnSources makes "go test" look at the whole module before it uses this test's cached result. It notes the directories that
// a test reads, but not those that the test's commands read. What is hidden or built has no sources.
func dependOnSources(t *testing.T) {
	t.Helper()
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		built := path == "../build" || path == "../bin"
		if d != nil && d.IsDir() && (built || strings.HasPrefix(d.Name(), ".") && path != "..") {
			return fs.SkipDir
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// builtDir has what build has built, or is empty.
var builtDir string

func TestMain(m *testing.M) {
	code := m.Run()
	if err := os.RemoveAll(builtDir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// build builds a part of this module, once for all guests, where a guest sees it, and returns its path in the guest. The path leads
// through the guest's root, where a file is read once; every process reads files of [SharedDir] again.
func build(t *testing.T, g *Guest, name string, args ...string) string {
	t.Helper()
	dependOnSources(t)
	file := filepath.Join(g.Dir(), name)
	if _, err := os.Stat(file); err == nil {
		return GuestPath(file)
	}
	if builtDir == "" {
		var err error
		if builtDir, err = makeWorkDir(); err != nil {
			t.Fatal(err)
		}
	}
	program := filepath.Join(builtDir, name)
	if _, err := os.Stat(program); err != nil {
		args = slices.Concat(args[:1], []string{"-ldflags=-w", "-o", program}, args[1:])
		if out, err := exec.CommandContext(t.Context(), "go", args...).CombinedOutput(); err != nil {
			t.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
	if err := os.Link(program, file); err != nil {
		t.Fatal(err)
	}
	return GuestPath(file)
}

// kernelEncrypts runs the tests of encrypted tcp connections where the kernel has TLS, which must have done the work.
func kernelEncrypts(t *testing.T, g *Guest) {
	for pkg, tests := range map[string]string{"verbs": "^TestTCPEncrypted", "cgo/fabric": "^TestTCP(Encr|AChangedByte|Random)",
		"service": "^TestAnAggregatorThatEncryptsSums"} {
		bin := build(t, g, filepath.Base(pkg)+".test", "test", "-c", "github.com/rackweave/rackweave/"+pkg)
		out, err := g.Run(within(t, patience), bin+" -test.v -test.run '"+tests+"'")
		if err != nil || !strings.Contains(out, "--- PASS") || strings.Contains(out, "--- SKIP") {
			t.Errorf("%v\n%s", err, out)
		}
	}
	stat := run(t, g, "cat /proc/net/tls_stat")
	if ok, err := regexp.MatchString(`TlsTxSw\s+[1-9](?s:.*)TlsRxSw\s+[1-9]`, stat); !ok || err != nil {
		t.Errorf("the kernel's TLS did nothing:\n%s", stat)
	}
}

// ibvConforms runs the transport contract's tests, and provider ibv's own, against a guest's device.
func ibvConforms(t *testing.T, g *Guest) {
	bin := build(t, g, "verbs.test", "test", "-c", "github.com/rackweave/rackweave/verbs")
	out, err := g.Run(within(t, patience), "RDMA_DEVICE=rxe0 RDMA_TEST_NETDEV=nic0 "+bin+" -test.v -test.run '^TestIBV'")
	if err != nil || !strings.Contains(out, "--- PASS: TestIBV ") || strings.Contains(out, "--- SKIP") {
		t.Errorf("%v\n%s", err, out)
	}
	t.Logf("%d tests passed in the guest", strings.Count(out, "--- PASS"))
}
