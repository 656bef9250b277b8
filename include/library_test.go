package include_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/rackweave/rackweave/cgo/kernel"
	"github.com/rackweave/rackweave/lab/binary"
)

// output runs a command and returns what it prints.
func output(t *testing.T, name string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

func compiler() string {
	if cc := os.Getenv("CC"); cc != "" {
		return cc
	}
	return "cc"
}

var (
	dir string // of what is built once
	// The compiler's warnings about what is not initialized are of no use with sanitizers, as its manual says.
	sanitizers = []string{"-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-Wno-maybe-uninitialized"}
	plain      = sync.OnceValues(func() (string, error) { return build("plain", nil) })
	sanitized  = sync.OnceValues(func() (string, error) { return build("sanitized", sanitizers) })
	command    = sync.OnceValues(func() (string, error) { return binary.Build(context.Background(), dir) })
)

// build makes the shared library in a folder of its own. The kernels get no flags: tests of their own run them under sanitizers,
// with which they take long to compile.
func build(name string, flags []string) (string, error) {
	out := filepath.Join(dir, name, "librackweave.so.0")
	cmd := exec.Command("../scripts/build-library.sh", out)
	cmd.Env = append(os.Environ(), "KERNEL_CFLAGS=", "CFLAGS="+strings.Join(flags, " "))
	text, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("build the library: %w: %s", err, text)
	}
	return out, err
}

