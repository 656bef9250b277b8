package rackweave

import (
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	notCode    = regexp.MustCompile(`(?s)/\*.*?\*/|//[^\n]*|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'`)
	tag        = regexp.MustCompile(`\b(struct|enum|union) \w+`)
	identifier = regexp.MustCompile(`[A-Za-z_]\w*`)
	// A function or a variable at the beginning of a line, with a body or a value.
	definition = regexp.MustCompile(`(?m)^[A-Za-z_][\w \t*]*?\b(\w+)(?:\([^;{}]*\)\s*\{|(?:\[\w*\])* = )`)
)

// arrowsOfC returns, for each C file of the rooms in includes, the files whose functions and variables it names.
func arrowsOfC(t *testing.T) map[string][]string {
	t.Helper()
	names, definer := map[string][]string{}, map[string]string{}
	sources(t, func(name string, text []byte) {
		if longest(includes, path.Dir(name)) == "" || path.Base(path.Dir(name)) == "testdata" {
			return
		}
		code := notCode.ReplaceAllString(string(text), " ")
		names[name] = identifier.FindAllString(tag.ReplaceAllString(code, " "), -1)
		for _, m := range definition.FindAllStringSubmatch(code, -1) {
			if !strings.HasPrefix(m[0], "static ") && !strings.HasPrefix(m[0], "typedef ") {
				definer[m[1]] = name
			}
		}
	}, "*.c")
	if len(names) < 40 || definer["rwf_poll_cq"] != "cgo/fabric/fabric.c" {
		t.Fatalf("%d C files were looked at, and rwf_poll_cq was found in %q", len(names), definer["rwf_poll_cq"])
	}
	arrows := map[string][]string{}
	for from, used := range names {
		for _, name := range used {
			if to := definer[name]; to != "" && to != from {
				arrows[from] = append(arrows[from], to)
			}
		}
		slices.Sort(arrows[from])
		arrows[from] = slices.Compact(arrows[from])
	}
	return arrows
}

func TestNoCFilesFormACircle(t *testing.T) {
	arrows := arrowsOfC(t)
	var way []string
	left := map[string]bool{}
	var visit func(file string)
	visit = func(file string) {
		if begin := slices.Index(way, file); begin >= 0 {
			t.Errorf("a circle: %s", strings.Join(append(way[begin:], file), " -> "))
			return
		}
		if left[file] {
			return
		}
		way = append(way, file)
		for _, to := range arrows[file] {
			visit(to)
		}
		way = way[:len(way)-1]
		left[file] = true
	}
	for _, file := range slices.Sorted(maps.Keys(arrows)) {
		visit(file)
	}
}

func TestEveryCallInCPointsDown(t *testing.T) {
	for from, targets := range arrowsOfC(t) {
		room := longest(includes, path.Dir(from))
		for _, to := range targets {
			if target := longest(includes, path.Dir(to)); target != room && !slices.Contains(includes[room], target) {
				t.Errorf("%s uses %s: C code of %s may not stand on %s", from, to, room, target)
			}
		}
	}
}

// A file that a peer handed over may make close(2) wait for as long as the peer likes.
func TestOneCFileClosesWhatPeersHandOver(t *testing.T) {
	receives, closes := map[string]bool{}, map[string][]string{}
	call := regexp.MustCompile(`\bclose(_range)?\s*\(|\bdup[23]\s*\(`)
	sources(t, func(name string, text []byte) {
		code, dir := notCode.ReplaceAllString(string(text), " "), path.Dir(name)
		if strings.Contains(code, "SCM_RIGHTS") {
			receives[dir] = true
		}
		if call.MatchString(code) {
			closes[dir] = append(closes[dir], name)
		}
	}, "*.c")
	if len(receives) == 0 {
		t.Fatal("no C file takes descriptors from a peer")
	}
	for dir := range receives {
		if want := []string{dir + "/closing.c"}; !slices.Equal(closes[dir], want) {
			t.Errorf("%s takes descriptors from peers, and %q call close(2): want %q alone", dir, closes[dir], want)
		}
	}
}
