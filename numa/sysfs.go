package numa

import (
	"cmp"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// tree reads sysfs and procfs below a root: the machine's own, or a captured one. Paths are relative to it. Files that cannot be
// read give zero values, because kernels differ in their files.
type tree struct{ root string }

func openTree(root string) (tree, error) {
	root, err := filepath.EvalSymlinks(cmp.Or(root, "/"))
	if err != nil {
		return tree{}, err
	}
	root, err = filepath.Abs(root)
	return tree{root}, err
}

// own reports whether this is the machine's own tree, so that its CPU's answers belong to it.
func (t tree) own() bool { return t.root == "/" }

func (t tree) path(p string) string { return filepath.Join(t.root, p) }

func (t tree) exists(p string) bool {
	_, err := os.Stat(t.path(p))
	return err == nil
}

// text returns a file's content without surrounding white space.
func (t tree) text(p string) string {
	b, err := os.ReadFile(t.path(p))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// number returns the integer in a file. ok is false if the file holds none.
func (t tree) number(p string) (n int64, ok bool) {
	n, err := strconv.ParseInt(t.text(p), 10, 64)
	return n, err == nil
}

func (t tree) cpus(p string) CPUSet {
	set, err := ParseCPUs(t.text(p))
	if err != nil {
		return nil
	}
	return set
}

// field returns the rest of the line with a name and its separator, "name:" in /proc/meminfo and /proc/self/status.
func (t tree) field(p, name string) string {
	for line := range strings.Lines(t.text(p)) {
		if _, value, ok := strings.Cut(line, name); ok {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// kib returns the bytes of a field that is given in kB, or 0 without such a field.
func (t tree) kib(p, name string) int64 {
	n, _ := strconv.ParseInt(strings.TrimSuffix(t.field(p, name+":"), " kB"), 10, 64)
	return n << 10
}

// figure returns the number at the start of a file, as in "16.0 GT/s PCIe". It is 0 if the number is not between 0 and most.
func (t tree) figure(p string, most float64) float64 {
	number, _, _ := strings.Cut(t.text(p), " ")
	v, err := strconv.ParseFloat(number, 64)
	if err != nil || !(v > 0 && v <= most) {
		return 0
	}
	return v
}

// chosen returns the word in brackets of a file that lists its choices, as in "always [madvise] never".
func (t tree) chosen(p string) string {
	_, after, _ := strings.Cut(t.text(p), "[")
	word, _, _ := strings.Cut(after, "]")
	return word
}

// names lists a directory in natural order, in which node2 comes before node10.
func (t tree) names(dir string) []string {
	entries, err := os.ReadDir(t.path(dir))
	if err != nil {
		return nil
	}
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name()
	}
	slices.SortFunc(names, compareNatural)
	return names
}

// resolve follows the symbolic links of a path. The result is relative to the root, or empty if the path leads nowhere.
func (t tree) resolve(p string) string {
	full, err := filepath.EvalSymlinks(t.path(p))
	if err != nil {
		return ""
	}
	rel, err := filepath.Rel(t.root, full)
	if err != nil || strings.HasPrefix(rel, "..") {
		return ""
	}
	return rel
}

// link returns the last element of a symbolic link's target.
func (t tree) link(p string) string {
	target, err := os.Readlink(t.path(p))
	if err != nil {
		return ""
	}
	return filepath.Base(target)
}

var digits = regexp.MustCompile(`[0-9]+`)

// compareNatural orders names and compares runs of digits by value.
func compareNatural(a, b string) int {
	const width = 20 // of a number that any name has
	padded := func(name string) string {
		return digits.ReplaceAllStringFunc(name, func(n string) string { return strings.Repeat("0", max(0, width-len(n))) + n })
	}
	return cmp.Compare(padded(a), padded(b))
}
