// Package table reads rows of CSV, NPZ and Parquet files as a stream, whatever the file's size: the value of one column as a label,
// and those of others as numbers.
package table

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/agnivade/levenshtein"
)

// ErrInput is wrapped by errors about what stands in a file.
var ErrInput = errors.New("unusable input")

func unusable(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrInput, fmt.Errorf(format, args...))
}

const (
	numpy        = "\x93NUMPY" // begins an .npy file
	batchRows    = 1024
	batchNumbers = 1 << 17
	maxLabel     = 256 // bytes
)

// Want chooses columns.
type Want struct {
	Label    string   // if not empty, a column whose values are wanted as text
	Features bool     // numbers are wanted
	Columns  []string // the columns with the numbers; if nil, all that have as many rows as the label has, but the label
}

// Batch is some rows, one after the other. It is overwritten by the next.
type Batch struct {
	Row    uint64 // number of the first
	Rows   int
	Labels []string  // [Rows], if wanted
	X      []float64 // [Rows][Width] finite numbers, if wanted
	Width  int
	Done   float64 // the part of the file that has been read, of 1
}

// column is a column of a file, or an array.
type column struct {
	name  string
	rows  uint64 // 0 if unknown; it is the same for all columns then
	width int    // numbers of a row
}

// source is a file's format.
type source interface {
	columns() []column
	// read calls f with all rows. label is a place in columns, or -1, and so are features. It leaves the check of values to f.
	read(label int, features []int, b *Batch, f func() error) error
}

// Table is an open file.
type Table struct {
	file *os.File
	info os.FileInfo
	from source
}

// Open opens a file, whose first bytes tell its format.
func Open(path string) (*Table, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	t := &Table{file: f}
	if err := t.open(); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", path, err), f.Close())
	}
	return t, nil
}

func (t *Table) open() (err error) {
	if t.info, err = t.file.Stat(); err != nil {
		return err
	}
	size := t.info.Size()
	if !t.info.Mode().IsRegular() {
		return unusable("it is not a file, which can be read several times: write the rows to one")
	}
	var first [6]byte
	n, err := t.file.ReadAt(first[:], 0)
	if err != nil && err != io.EOF {
		return err
	}
	switch {
	case n == 0:
		return unusable("it is empty")
	case bytes.HasPrefix(first[:], []byte("PK")):
		t.from, err = openNPZ(t.file, size)
	case bytes.HasPrefix(first[:], []byte("PAR1")):
		t.from, err = openParquet(t.file, size)
	case string(first[:]) == numpy:
		return unusable("it is one array: numpy.savez writes an NPZ file, with the label and the features")
	case bytes.HasPrefix(first[:], []byte("\x1f\x8b")):
		return unusable("it is compressed by gzip: gunzip makes CSV of it")
	default:
		t.from, err = openCSV(t.file, size, filepath.Ext(t.file.Name()) == ".tsv")
	}
	return err
}

// Columns returns the names of the columns. Of an NPZ file they are arrays.
func (t *Table) Columns() (names []string) {
	for _, c := range t.from.columns() {
		names = append(names, c.name)
	}
	return names
}

// Name returns the file's name without its folder.
func (t *Table) Name() string { return filepath.Base(t.file.Name()) }

// Width returns the numbers of a row.
func (t *Table) Width(want Want) (int, error) {
	_, features, err := t.choose(want)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", t.file.Name(), err)
	}
	return t.width(features), nil
}

func (t *Table) width(features []int) (n int) {
	for _, c := range features {
		n += t.from.columns()[c].width
	}
	return n
}

// Close closes the file.
func (t *Table) Close() error { return t.file.Close() }

// SHA256 returns the file's sum in hexadecimal, and calls done with the part of the file that it has read, of 1.
func (t *Table) SHA256(done func(float64) error) (string, error) {
	sum, buf := sha256.New(), make([]byte, 1<<20)
	for at := int64(0); ; {
		n, err := t.file.ReadAt(buf, at)
		sum.Write(buf[:n])
		at += int64(n)
		if err == io.EOF {
			return hex.EncodeToString(sum.Sum(nil)), nil
		}
		if err == nil {
			err = done(float64(at) / float64(max(at, t.info.Size())))
		}
		if err != nil {
			return "", err
		}
	}
}

// Unchanged returns an error if the file was written to since Open.
func (t *Table) Unchanged() error {
	now, err := t.file.Stat()
	if err == nil && (now.Size() != t.info.Size() || !now.ModTime().Equal(t.info.ModTime())) {
		err = unusable("%s has changed while it was read: try again when it is whole", t.file.Name())
	}
	return err
}

