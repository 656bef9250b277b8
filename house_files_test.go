package rackweave

import (
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// A reader follows a file downward only: the files of these rooms use each other in no circle.
func TestFilesOfARoomFormNoCircle(t *testing.T) {
	rooms := []string{
		"aggregate", "aggregate/reduce", "aggregate/session", "aggregate/optim", "aggregate/racktest",
		"client/failover", "hierarchy", "hierarchy/outer", "hierarchy/planner", "launch", "launch/control",
		"policy/ratecontrol", "rxe", "service/membership/view", "verbs",
	}
	for _, room := range rooms {
		t.Run(room, func(t *testing.T) {
			uses := fileUses(t, room)
			for file := range uses {
				if path := pathTo(uses, file, file, map[string]bool{}); path != nil {
					t.Errorf("these files use each other in a circle: %s", strings.Join(path, " -> "))
					return
				}
			}
		})
	}
}

// fileUses tells, by file of a package, in which other files of it the names that it uses are defined.
func fileUses(t *testing.T, room string) map[string]map[string]bool {
	t.Helper()
	fset := token.NewFileSet()
	names, err := filepath.Glob(filepath.Join(room, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	var files []*ast.File
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(fset, name, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, f)
	}
	if len(files) == 0 {
		t.Fatalf("no files in %s", room)
	}
	// Names of other packages stay unresolved, which is an error to the checker and nothing to us.
	info := &types.Info{Uses: map[*ast.Ident]types.Object{}}
	conf := types.Config{Importer: nothing{}, Error: func(error) {}, FakeImportC: true}
	pkg, _ := conf.Check(room, fset, files, info)
	uses := map[string]map[string]bool{}
	for ident, obj := range info.Uses {
		from, to := fset.Position(ident.Pos()).Filename, fset.Position(obj.Pos()).Filename
		if obj.Pkg() != pkg || from == to || to == "" {
			continue
		}
		from, to = filepath.Base(from), filepath.Base(to)
		if uses[from] == nil {
			uses[from] = map[string]bool{}
		}
		uses[from][to] = true
	}
	return uses
}

type nothing struct{}

func (nothing) Import(path string) (*types.Package, error) {
	p := types.NewPackage(path, filepath.Base(path))
	p.MarkComplete()
	return p, nil
}

// pathTo finds a way from one file to another along their uses.
func pathTo(uses map[string]map[string]bool, from, to string, seen map[string]bool) []string {
	var next []string
	for file := range uses[from] {
		next = append(next, file)
	}
	slices.Sort(next)
	for _, file := range next {
		if file == to {
			return []string{from, to}
		}
		if seen[file] {
			continue
		}
		seen[file] = true
		if path := pathTo(uses, file, to, seen); path != nil {
			return append([]string{from}, path...)
		}
	}
	return nil
}
