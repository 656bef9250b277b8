// Package rackweave has no code of its own: its tests hold the house, the directions in which packages may import each other and
// the rules that every source file keeps.
package rackweave

import (
	"bufio"
	"bytes"
	"go/ast"
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
	"cmd": {"bench", "bench/models", "bench/rows", "bench/study", "policy", "hierarchy", "hierarchy/planner", "launch",
		"launch/control", "service", "service/api", "service/etcd", "service/keys", "service/membership", "service/racks", "client",
		"aggregate", "aggregate/optim", "chunk", "codec", "data/cluster", "data/manifest", "data/table", "doctor", "rxe", "numa", "verbs",
		"cgo"},
	"cmd/rackweave-etcd": {"service/etcd/server"},
	"bench": {"bench/models", "bench/rows", "hierarchy", "hierarchy/outer", "policy", "launch", "client", "service/api",
		"aggregate/optim", "aggregate/outer", "chunk", "codec", "numa", "verbs", "cgo"},
	"bench/models": {"chunk"},
	"bench/rows":   {"chunk"},
	"service": {"service/api", "service/checkpoint", "service/cluster", "service/data", "service/door", "service/engine",
		"service/job", "service/keys", "service/observe", "service/quota", "service/racks", "service/rpc", "policy", "aggregate",
		"aggregate/lane", "data", "data/manifest", "chunk", "numa", "verbs"},
	"service/data": {"service/api", "service/rpc", "data", "data/manifest"},
	"service/checkpoint": {"service/api", "service/checkpoint/format", "service/job", "service/quota", "service/rpc",
		"aggregate", "chunk"},
	"service/checkpoint/format": {"service/api", "hierarchy"},
	"service/cluster": {"service/api", "service/engine", "service/job", "service/racks", "service/rpc", "hierarchy",
		"hierarchy/outer", "hierarchy/planner", "aggregate", "chunk", "codec", "verbs", "verbs/probe"},
	"service/engine": {"service/api", "service/quota", "service/rpc", "aggregate", "aggregate/lane", "chunk", "numa", "verbs"},
	"service/job": {"service/api", "service/door", "service/engine", "service/quota", "service/rpc", "hierarchy/outer", "policy",
		"policy/ratecontrol", "aggregate", "aggregate/optim", "chunk", "codec", "numa", "verbs"},
	"service/observe":         {"service/api", "service/job", "service/rpc", "aggregate", "chunk", "numa"},
	"service/rpc":             {},
	"service/api":             {},
	"service/door":            {},
	"service/quota":           {},
	"service/keys":            {},
	"service/racks":           {"chunk", "codec", "hierarchy", "hierarchy/outer"},
	"service/etcd":            {"launch"},
	"service/etcd/server":     {"service/etcd"},
	"service/membership":      {"service/api", "service/etcd", "service/membership/view", "service/racks"},
	"service/membership/view": {"hierarchy", "service/racks"},
	"launch":                  {},
	"launch/control":          {"launch", "client/membership", "service/api"},
	"client": {"client/data", "client/lanes", "client/membership", "service/api", "chunk", "codec", "numa", "verbs",
		"cgo"},
	"client/membership": {"service/api", "chunk"},
	"client/data":       {"client/membership", "service/api"},
	"client/lanes":      {"client/failover", "chunk", "numa", "verbs", "cgo"},
	"client/failover":   {},
	"aggregate": {"hierarchy", "hierarchy/outer", "policy", "aggregate/failure", "aggregate/lane", "aggregate/optim",
		"aggregate/outer", "aggregate/pace", "aggregate/reduce", "aggregate/shard", "aggregate/store", "aggregate/uplink", "chunk",
		"codec", "numa", "verbs"},
	"aggregate/failure": {},
	"aggregate/lane":    {"aggregate/reduce", "aggregate/session", "numa", "verbs"},
	"aggregate/outer":   {"aggregate/optim", "aggregate/store", "hierarchy/outer", "cgo"},
	"aggregate/pace":    {"aggregate/reduce", "policy", "chunk"},
	"aggregate/reduce":  {"chunk"},
	"aggregate/session": {"verbs", "chunk"},
	"aggregate/shard": {"aggregate/failure", "aggregate/lane", "aggregate/optim", "aggregate/pace", "aggregate/reduce",
		"aggregate/session", "aggregate/store", "chunk", "codec", "verbs", "cgo"},
	"aggregate/store": {"aggregate/optim", "chunk", "codec", "numa", "verbs", "cgo"},
	"aggregate/uplink": {"aggregate/failure", "aggregate/lane", "aggregate/reduce", "aggregate/session", "aggregate/store",
		"hierarchy", "chunk", "codec", "verbs", "cgo"},
	"aggregate/optim": {"chunk"},
	"aggregate/racktest": {"aggregate", "aggregate/lane", "aggregate/optim", "aggregate/outer", "hierarchy", "hierarchy/outer",
		"client/lanes", "client/failover", "policy", "chunk", "codec", "numa", "verbs", "cgo"},
	"policy":             {},
	"policy/ratecontrol": {},
	"hierarchy":          {},
	"hierarchy/outer":    {"hierarchy"},
	"hierarchy/planner":  {"hierarchy"},
	"chunk":              {},
	"codec":              {},
	"data":               {},
	"data/cluster":       {},
	"data/manifest":      {"data", "data/npy"},
	"data/npy":           {},
	"data/table":         {"data/npy"},
	"doctor":             {"numa", "verbs"},
	"pqueue":             {},
	"rxe":                {},
	"numa":               {},
	"numa/numatest":      {},
	"verbs":              {"cgo"},
	"verbs/probe":        {"numa", "verbs"},
	"verbs/verbstest":    {"verbs"},
	"cgo":                {"include"},
	"include":            {},
	"lab/racks": {"bench", "bench/models", "lab/study/overlap", "lab/study/transfers", "hierarchy", "hierarchy/planner", "launch",
		"chunk", "verbs"},
	"lab": {"launch", "policy", "aggregate", "aggregate/optim", "aggregate/racktest", "client/lanes", "client/failover", "chunk",
		"codec", "numa", "verbs", "cgo"},
	"bench/study": {"bench", "data", "data/cluster", "data/manifest", "pqueue", "hierarchy/outer", "policy", "policy/ratecontrol",
		"codec", "client", "client/data", "service"},
	"lab/study":           {"bench/models", "lab/study/overlap", "lab/study/transfers", "hierarchy", "hierarchy/planner", "chunk"},
	"lab/study/overlap":   {"bench/models", "pqueue"},
	"lab/study/transfers": {"hierarchy", "hierarchy/planner", "pqueue"},
	"lab/cmd":             {"lab", "lab/racks", "lab/study", "bench/study", "bench", "bench/models", "hierarchy/planner"},
	"lab/attacks":         {"launch", "service/api", "client", "chunk", "verbs"},
}