// Read calls f with all rows in their order, a batch at a time. Errors about a value name its row, counted from 0, and its column.
func (t *Table) Read(want Want, f func(*Batch) error) error {
	label, features, err := t.choose(want)
	if err != nil {
		return fmt.Errorf("%s: %w", t.file.Name(), err)
	}
	b := &Batch{Width: t.width(features)}
	var failed error
	err = t.from.read(label, features, b, func() error {
		if failed = t.check(b, label, features); failed != nil {
			failed = fmt.Errorf("%s: %w", t.file.Name(), failed)
			return failed
		}
		failed = f(b)
		b.Row += uint64(b.Rows)
		return failed
	})
	switch {
	case failed != nil:
		return failed
	case err == nil && b.Row == 0:
		err = unusable("it has no rows")
	}
	if err != nil {
		return fmt.Errorf("%s: %w", t.file.Name(), err)
	}
	return nil
}

// choose finds the wanted columns.
func (t *Table) choose(want Want) (label int, features []int, err error) {
	all := t.from.columns()
	label = -1
	if want.Label != "" {
		if label, err = t.find(want.Label); err != nil {
			return 0, nil, err
		}
		if all[label].width != 1 {
			return 0, nil, unusable("the label %q has %d values a row: name one with a single value", want.Label, all[label].width)
		}
	}
	if want.Features {
		for _, name := range want.Columns {
			c, err := t.find(name)
			if err != nil {
				return 0, nil, err
			}
			features = append(features, c)
		}
		for c := range all {
			if want.Columns == nil && c != label && (label < 0 || all[c].rows == all[label].rows) {
				features = append(features, c)
			}
		}
		if len(features) == 0 {
			return 0, nil, unusable("no columns beside the label: there is nothing to look at")
		}
	}
	chosen := slices.Clone(features)
	if label >= 0 {
		chosen = append(chosen, label)
	}
	if len(chosen) == 0 {
		for c := range all {
			chosen = append(chosen, c)
		}
	}
	for _, c := range chosen {
		if a, b := all[c], all[chosen[0]]; a.rows != b.rows {
			return 0, nil, unusable("%q has %d rows, and %q %d: name a label, or features with the same number", a.name, a.rows, b.name, b.rows)
		}
	}
	return label, features, nil
}

// find finds a column by its name.
func (t *Table) find(name string) (int, error) {
	names := t.Columns()
	at := slices.Index(names, name)
	if at >= 0 {
		if slices.Contains(names[at+1:], name) {
			return 0, unusable("there are several columns %q: rename one", name)
		}
		return at, nil
	}
	near := slices.MinFunc(names, func(a, b string) int {
		return levenshtein.ComputeDistance(name, a) - levenshtein.ComputeDistance(name, b)
	})
	shown := names
	if len(shown) > 20 {
		shown = append(slices.Clone(shown[:20]), fmt.Sprintf("and %d more", len(names)-20))
	}
	return 0, unusable("no column %q: did you mean %q? It has %s", name, near, strings.Join(shown, ", "))
}

// check checks a batch's values.
func (t *Table) check(b *Batch, label int, features []int) error {
	for i, l := range b.Labels {
		switch name := t.from.columns()[label].name; {
		case l == "" || strings.EqualFold(l, "nan"):
			return unusable("row %d has no label: column %q is %q", b.Row+uint64(i), name, l)
		case len(l) > maxLabel || !utf8.ValidString(l):
			return unusable("row %d: column %q is %.40q…, of %d bytes: a label is text of at most %d", b.Row+uint64(i), name, l, len(l), maxLabel)
		}
	}
	for i, x := range b.X {
		if !math.IsNaN(x) && !math.IsInf(x, 0) {
			continue
		}
		row, at := b.Row+uint64(i/b.Width), i%b.Width
		for _, f := range features {
			c := t.from.columns()[f]
			if at < c.width {
				return unusable("row %d, column %q is %v: fill it or leave the row out", row, c.name, x)
			}
			at -= c.width
		}
	}
	return nil
}

// fit makes room for so many rows in a batch.
func (b *Batch) fit(label int) {
	b.Rows = max(1, min(batchRows, batchNumbers/max(1, b.Width)))
	b.X = make([]float64, b.Rows*b.Width)
	if label >= 0 {
		b.Labels = make([]string, b.Rows)
	}
}

// cut shortens a batch.
func (b *Batch) cut(rows int) {
	b.Rows, b.X = rows, b.X[:rows*b.Width]
	b.Labels = b.Labels[:min(rows, len(b.Labels))]
}
