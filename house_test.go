// Package rackweave has no code of its own: its tests hold the house, the directions in which packages may import each other and
// the rules that every source file keeps.
package rackweave

import (
	"bufio"
	"bytes"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"
)

const module = "github.com/rackweave/rackweave"

// house lists the rooms and what each may import of the others. A path belongs to its longest matching room.
var house = map[string][]string{
	"cmd": {"bench", "bench/models", "bench/overlap", "policy", "hierarchy", "launch", "launch/control", "service", "service/api",
		"service/keys", "service/membership", "service/racks", "client", "aggregate", "aggregate/optim", "chunk", "doctor", "rxe",
		"numa", "verbs", "cgo", "lab", "lab/racks"},
	"bench": {"bench/models", "pqueue", "hierarchy", "policy", "launch", "client", "service", "service/api", "aggregate",
		"aggregate/optim", "chunk", "numa", "verbs", "cgo"},
	"bench/models":  {"chunk"},
	"bench/overlap": {"bench/models", "pqueue"},
	"service": {"service/api", "service/door", "service/keys", "service/quota", "service/racks", "hierarchy", "policy",
		"aggregate", "aggregate/optim", "chunk", "numa", "verbs", "verbs/probe"},
	"service/api":             {},
	"service/door":            {},
	"service/quota":           {},
	"service/keys":            {},
	"service/racks":           {"hierarchy"},
	"service/membership":      {"service/api", "service/membership/view", "service/racks"},
	"service/membership/view": {"hierarchy", "service/racks"},
	"launch":                  {},
	"launch/control":          {"service/api"},
	"client":                  {"service/api", "client/lanes", "chunk", "numa", "verbs", "verbs/probe", "cgo"},
	"client/lanes":            {"client/failover", "chunk", "numa", "verbs", "cgo"},
	"client/failover":         {},
	"aggregate": {"hierarchy", "policy", "aggregate/reduce", "aggregate/session", "aggregate/optim", "chunk", "numa", "verbs",
		"cgo"},
	"aggregate/reduce":  {"chunk"},
	"aggregate/session": {"verbs", "chunk"},
	"aggregate/optim":   {"chunk"},
	"aggregate/racktest": {"aggregate", "aggregate/optim", "hierarchy", "client/lanes", "client/failover", "policy", "chunk", "numa",
		"verbs", "cgo"},
	"policy":          {},
	"hierarchy":       {"pqueue"},
	"chunk":           {},
	"doctor":          {"numa", "verbs"},
	"pqueue":          {},
	"rxe":             {},
	"numa":            {},
	"numa/numatest":   {},
	"verbs":           {"cgo"},
	"verbs/probe":     {"numa", "verbs"},
	"verbs/verbstest": {"verbs"},
	"cgo":             {"include"},
	"include":         {},
	"lab/racks":       {"bench", "bench/models", "bench/overlap", "hierarchy", "launch", "chunk", "verbs"},
	"lab": {"launch", "policy", "aggregate", "aggregate/optim", "aggregate/racktest", "client/lanes", "client/failover", "chunk",
		"numa", "verbs", "cgo"},
	"lab/attacks": {"launch", "service/api", "client", "chunk", "verbs"},
}

// tests lists what the tests of a room may import beyond what the room may, and beyond the rooms for tests.
var tests = map[string][]string{
	"bench":              {"service/racks"},
	"service":            {"client"},
	"service/membership": {"service", "client", "verbs"},
	"launch/control":     {"service"},
	"client":             {"service", "service/racks", "aggregate", "aggregate/optim"},
	"cgo":                {"chunk", "aggregate/optim", "numa", "verbs"},
	"include":            {"cgo", "numa"},
	"lab/attacks":        {"lab/racks"},
}

// forTests are the rooms that only tests import, and each other.
var forTests = []string{"aggregate/racktest", "numa/numatest", "verbs/verbstest", "lab", "lab/attacks"}

