// Package paper writes the tables of docs/paper.md, which recompute the RackWeave paper's.
package paper

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/google/renameio/v2"

	"github.com/rackweave/rackweave/bench/models"
)

// tables are the page's tables. Each stands between its marker, <!-- NAME -->, and an empty line.
var tables = []struct {
	name  string
	write func(io.Writer)
	long  bool // takes a minute
}{
	{"table 1", writeTable1, false},
	{"table 2", writeTable2, false},
	{"enough", writeEnough, false},
	{"scale", writeScale, true},
}

// Rewrite writes the tables into the page, a file.
func Rewrite(name string) error {
	text, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	page := string(text)
	for _, t := range tables {
		var table bytes.Buffer
		t.write(&table)
		before, _, after, err := cut(page, t.name)
		if err != nil {
			return err
		}
		page = before + table.String() + after
	}
	return renameio.WriteFile(name, []byte(page), 0o644)
}

// model returns a built-in model, by a name that is written here.
func model(name string) models.Model {
	m, err := models.Get(name)
	if err != nil {
		panic("paper: " + err.Error())
	}
	return m
}

// cut divides a page into a table, what stands before it, and what stands after it.
func cut(page, name string) (before, table, after string, err error) {
	marker := "<!-- " + name + " -->\n\n"
	before, table, ok := strings.Cut(page, marker)
	if !ok {
		return "", "", "", fmt.Errorf("the page lacks the marker %q", marker)
	}
	table, after, _ = strings.Cut(table, "\n\n")
	return before + marker, strings.TrimSuffix(table, "\n") + "\n", "\n" + after, nil
}
