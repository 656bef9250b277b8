// Package rackweave has no code of its own: this test holds the house, the directions in which packages may import each other.
package rackweave

import (
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/rackweave/rackweave"

// house lists the rooms and what each may import of the others. A path belongs to its longest matching room.
var house = map[string][]string{
	"cmd":             {"bench", "bench/models", "launch", "service", "service/api", "client", "aggregate", "aggregate/optim", "chunk", "numa", "verbs", "cgo", "lab"},
	"bench":           {"bench/models", "launch", "client", "service", "service/api", "aggregate", "aggregate/optim", "chunk", "numa", "verbs", "cgo"},
	"bench/models":    {"chunk"},
	"service":         {"service/api", "aggregate", "aggregate/optim", "chunk", "numa", "verbs"},
	"service/api":     {},
	"launch":          {},
	"client":          {"service/api", "client/lanes", "chunk", "numa", "verbs", "cgo"},
	"client/lanes":    {"client/failover", "chunk", "numa", "verbs", "cgo"},
	"client/failover": {},
	"aggregate":       {"aggregate/optim", "chunk", "numa", "verbs", "cgo"},
	"aggregate/optim": {"chunk"},
	"chunk":           {},
	"numa":            {},
	"verbs":           {"cgo"},
	"cgo":             {},
	"lab":             {"aggregate", "aggregate/optim", "chunk", "numa", "verbs", "cgo"},
}

// only names the rooms that may import something from outside: the one door to it.
var only = map[string][]string{
	"C":                              {"cgo"},
	"golang.org/x/sys/unix":          {"numa", "cgo"},
	"github.com/Mellanox/rdmamap":    {"numa"},
	"github.com/vishvananda/netlink": {"numa"},
}

// roomOf returns the room of a path inside the module.
func roomOf(path string) string {
	for path != "." && path != "/" && path != "" {
		if _, ok := house[path]; ok {
			return path
		}
		path = filepath.Dir(path)
	}
	return ""
}

func TestEveryImportPointsDown(t *testing.T) {
	files := 0
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || filepath.Dir(path) == "." {
			return err
		}
		room := roomOf(filepath.ToSlash(filepath.Dir(path)))
		if room == "" {
			t.Errorf("%s lies in no room of the house: give its folder one here and in ARCHITECTURE.md", path)
			return nil
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		files++
		test := strings.HasSuffix(path, "_test.go")
		for _, imp := range f.Imports {
			name, err := strconv.Unquote(imp.Path.Value)
			if err != nil {
				return err
			}
			if rooms, ok := only[name]; ok && !slices.Contains(rooms, room) && !test {
				t.Errorf("%s imports %q, which only %v may", path, name, rooms)
			}
			inner, ours := strings.CutPrefix(name, module+"/")
			if !ours {
				continue
			}
			if to := roomOf(inner); to != room && !slices.Contains(house[room], to) && !test {
				t.Errorf("%s: %s may not import %s", path, room, to)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if files < 50 {
		t.Fatalf("only %d files were looked at: run the test in the module's root", files)
	}
}