// only names the rooms that may import something from outside: the one door to it.
var only = map[string][]string{
	"C":                                 {"cgo"},
	"golang.org/x/sys/unix":             {"numa", "cgo", "service/door"},
	"github.com/Mellanox/rdmamap":       {"numa"},
	"github.com/klauspost/cpuid/v2":     {"numa", "cgo"},
	"github.com/vishvananda/netlink":    {"rxe"},
	"go.etcd.io/etcd/client/v3":         {"service/membership"},
	"go.etcd.io/etcd/server/v3/embed":   {"service/membership"},
	"github.com/cockroachdb/datadriven": forTests,
	"github.com/google/go-cmp/cmp":      forTests,
	"go.uber.org/goleak":                forTests,
	"pgregory.net/rapid":                forTests,
}

// pure are the rooms that compute and do nothing else: no input or output, clock, goroutine, lock or chance.
var pure = []string{"chunk", "policy", "hierarchy", "aggregate/optim", "aggregate/reduce", "client/failover", "bench/models",
	"bench/overlap", "pqueue", "service/membership/view"}

// computing is all that a pure room may import from outside the house. Of package time
// they use only durations, and moments that callers pass in.
var computing = []string{
	"bytes", "cmp", "container/heap", "crypto/sha256", "encoding/binary", "encoding/csv", "encoding/hex", "encoding/json", "errors",
	"fmt", "hash/crc32", "io", "iter", "maps", "math", "math/bits", "net/url", "slices", "sort", "strconv", "strings", "time",
	"github.com/agnivade/levenshtein",
}

// impure are the functions that would let a clock or goroutines in by the packages of computing.
var impure = regexp.MustCompile(`\btime\.(Now|Since|Until|Sleep|After|Tick|NewT)|^\s*go |\bmake\(chan\b|\bfmt\.(Print|Scan)`)

// includes lists which folders' C headers the C code of a folder may include, beside its own. It belongs to its longest match.
var includes = map[string][]string{
	"include":         {},
	"cgo/fabric":      {"cgo/fabric/base", "cgo/fabric/ibv", "cgo/fabric/shm", "cgo/fabric/sim", "cgo/fabric/tcp"},
	"cgo/fabric/base": {},
	"cgo/fabric/ibv":  {"cgo/fabric/base"},
	"cgo/fabric/shm":  {"cgo/fabric/base"},
	"cgo/fabric/sim":  {"cgo/fabric/base"},
	"cgo/fabric/tcp":  {"cgo/fabric/base"},
	"cgo/kernel":      {},
	"cgo/library":     {"include", "cgo/worker", "cgo/kernel", "cgo/fabric", "cgo/fabric/base"},
	"cgo/worker":      {"include", "cgo/kernel", "cgo/fabric", "cgo/fabric/base", "cgo/fabric/sim"},
}

const (
	maxColumns = 132 // a tab is one
	maxLines   = 600
)

// longText matches a string that no line has room for; to divide a message would hide it from a search.
var longText = regexp.MustCompile("\"[^\"]{60,}\"|`[^`]{60,}`?|^[^`]{60,}`")

// longest returns the key of a map that is a folder itself or the longest of those it lies in; "": none.
func longest[V any](in map[string]V, dir string) string {
	for ; dir != "." && dir != "/"; dir = path.Dir(dir) {
		if _, ok := in[dir]; ok {
			return dir
		}
	}
	return ""
}

// sources calls f with every file whose name matches one of patterns, but for what is built or generated.
func sources(t *testing.T, f func(name string, text []byte), patterns ...string) {
	t.Helper()
	files := 0
	err := filepath.WalkDir(".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if base := d.Name(); d.IsDir() {
			if name != "." && (strings.HasPrefix(base, ".") || base == "bin" || base == "build") {
				return fs.SkipDir
			}
			return nil
		}
		if !slices.ContainsFunc(patterns, func(p string) bool { ok, _ := path.Match(p, d.Name()); return ok }) {
			return nil
		}
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		if bytes.HasPrefix(text, []byte("// Code generated ")) {
			return nil
		}
		files++
		f(filepath.ToSlash(name), text)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if files < 20 {
		t.Fatalf("only %d files were looked at: run the test in the module's root", files)
	}
}

