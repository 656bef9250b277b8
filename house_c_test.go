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
	quoted     = regexp.MustCompile(`(?m)^\s*#\s*include "([^"]+)"`)
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

// The go command builds a package again when a package that it imports changes. It does not know headers of other folders. Each
// folder with headers for others therefore embeds them, and each package imports the folders of all headers that it includes.
func TestPackagesImportTheFoldersOfTheirHeaders(t *testing.T) {
	headers, imported := map[string][]string{}, map[string][]string{} // of files; by folders
	folders, embeds := map[string][]string{}, map[string]bool{}       // C of Go packages; folders that embed their headers
	sources(t, func(name string, text []byte) {
		dir := path.Dir(name)
		for _, m := range quoted.FindAllSubmatch(text, -1) {
			headers[name] = append(headers[name], path.Join(dir, string(m[1])))
		}
		switch {
		case !strings.HasSuffix(name, ".go"):
			folders[dir] = append(folders[dir], name)
		case !strings.HasSuffix(name, "_test.go"):
			imported[dir] = append(imported[dir], imports(t, name, text)...)
			embeds[dir] = embeds[dir] || strings.Contains(string(text), "\n//go:embed *.h\nvar _ embed.FS\n")
			if len(headers[name]) > 0 {
				folders[dir] = append(folders[dir], name)
			}
		}
	}, "*.go", "*.c", "*.h")
	if len(headers["cgo/worker/internal.h"]) == 0 || !embeds["cgo/fabric/base"] {
		t.Fatal("no header was found that includes another, or none that is embedded")
	}
	for dir, files := range folders {
		for i := 0; i < len(files); i++ { // files grows by what each includes
			for _, header := range headers[files[i]] {
				if !slices.Contains(files, header) {
					files = append(files, header)
				}
			}
			owner := path.Dir(files[i])
			if owner == dir || imported[dir] == nil {
				continue
			}
			if !slices.Contains(imported[dir], module+"/"+owner) {
				t.Errorf("%s includes %s: import %s too, or a change of the header does not build it again", dir, files[i], owner)
			}
			if !embeds[owner] {
				t.Errorf("%s includes %s: %s has no \"//go:embed *.h\" for its headers", dir, files[i], owner)
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
