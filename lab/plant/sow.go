package plant

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"slices"
	"strings"
)

// seed is a plant with its number.
type seed struct {
	Plant
	number int
}

// sown is a file's text with bugs in it.
type sown struct {
	text, pkg string
}

// variable returns a file that reads the number of the active bug.
func (s *sown) variable() string {
	return fmt.Sprintf("package %s\n\nimport (\n\t\"os\"\n\t\"strconv\"\n)\n\nvar planted, _ = strconv.Atoi(os.Getenv(%q))\n",
		s.pkg, variable)
}

// sow gives each function with a bug a twin with the bug. The function calls its twin if the bug is active. So one build holds all
// bugs, even several in one place.
func sow(name, text string, seeds []seed) (*sown, error) {
	files := token.NewFileSet()
	parsed, err := parser.ParseFile(files, name, text, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	at := func(p token.Pos) int { return files.Position(p).Offset }
	source := func(n ast.Node) string { return text[at(n.Pos()):at(n.End())] }
	calls, twins := make(map[int]string), "" // calls by their position
	for _, s := range seeds {
		if n := strings.Count(text, s.Old); n != 1 {
			return nil, fmt.Errorf("%s has %q %d times: change the plant so that it names one place", name, s.Old, n)
		}
		begin := strings.Index(text, s.Old)
		end := begin + len(s.Old)
		i := slices.IndexFunc(parsed.Decls, func(d ast.Decl) bool {
			f, ok := d.(*ast.FuncDecl)
			return ok && f.Body != nil && at(f.Body.Lbrace) < begin && end <= at(f.Body.Rbrace)
		})
		if i < 0 {
			return nil, fmt.Errorf("%s has %q in no function: change the plant so that it stands in one", name, s.Old)
		}
		f := parsed.Decls[i].(*ast.FuncDecl)
		twin := fmt.Sprint(f.Name.Name, "Planted", s.number)
		calls[at(f.Body.Lbrace)+1] += fmt.Sprintf(" if planted == %d { %s };", s.number, calling(f, twin, source))
		twins += "\n" + text[at(f.Pos()):at(f.Name.Pos())] + twin + text[at(f.Name.End()):begin] + s.New + text[end:at(f.End())] + "\n"
	}
	for _, place := range slices.Backward(slices.Sorted(maps.Keys(calls))) {
		text = text[:place] + calls[place] + text[place:]
	}
	return &sown{text + twins, parsed.Name.Name}, nil
}

func isC(file string) bool { return strings.HasSuffix(file, ".c") }

// sowC replaces each place by one that has the bug if it is active.
func sowC(name, text string, seeds []seed) (*sown, error) {
	for _, s := range seeds {
		if n := strings.Count(text, s.Old); n != 1 {
			return nil, fmt.Errorf("%s has %q %d times: change the plant so that it names one place", name, s.Old, n)
		}
		text = strings.Replace(text, s.Old, strings.ReplaceAll(s.New, "PLANTED", fmt.Sprintf("(planted() == %d)", s.number)), 1)
	}
	const function = `#include <stdlib.h>
static int planted_bug;
__attribute__((constructor)) static void activate(void) { const char *s = getenv(%q); planted_bug = s ? atoi(s) : 0; }
static int planted(void) { return planted_bug; }
`
	return &sown{text: fmt.Sprintf(function, variable) + text}, nil
}

// calling returns statements that call a function's twin and return its results.
func calling(f *ast.FuncDecl, twin string, source func(ast.Node) string) string {
	call := append(arguments(f.Recv, source), twin)
	statement := fmt.Sprintf("%s(%s)", strings.Join(call, "."), strings.Join(arguments(f.Type.Params, source), ", "))
	if f.Type.Results == nil {
		return statement + "; return"
	}
	return "return " + statement
}

// arguments lists parameters as a call passes them on, or any value for unnamed ones, because they are not used.
func arguments(fields *ast.FieldList, source func(ast.Node) string) (args []string) {
	if fields == nil {
		return nil
	}
	for _, p := range fields.List {
		_, variadic := p.Type.(*ast.Ellipsis)
		names := p.Names
		if names == nil {
			names = []*ast.Ident{{Name: "_"}}
		}
		for _, n := range names {
			switch {
			case n.Name != "_" && variadic:
				args = append(args, n.Name+"...")
			case n.Name != "_":
				args = append(args, n.Name)
			case !variadic:
				args = append(args, "*new("+source(p.Type)+")")
			}
		}
	}
	return args
}