// imports returns what a Go file imports.
func imports(t *testing.T, name string, text []byte) (all []string) {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), name, text, parser.ImportsOnly)
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range f.Imports {
		p, err := strconv.Unquote(i.Path.Value)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
	return all
}

func TestEveryImportPointsDown(t *testing.T) {
	sources(t, func(name string, text []byte) {
		if path.Dir(name) == "." {
			return
		}
		room := longest(house, path.Dir(name))
		if room == "" {
			t.Errorf("%s lies in no room of the house: give its folder one here and in ARCHITECTURE.md", name)
			return
		}
		test := strings.HasSuffix(name, "_test.go")
		for _, p := range imports(t, name, text) {
			if rooms, ok := only[p]; ok && !slices.Contains(rooms, room) && !test {
				t.Errorf("%s imports %q, which only %v may", name, p, rooms)
			}
			inner, ours := strings.CutPrefix(p, module+"/")
			if !ours {
				continue
			}
			to := longest(house, inner)
			may := to == room || slices.Contains(house[room], to)
			switch isForTests := slices.Contains(forTests, to); {
			case test:
				may = may || isForTests || slices.Contains(tests[room], to)
			case isForTests:
				may = may && (slices.Contains(forTests, room) || room == "cmd")
			}
			if !may {
				t.Errorf("%s: %s may not import %s", name, room, to)
			}
		}
	}, "*.go")
}

func TestPureRoomsOnlyCompute(t *testing.T) {
	sources(t, func(name string, text []byte) {
		if strings.HasSuffix(name, "_test.go") || !slices.Contains(pure, longest(house, path.Dir(name))) {
			return
		}
		for _, p := range imports(t, name, text) {
			if !slices.Contains(computing, p) && !strings.HasPrefix(p, module) {
				t.Errorf("%s, of a pure room, imports %q: only computing may be done there", name, p)
			}
		}
		lines := bufio.NewScanner(bytes.NewReader(text))
		for n := 1; lines.Scan(); n++ {
			if found := impure.FindString(lines.Text()); found != "" {
				t.Errorf("%s:%d, of a pure room, has %q", name, n, found)
			}
		}
	}, "*.go")
}

func TestEveryIncludePointsDown(t *testing.T) {
	include := regexp.MustCompile(`(?m)^\s*#\s*include "([^"]+)"`)
	sources(t, func(name string, text []byte) {
		dir := path.Dir(name)
		from := longest(includes, dir)
		if from == "" || path.Base(dir) == "testdata" {
			return
		}
		for _, m := range include.FindAllSubmatch(text, -1) {
			target := path.Join(dir, string(m[1]))
			if _, err := os.Stat(target); err != nil {
				target = string(m[1]) // from the root, by -I
			}
			if to := longest(includes, path.Dir(target)); to != from && !slices.Contains(includes[from], to) {
				t.Errorf("%s: C code of %s may not include %s", name, from, target)
			}
		}
	}, "*.c", "*.h", "*.go")
}

func TestFilesAndLinesAreShort(t *testing.T) {
	sources(t, func(name string, text []byte) {
		n := 0
		for line := range bytes.Lines(text) {
			n++
			columns := utf8.RuneCount(bytes.TrimRight(line, "\n"))
			if columns > maxColumns && !longText.Match(line) {
				t.Errorf("%s:%d has %d columns: use at most %d", name, n, columns, maxColumns)
			}
		}
		if n > maxLines {
			t.Errorf("%s has %d lines: divide it, none should have more than %d", name, n, maxLines)
		}
	}, "*.go", "*.c", "*.h", "*.proto", "*.py", "*.sh", "Makefile")
}
