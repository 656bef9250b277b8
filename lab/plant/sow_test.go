package plant

import (
	"strings"
	"testing"
)

const field = `package field

var most = 3

func (c *counter) add(n int, more ...int) (sum int) {
	c.n += n
	return c.n
}

func (c *counter) reset() { c.n = 0 }

func half(int) bool { return true }
`

func TestABugSleepsInATwinOfItsFunction(t *testing.T) {
	got, err := sow("field.go", field, []seed{
		{Plant{Old: "c.n += n", New: "c.n -= n"}, 1},
		{Plant{Old: "return c.n\n", New: "return n\n"}, 2},
		{Plant{Old: "c.n = 0", New: "c.n = 1"}, 3},
		{Plant{Old: "true", New: "false"}, 4},
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"(sum int) { if planted == 1 { return c.addPlanted1(n, more...) }; if planted == 2 { return c.addPlanted2(n, more...) };\n\tc.n += n\n",
		"\nfunc (c *counter) addPlanted1(n int, more ...int) (sum int) {\n\tc.n -= n\n\treturn c.n\n}\n",
		"\nfunc (c *counter) addPlanted2(n int, more ...int) (sum int) {\n\tc.n += n\n\treturn n\n}\n",
		"\nfunc (c *counter) reset() { if planted == 3 { c.resetPlanted3(); return }; c.n = 0 }\n",
		"\nfunc half(int) bool { if planted == 4 { return halfPlanted4(*new(int)) }; return true }\n",
		"\nfunc (c *counter) resetPlanted3() { c.n = 1 }\n",
	} {
		if !strings.Contains(got.text, want) {
			t.Errorf("the text has no %q:\n%s", want, got.text)
		}
	}
	if want := "package field\n"; !strings.HasPrefix(got.variable(), want) {
		t.Errorf("the variable's file begins with %q, want %q", got.variable(), want)
	}
}

func TestABugThatCannotBePlantedIsRefused(t *testing.T) {
	for _, c := range []struct{ old, want string }{
		{"c.m", "0 times"},
		{"c.n", "3 times"},
		{"most = 3", "in no function"},
	} {
		if _, err := sow("field.go", field, []seed{{Plant{Old: c.old}, 1}}); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: got %v, want an error with %q", c.old, err, c.want)
		}
	}
}
