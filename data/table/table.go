// Package table reads rows of CSV, NPZ and Parquet files as a stream, whatever the file's size: the value of one column as a label,
// and those of others as numbers.
package table

import (
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

	"github.com/rackweave/rackweave/data/npy"
)

// ErrInput is wrapped by errors about what stands in a file, and ErrNumber by those about a feature that is text.
var ErrInput, ErrNumber = errors.New("unusable input"), errors.New("not a number")

func unusable(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrInput, fmt.Errorf(format, args...))
}

const (
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

// format is the contents of a file.
type format struct {
	columns []column
	// begin returns cursors over columns, and a function that moves them to the next row. It returns the part of the file up to
	// there, of 1, and io.EOF after the last row.
	begin func(columns []int) ([]cursor, func() (float64, error), error)
}

// column is a column of a file, or an array.
type column struct {
	name   string
	rows   uint64 // 0 if unknown; it is the same for all columns then
	width  int    // numbers of a row; 0 of lists
	opaque string // its type, if that cannot be read
}

// cursor reads a column's value in the present row, once. It holds memory alone, and needs no close.
type cursor interface {
	text() (string, error)
	numbers(to []float64) error
}

// stored returns a format whose columns lie one after the other.
func stored(columns []column, open func(column int) (cursor, error)) format {
	return format{columns, func(chosen []int) (cursors []cursor, next func() (float64, error), err error) {
		cursors = make([]cursor, len(chosen))
		for i, c := range chosen {
			if cursors[i], err = open(c); err != nil {
				return nil, nil, err
			}
		}
		row, rows := uint64(0), columns[chosen[0]].rows
		return cursors, func() (float64, error) {
			if row++; row > rows {
				return 1, io.EOF
			}
			return float64(row) / float64(rows), nil
		}, nil
	}}
}

// Table is an open file.
type Table struct {
	file *os.File
	info os.FileInfo
	format
}

// Open opens a file, whose first bytes tell its format.
func Open(path string) (*Table, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	t := &Table{file: f}
	if err := t.open(); err != nil {
		return nil, errors.Join(t.named(err), f.Close())
	}
	return t, nil
}

func (t *Table) open() (err error) {
	if t.info, err = t.file.Stat(); err != nil {
		return err
	}
	if !t.info.Mode().IsRegular() {
		return unusable("it is not a file, which can be read several times: write the rows to one")
	}
	raw := make([]byte, len(npy.Magic))
	n, err := t.file.ReadAt(raw, 0)
	if err != nil && err != io.EOF {
		return err
	}
	switch first := string(raw[:n]); {
	case n == 0:
		return unusable("it is empty")
	case strings.HasPrefix(first, "PK"):
		t.format, err = openNPZ(t.file, t.info.Size())
	case strings.HasPrefix(first, "PAR1"):
		t.format, err = openParquet(t.file, t.info.Size())
	case first == npy.Magic:
		return unusable("it is one array: numpy.savez writes an NPZ file, with the label and the features")
	case strings.HasPrefix(first, "\x1f\x8b"):
		return unusable("it is compressed by gzip: gunzip makes CSV of it")
	default:
		t.format, err = openCSV(t.file, t.info.Size(), filepath.Ext(t.file.Name()) == ".tsv")
	}
	return err
}

func (t *Table) named(err error) error { return fmt.Errorf("%s: %w", t.file.Name(), err) }

// Name returns the file's name without its folder.
func (t *Table) Name() string { return filepath.Base(t.file.Name()) }

// Close closes the file.
func (t *Table) Close() error { return t.file.Close() }

// SHA256 returns the file's sum in hexadecimal, and calls done with the part of the file that it has read, of 1.
func (t *Table) SHA256(done func(float64) error) (string, error) {
	sum, size := sha256.New(), t.info.Size()
	for at := int64(0); at < size; {
		n, err := io.Copy(sum, io.NewSectionReader(t.file, at, min(1<<20, size-at)))
		if at += n; n == 0 || err != nil {
			return "", errors.Join(err, t.Unchanged())
		}
		if err := done(float64(at) / float64(size)); err != nil {
			return "", err
		}
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}

// Unchanged returns an error if the file was written to since Open.
func (t *Table) Unchanged() error {
	now, err := t.file.Stat()
	if err == nil && (now.Size() != t.info.Size() || !now.ModTime().Equal(t.info.ModTime())) {
		err = t.named(unusable("it has changed while it was read: try again when it is whole"))
	}
	return err
}

// Rows are the values of some columns in all rows.
type Rows struct {
	Width  int      // numbers of a row
	Others []string // columns that are left out, because they have another number of rows than the label
	table  *Table
	chosen []int // columns, the label first
	label  bool
}

// Select chooses columns. If none is wanted, rows are counted.
func (t *Table) Select(want Want) (r *Rows, err error) {
	r = &Rows{table: t, label: want.Label != ""}
	if err := r.choose(want); err != nil {
		return nil, t.named(err)
	}
	return r, nil
}

func (r *Rows) choose(want Want) error {
	all, names := r.table.columns, want.Columns
	if r.label {
		names = append([]string{want.Label}, names...)
	}
	for _, name := range names {
		c, err := r.table.find(name)
		if err != nil {
			return err
		}
		r.chosen = append(r.chosen, c)
	}
	for c := range all {
		beside := all[c].width > 0
		if r.label && want.Columns == nil && all[c].rows != all[r.chosen[0]].rows {
			beside, r.Others = false, append(r.Others, fmt.Sprintf("%q has %d rows", all[c].name, all[c].rows))
		}
		if want.Features && want.Columns == nil && beside && (!r.label || c != r.chosen[0]) || !want.Features && !r.label {
			r.chosen = append(r.chosen, c)
		}
	}
	for i, c := range r.chosen {
		switch a, b := all[c], all[r.chosen[0]]; {
		case a.opaque != "" && (r.label || want.Features):
			return unusable("column %q is of type %s: convert it, or name others", a.name, a.opaque)
		case i == 0 && r.label && a.width != 1:
			return unusable("the label %q has %d values a row: name one with a single value", want.Label, a.width)
		case a.rows != b.rows:
			return unusable("%q has %d rows, and %q %d: name a label, or features with the same number", a.name, a.rows, b.name, b.rows)
		}
		if want.Features && (i > 0 || !r.label) {
			r.Width += all[c].width
		}
	}
	if want.Features && r.Width == 0 {
		return unusable("%s", strings.Join(append([]string{"no columns beside the label that have its rows"}, r.Others...), "; "))
	}
	return nil
}

// Read calls f with all rows in their order, a batch at a time. Errors about a value name its row, counted from 0, and its column.
func (r *Rows) Read(f func(*Batch) error) error {
	chosen := r.chosen
	if r.Width == 0 {
		chosen = chosen[:1]
	}
	cursors, next, err := r.table.begin(chosen)
	if err != nil {
		return r.table.named(err)
	}
	if r.Width == 0 && !r.label {
		cursors = nil
	}
	most := max(1, min(batchRows, batchNumbers/max(1, r.Width)))
	b := &Batch{Width: r.Width, X: make([]float64, 0, most*r.Width)}
	for err == nil {
		b.Row, b.Rows, b.Labels, b.X = b.Row+uint64(b.Rows), 0, b.Labels[:0], b.X[:0]
		for b.Rows < most {
			if b.Done, err = next(); err == nil {
				err = r.take(b, cursors)
			}
			if err != nil {
				break
			}
			b.Rows++
		}
		if err == io.EOF && b.Row == 0 && b.Rows == 0 {
			err = unusable("it has no rows")
		}
		if err != nil && err != io.EOF {
			return r.table.named(err)
		}
		if b.Rows > 0 {
			if err := f(b); err != nil {
				return err
			}
		}
	}
	return nil
}

// take adds the values of the present row to a batch, and checks them.
func (r *Rows) take(b *Batch, cursors []cursor) (err error) {
	for i, from := range cursors {
		c := r.table.columns[r.chosen[i]]
		if i == 0 && r.label {
			var l string
			if l, err = from.text(); err == nil {
				err = checkLabel(l)
			}
			b.Labels = append(b.Labels, l)
		} else {
			at := len(b.X)
			b.X = b.X[:at+c.width]
			err = from.numbers(b.X[at:])
			bad := slices.IndexFunc(b.X[at:], func(v float64) bool { return math.IsNaN(v) || math.IsInf(v, 0) })
			if err == nil && bad >= 0 {
				err = fmt.Errorf("it is %v: fill it or leave the row out", b.X[at+bad])
			}
		}
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			err = errors.New("the file ends here: is it whole?")
		}
		if err != nil {
			return unusable("row %d, column %q: %w", b.Row+uint64(b.Rows), c.name, err)
		}
	}
	return nil
}

func checkLabel(l string) error {
	if l == "" || strings.EqualFold(l, "nan") {
		return fmt.Errorf("it is %q, not a label: fill it or leave the row out", l)
	}
	if len(l) > maxLabel || !utf8.ValidString(l) {
		return fmt.Errorf("%.40q…, of %d bytes: a label is text of at most %d", l, len(l), maxLabel)
	}
	return nil
}

// find finds a column by its name.
func (t *Table) find(name string) (int, error) {
	var names []string
	for _, c := range t.columns {
		names = append(names, c.name)
	}
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
	if len(names) > 20 {
		names = append(names[:20:20], fmt.Sprintf("and %d more", len(names)-20))
	}
	return 0, unusable("no column %q: did you mean %q? It has %s", name, near, strings.Join(names, ", "))
}
