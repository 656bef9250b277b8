// Package numatest holds captured machines: the sysfs and procfs files of test machines that package numa reads.
package numatest

import (
	"embed"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

//go:embed machines
var machines embed.FS

// Machines lists the captured machines by name.
func Machines(t testing.TB) []string {
	t.Helper()
	entries, err := machines.ReadDir("machines")
	if err != nil || len(entries) == 0 {
		t.Fatalf("no captured machines: %v", err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// Root expands a captured machine into a folder, which lasts as long as the test. It returns the folder.
func Root(t testing.TB, machine string) string {
	t.Helper()
	text, err := machines.ReadFile("machines/" + machine)
	if err != nil {
		t.Fatal(err)
	}
	return Expand(t, string(text))
}

// Expand writes a tree in the form of capture.sh into a folder and returns it: "path = content" with \n for a newline,
// "path -> target" for symbolic links, cpu{0-3,8} in a path for several. Lines that start with # are comments.
func Expand(t testing.TB, text string) string {
	t.Helper()
	root := t.TempDir()
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		if line == "" || line[0] == '#' {
			continue
		}
		if name, content, ok := strings.Cut(line, " ="); ok {
			content = strings.ReplaceAll(strings.TrimPrefix(content, " "), `\n`, "\n") + "\n"
			for _, p := range braces(t, name) {
				plant(t, filepath.Join(root, p), func(full string) error { return os.WriteFile(full, []byte(content), 0o644) })
			}
		} else if name, target, ok := strings.Cut(line, " -> "); ok {
			plant(t, filepath.Join(root, name), func(full string) error { return os.Symlink(target, full) })
		} else {
			t.Fatalf("neither a file nor a link: %q", line)
		}
	}
	return root
}

func plant(t testing.TB, full string, make func(string) error) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := make(full); err != nil {
		t.Fatal(err)
	}
}

// braces returns the paths for which a path with a list of numbers in braces stands.
func braces(t testing.TB, name string) []string {
	t.Helper()
	before, rest, ok := strings.Cut(name, "{")
	if !ok {
		return []string{name}
	}
	list, after, _ := strings.Cut(rest, "}")
	var names []string
	for span := range strings.SplitSeq(list, ",") {
		from, to, isRange := strings.Cut(span, "-")
		if !isRange {
			to = from
		}
		first, err := strconv.Atoi(from)
		last, err2 := strconv.Atoi(to)
		if err != nil || err2 != nil {
			t.Fatalf("%q is not a list of numbers", list)
		}
		for n := first; n <= last; n++ {
			names = append(names, before+strconv.Itoa(n)+after)
		}
	}
	return names
}