// tests lists what the tests of a room may import beyond what the room may, and beyond the rooms for tests.
var tests = map[string][]string{
	"aggregate":          {"cgo"},
	"aggregate/lane":     {"cgo"},
	"bench":              {"service", "service/racks"},
	"service":            {"client", "codec", "hierarchy/planner"},
	"service/membership": {"service", "service/etcd/server", "client", "verbs"},
	"cmd":                {"service/etcd/server", "data"},
	"launch/control":     {"service"},
	"client/data":        {"data"},
	"client":             {"service", "service/racks", "aggregate", "aggregate/optim"},
	"cgo":                {"chunk", "codec", "aggregate/optim", "numa", "verbs"},
	"include":            {"cgo"},
	"lab/attacks":        {"lab/racks"},
	"policy/ratecontrol": {"codec"},
}

// forTests are the rooms that only tests import, and each other.
var forTests = []string{"aggregate/racktest", "numa/numatest", "verbs/verbstest", "lab", "lab/attacks"}

// only names the rooms that may import something from outside: the one door to it.
var only = map[string][]string{
	"C":                                 {"cgo"},
	"golang.org/x/sys/unix":             {"numa", "numa/numatest", "cgo", "service/door"},
	"github.com/klauspost/cpuid/v2":     {"numa"},
	"github.com/vishvananda/netlink":    {"rxe"},
	"gonum.org/v1/gonum/mat":            {"data/cluster"},
	"gonum.org/v1/plot":                 {"lab/cmd"},
	"gonum.org/v1/plot/plotter":         {"lab/cmd"},
	"gonum.org/v1/plot/plotutil":        {"lab/cmd"},
	"gonum.org/v1/plot/vg":              {"lab/cmd"},
	"github.com/parquet-go/parquet-go":  {"data/table"},
	"gonum.org/v1/plot/vg/draw":         {"lab/cmd"},
	"go.etcd.io/etcd/client/v3":         {"service/membership"},
	"go.etcd.io/etcd/server/v3/embed":   {"service/etcd/server"},
	"github.com/cockroachdb/datadriven": forTests,
	"github.com/google/go-cmp/cmp":      forTests,
	"go.uber.org/goleak":                forTests,
	"pgregory.net/rapid":                forTests,
}

// pure are the rooms that compute and do nothing else: no input or output, clock, goroutine, lock or chance.
var pure = []string{
	"chunk", "codec", "data", "data/npy", "policy", "policy/ratecontrol", "hierarchy", "hierarchy/outer", "hierarchy/planner",
	"aggregate/optim", "aggregate/reduce", "client/failover", "bench/models", "lab/study/overlap", "lab/study/transfers", "pqueue",
	"service/membership/view",
}

// computing is all that a pure room may import from outside the house. Of package time
// they use only durations, and moments that callers pass in.
var computing = []string{
	"bytes", "cmp", "container/heap", "crypto/sha256", "encoding/binary", "encoding/hex", "encoding/json", "errors",
	"fmt", "hash/crc32", "io", "iter", "maps", "math", "math/bits", "net/url", "regexp", "slices", "sort", "strconv", "strings",
	"time", "github.com/agnivade/levenshtein",
}