func TestMain(m *testing.M) {
	var err error
	if dir, err = os.MkdirTemp("", "librackweave"); err != nil {
		panic(err)
	}
	code := m.Run()
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

// built returns what is built once.
func built(t *testing.T, what func() (string, error)) string {
	t.Helper()
	path, err := what()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// program builds a C program with a library.
func program(t *testing.T, source, library string, flags ...string) string {
	t.Helper()
	out := filepath.Join(t.TempDir(), strings.TrimSuffix(filepath.Base(source), ".c"))
	args := append([]string{"-Wall", "-Wextra", "-Werror", "-pthread"}, flags...)
	output(t, compiler(), append(args, "-I.", "-I..", "-o", out, source, library, "-lm", "-Wl,-rpath,"+filepath.Dir(library))...)
	return out
}

func TestLibraryExportsWhatItsHeadersDeclare(t *testing.T) {
	headers, err := filepath.Glob("*.h")
	if err != nil {
		t.Fatal(err)
	}
	var declared, exported []string
	for _, name := range headers {
		header, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`(?s)RW_API [^;]*?\b(rw_\w+)\(`).FindAllSubmatch(header, -1) {
			declared = append(declared, string(m[1]))
		}
	}
	library := built(t, plain)
	for line := range strings.Lines(output(t, "nm", "-D", "--defined-only", library)) {
		fields := strings.Fields(line)
		exported = append(exported, fields[len(fields)-1])
	}
	slices.Sort(declared)
	slices.Sort(exported)
	if !slices.Equal(declared, exported) || len(declared) == 0 {
		t.Errorf("the headers declare\n%v\nand the library exports\n%v", declared, exported)
	}
}

// Frameworks load the library late, where there is little static thread-local storage left, and into processes of any kind.
func TestLibraryNeedsNothingButTheCLibrary(t *testing.T) {
	dynamic := output(t, "readelf", "--wide", "--dynamic", built(t, plain))
	if !strings.Contains(dynamic, "Library soname: [librackweave.so.0]") {
		t.Error("it has another name than librackweave.so.0")
	}
	if strings.Contains(dynamic, "STATIC_TLS") {
		t.Error("it takes static thread-local storage")
	}
	for _, m := range regexp.MustCompile(`Shared library: \[([^\]]*)\]`).FindAllStringSubmatch(dynamic, -1) {
		if !regexp.MustCompile(`^(lib(c|m|dl|pthread)\.so\.|ld-linux)`).MatchString(m[1]) {
			t.Errorf("it needs %s", m[1])
		}
	}
}

func TestHeadersArePlainCAndCPlusPlus(t *testing.T) {
	for _, language := range []string{"-xc -std=c99", "-xc -std=c11", "-xc++ -std=c++11"} {
		args := append(strings.Fields(language), "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only")
		output(t, compiler(), append(args, "rackweave.h", "rackweave_mxnet.h")...)
	}
}

func TestArenasHandOutMemoryOnce(t *testing.T) {
	if out := output(t, program(t, "testdata/arena.c", built(t, sanitized), sanitizers...)); out != "ok\n" {
		t.Error(out)
	}
}

// Whether the machine gives shared memory huge pages, the program asks without the library.
func TestArenasLieInHugePages(t *testing.T) {
	switch out := output(t, program(t, "testdata/huge.c", built(t, sanitized), sanitizers...)); out {
	case "ok\n":
	case "none\n":
		t.Skip("this machine gives shared memory no huge pages: Linux 6.1 and later does, with transparent huge pages built in")
	default:
		t.Error(out)
	}
}

// Not under the address sanitizer, which has an allocator of its own.
func TestOrdinaryMemoryIsAdopted(t *testing.T) {
	if out := output(t, program(t, "testdata/adopt.c", built(t, plain))); out != "ok\n" {
		t.Error(out)
	}
}

// The library has no Go beside it: it finds out by itself which kernels suit the CPU, and how much cache it can count on.
func TestLibrarySeesTheMachineAsGoDoes(t *testing.T) {
	var isa int
	var cache uint64
	if _, err := fmt.Sscan(output(t, program(t, "testdata/machine.c", built(t, plain))), &isa, &cache); err != nil {
		t.Fatal(err)
	}
	if isa != int(kernel.Best()) {
		t.Errorf("instruction set %d, want %d", isa, kernel.Best())
	}
	if most := uint64(runtime.NumCPU()) << 22; cache == 0 || cache > most {
		t.Errorf("%d bytes of cache, want at most %d of %d CPUs", cache, most, runtime.NumCPU())
	}
}

func TestSessionsOfARunJob(t *testing.T) {
	session := program(t, "testdata/session.c", built(t, sanitized), sanitizers...)
	for _, provider := range []string{"shm", "tcp"} {
		if out := output(t, built(t, command), "run", "-n", "2", "--", session, provider); strings.Count(out, "ok") != 2 {
			t.Errorf("%s: %s", provider, out)
		}
	}
}

func TestCallbacksThatStartOperationsAreCalledOnce(t *testing.T) {
	callbacks := program(t, "testdata/callbacks.c", built(t, sanitized), sanitizers...)
	if out := output(t, built(t, command), "run", "-n", "2", "--", callbacks); strings.Count(out, "ok") != 2 {
		t.Error(out)
	}
}

func TestExchangesThroughMXNetsEngine(t *testing.T) {
	mxnet := program(t, "testdata/mxnet.c", built(t, sanitized), sanitizers...)
	if out := output(t, built(t, command), "run", "-n", "2", "--", mxnet); strings.Count(out, "ok") != 2 {
		t.Error(out)
	}
}

func TestTwoPhaseStepsAreCommitted(t *testing.T) {
	step := program(t, "testdata/step.c", built(t, sanitized), sanitizers...)
	if out := output(t, built(t, command), "run", "-n", "2", "--", step); strings.Count(out, "ok") != 2 {
		t.Error(out)
	}
}

func TestWorkersOfModeStreamEndTheirOwnSteps(t *testing.T) {
	stream := program(t, "testdata/stream.c", built(t, sanitized), sanitizers...)
	if out := output(t, built(t, command), "run", "-n", "3", "--", stream); strings.Count(out, "ok") != 3 {
		t.Error(out)
	}
}

func TestGradientsOfAJobWithCodecsAreCompressed(t *testing.T) {
	codecs := program(t, "testdata/codecs.c", built(t, sanitized), sanitizers...)
	for _, provider := range []string{"shm", "tcp"} {
		if out := output(t, built(t, command), "run", "-n", "2", "--", codecs, provider); strings.Count(out, "ok") != 2 {
			t.Errorf("%s: %s", provider, out)
		}
	}
}

func TestWorkersTakeTheCodecsThatTheAggregatorChooses(t *testing.T) {
	chosen := program(t, "testdata/chosen.c", built(t, sanitized), sanitizers...)
	out := output(t, built(t, command), "run", "-n", "2", "--", chosen, "auto:budget=0.2,codecs=int8+int4")
	if steps := regexp.MustCompile(`changed in step (\d+)`).FindAllString(out, -1); len(steps) != 2 || steps[0] != steps[1] {
		t.Errorf("%s", out)
	}
}

func TestWorkersAreToldThatOneDied(t *testing.T) {
	dies := program(t, "testdata/dies.c", built(t, sanitized), sanitizers...)
	for _, at := range [][]string{nil, {"--server", servedTwice(t)}} {
		args := append(append([]string{"run", "-n", "3"}, at...), "--", dies)
		if out := output(t, built(t, command), args...); strings.Count(out, "worker 1 failed") != 2 {
			t.Errorf("%v: not all were told that worker 1 died: %s", args, out)
		}
	}
}

func TestExampleFitsALine(t *testing.T) {
	linear := program(t, "../examples/c/linear.c", built(t, plain), "-std=c99")
	fitsALine(t, output(t, built(t, command), "run", "-n", "3", "--", linear))
}

// Where the job is spread over several aggregators, at addresses of their own, the program is the same.
func TestExampleFitsALineOverTwoAggregators(t *testing.T) {
	linear := program(t, "../examples/c/linear.c", built(t, sanitized), sanitizers...)
	fitsALine(t, output(t, built(t, command), "run", "-n", "3", "--server", servedTwice(t), "--", linear))
}

// servedTwice runs two aggregators, at addresses of their own, and returns the URLs for a job that is spread over them.
func servedTwice(t *testing.T) string {
	t.Helper()
	var urls []string
	for _, host := range []string{"127.0.0.1", "127.0.0.2"} {
		urls = append(urls, served(t, "--listen", host+":0", "--providers", "tcp", "--cores", "2", "--unpinned"))
	}
	return strings.Join(urls, ",")
}

// served runs an aggregator and returns its URL.
func served(t *testing.T, flags ...string) string {
	t.Helper()
	cmd := exec.Command(built(t, command), append([]string{"serve", "--until-eof"}, flags...)...)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		if err := cmd.Wait(); err != nil {
			t.Errorf("serve %v: %v", flags, err)
		}
	})
	url, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("serve %v: %v", flags, err)
	}
	return strings.TrimSpace(url)
}

// fitsALine checks what the example's workers print.
func fitsALine(t *testing.T, out string) {
	t.Helper()
	lines := map[string]int{}
	for line := range strings.Lines(out) {
		if _, result, ok := strings.Cut(line, "] y = "); ok {
			result, _, _ = strings.Cut(result, ", mean")
			lines[result]++
		}
	}
	if lines["2.9997 x + 2.0002"] != 3 {
		t.Errorf("three workers should have found the same line, 3 x + 2:\n%s", out)
	}
}
