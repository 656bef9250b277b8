package rackweave

import (
	"bytes"
	"os"
	"path"
	"regexp"
	"strings"
	"testing"
)

// A reader who goes by the documents finds every room and every file that they name.
func TestDocumentsNameTheRoomsAndFilesThatExist(t *testing.T) {
	named := regexp.MustCompile("`([a-z][a-z0-9_/.-]*\\.(?:go|c|h|py|proto|md|json))`")
	text, err := os.ReadFile("ARCHITECTURE.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(text), "| begin at |\n")
	table, journey, _ := strings.Cut(table, "\n\n")
	rooms := map[string]bool{}
	for line := range strings.Lines(table) {
		cells := strings.Split(line, "|")
		if len(cells) != 5 {
			t.Fatalf("ARCHITECTURE.md: %q is not a row of a room, what it does, and files", line)
		}
		for room := range strings.SplitSeq(cells[1], ",") {
			room = strings.Trim(room, " `")
			rooms[room] = true
			if _, err := os.Stat(room); err != nil && room != "---" {
				t.Errorf("ARCHITECTURE.md: %v", err)
			}
			for _, m := range named.FindAllStringSubmatch(cells[2]+cells[3], -1) {
				if _, err := os.Stat(path.Join(room, m[1])); err != nil {
					t.Errorf("ARCHITECTURE.md, room %s: %v", room, err)
				}
			}
		}
	}
	for room := range house {
		if !rooms[room] {
			t.Errorf("ARCHITECTURE.md has no row of the room %s", room)
		}
	}
	contributing, err := os.ReadFile("CONTRIBUTING.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range named.FindAllStringSubmatch(journey+string(contributing), -1) {
		if _, err := os.Stat(m[1]); strings.Contains(m[1], "/") && err != nil {
			t.Errorf("ARCHITECTURE.md or CONTRIBUTING.md: %v", err)
		}
	}
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	if n := bytes.Count(readme, []byte("\n")); n > 120 {
		t.Errorf("README.md has %d lines: move what a first reader does not need to docs", n)
	}
	for _, m := range regexp.MustCompile(`\]\(([^)#:]+)\)`).FindAllSubmatch(readme, -1) {
		if _, err := os.Stat(string(m[1])); err != nil {
			t.Errorf("README.md links to %s: %v", m[1], err)
		}
	}
}
