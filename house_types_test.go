package rackweave

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path"
	"strings"
	"testing"
)

// bounds limits the methods and fields of a type.
type bounds struct{ methods, fields int }

// large lists the types that have bounds of their own: machines that are one thing each, and types that are still to be cut, whose
// bounds only ever fall.
var large = map[string]bounds{
	"aggregate/reduce.Machine": {60, 25},
	"hierarchy.Reducer":        {60, 25},
}

func TestTypesAreSmall(t *testing.T) {
	sizes := typeSizes(t)
	for name, is := range sizes {
		most, ok := large[name]
		if !ok {
			most = bounds{40, 25}
		}
		if is.methods > most.methods {
			t.Errorf("%s has %d methods: use at most %d", name, is.methods, most.methods)
		}
		if is.fields > most.fields {
			t.Errorf("%s has %d fields: use at most %d", name, is.fields, most.fields)
		}
	}
	for name := range large {
		if is := sizes[name]; is.methods <= 40 && is.fields <= 25 {
			t.Errorf("%s needs no bounds of its own", name)
		}
	}
}

// typeSizes returns the sizes of all types, without those of tests, test rigs and generated files, by package and name.
func typeSizes(t *testing.T) map[string]bounds {
	t.Helper()
	sizes := map[string]bounds{}
	add := func(dir, name string, methods, fields int) {
		key := dir + "." + name
		is := sizes[key]
		sizes[key] = bounds{is.methods + methods, is.fields + fields}
	}
	sources(t, func(name string, text []byte) {
		dir := path.Dir(name)
		if strings.HasSuffix(name, "_test.go") || strings.HasPrefix(dir, "lab") || strings.HasSuffix(dir, "test") {
			return
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, text, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if d.Recv != nil {
					add(dir, receiver(d.Recv.List[0].Type), 1, 0)
				}
			case *ast.GenDecl:
				for _, s := range d.Specs {
					if ts, ok := s.(*ast.TypeSpec); ok {
						if st, ok := ts.Type.(*ast.StructType); ok {
							add(dir, ts.Name.Name, 0, st.Fields.NumFields())
						}
					}
				}
			}
		}
	}, "*.go")
	return sizes
}

// receiver returns the name of a method's type.
func receiver(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return receiver(e.X)
	case *ast.IndexExpr:
		return receiver(e.X)
	case *ast.IndexListExpr:
		return receiver(e.X)
	case *ast.Ident:
		return e.Name
	}
	return ""
}