// impure are the functions that would let a clock or goroutines in by the packages of computing.
var impure = regexp.MustCompile(`\btime\.(Now|Since|Until|Sleep|After|Tick|NewT)|^\s*go |\bmake\(chan\b|\bfmt\.(Print|Scan)`)

// includes lists which folders' C headers the C code of a folder may include, beside its own. It belongs to its longest match.
var includes = map[string][]string{
	"include":              {},
	"cgo/fabric":           {"cgo/fabric/base", "cgo/fabric/ibv", "cgo/fabric/shm", "cgo/fabric/tcp"},
	"cgo/fabric/base":      {},
	"cgo/fabric/ibv":       {"cgo/fabric/base"},
	"cgo/fabric/shm":       {"cgo/fabric/base"},
	"cgo/fabric/simfabric": {"cgo/fabric", "cgo/fabric/base"},
	"cgo/fabric/tcp":       {"cgo/fabric/base"},
	"cgo/kernel":           {},
	"cgo/library":          {"include", "cgo/worker", "cgo/kernel", "cgo/fabric", "cgo/fabric/base"},
	"cgo/worker":           {"include", "cgo/kernel", "cgo/fabric", "cgo/fabric/base"},
}

// plain tells which rooms keep the rules of English below. A path belongs to its longest matching room.
var plain = map[string]bool{
	"aggregate": true, "hierarchy": true, "policy": true, "chunk": true, "codec": true, "data": true, "pqueue": true, "numa": true,
	"verbs":  true,
	"doctor": true, "rxe": true, "launch": true, "cgo/kernel": true, "cgo/worker": true, "cgo/fabric": true,
	"lab/plant": true, "lab/simrack": true, "cgo/library": true, "bench": true,
	"service": true, "client": true, "cmd": true, "include": true, "lab": true, "examples": true,
}

// english lists expressions that plain rooms avoid in comments and messages, each with its remedy.
var english = []struct {
	avoid  *regexp.Regexp
	remedy string
}{
	{regexp.MustCompile(`\b(is|are|was|were) (what|how|where|who|whom|whose|whether)\b`), "begin with returns, reports, holds, or a noun"},
	{regexp.MustCompile(`\b(say|tell)(s|ing)? (what|how|where|who|whom|whose)\b`), "name the value that is returned or described"},
	{regexp.MustCompile(`\b[Tt]akes? note\b|\b[Ll]ets? go (of|with)\b`), "write marks, records, frees or drops"},
	{regexp.MustCompile(`\b[Tt]hose (that|which|who|whose|of which)\b`), "repeat the noun"},
	{regexp.MustCompile(`\b(is|are) no [a-z]+\b|\b(is|are) none\b|\bany more\b`), "write is not a, has none, or no longer"},
	{regexp.MustCompile(`(^|[;,.(] ?)(-1|0|NULL|[Nn]il|[Nn]one|[Ee]mpty|[Nn]egative): `), "write If nil, …"},
	{regexp.MustCompile(`\b(is|are) to (be|have|do|get|make|come|go|send|take|end)\b`), "write must or will, or use the verb"},
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
				may = may && (slices.Contains(forTests, room) || room == "lab/cmd")
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
	sources(t, func(name string, text []byte) {
		dir := path.Dir(name)
		from := longest(includes, dir)
		if from == "" || path.Base(dir) == "testdata" {
			return
		}
		for _, m := range quoted.FindAllSubmatch(text, -1) {
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

func TestPlainRoomsKeepToPlainEnglish(t *testing.T) {
	sources(t, func(name string, text []byte) {
		if !plain[longest(plain, path.Dir(name))] || strings.HasSuffix(name, "_test.go") {
			return
		}
		for line, words := range prose(t, name, text) {
			for _, rule := range english {
				if found := rule.avoid.FindString(words); found != "" {
					t.Errorf("%s:%d has %q: %s", name, line, found, rule.remedy)
				}
			}
		}
	}, "*.go", "*.c", "*.h")
}

// cProse matches C's comments and strings.
var cProse = regexp.MustCompile(`(?s)/\*.*?\*/|"(?:[^"\\\n]|\\.)*"`)

// prose returns the comments and strings of a file, by line, each without its line breaks.
func prose(t *testing.T, name string, text []byte) map[int]string {
	t.Helper()
	all := map[int]string{}
	add := func(line int, s string) {
		for _, mark := range []string{"//", "/*", "*/", " * "} {
			s = strings.ReplaceAll(s, mark, " ")
		}
		all[line] += " " + strings.Join(strings.Fields(s), " ")
	}
	if !strings.HasSuffix(name, ".go") {
		for _, m := range cProse.FindAllIndex(text, -1) {
			add(1+bytes.Count(text[:m[0]], []byte("\n")), string(text[m[0]:m[1]]))
		}
		return all
	}
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, name, text, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	for _, group := range f.Comments {
		for _, c := range group.List {
			add(fset.Position(group.Pos()).Line, c.Text)
		}
	}
	ast.Inspect(f, func(n ast.Node) bool {
		if l, ok := n.(*ast.BasicLit); ok && l.Kind == token.STRING {
			add(fset.Position(l.Pos()).Line, l.Value)
		}
		return true
	})
	return all
}
