package table

import (
	"bufio"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// openCSV opens text with a line of column names.
func openCSV(file io.ReaderAt, size int64, tabs bool) (f format, err error) {
	open := func() (*csv.Reader, []string, error) {
		r := csv.NewReader(bufio.NewReaderSize(io.NewSectionReader(file, 0, size), 1<<18))
		if r.ReuseRecord = true; tabs {
			r.Comma = '\t'
		}
		names, err := r.Read()
		return r, names, err
	}
	_, names, err := open()
	if err != nil {
		return f, unusable("the line with the names of the columns: %v", err)
	}
	numbers, seen := 0, map[string]bool{}
	for i, name := range names {
		if i == 0 {
			name = strings.TrimPrefix(name, "\ufeff")
		}
		switch {
		case strings.ContainsRune(name, 0):
			return f, unusable("%.40q is not the first line of CSV; NPZ and Parquet are read too", name)
		case len(names) == 1 && strings.ContainsAny(name, ";\t"):
			return f, unusable("the first line, %.40q, has no comma: separate columns by commas, or by tabs in a .tsv file", name)
		case seen[name]:
			return f, unusable("the first line names several columns %q: rename one", name)
		}
		if _, err := strconv.ParseFloat(name, 64); err == nil {
			numbers++
		}
		seen[name] = name != "" // a file may have columns without a name
		f.columns = append(f.columns, column{name: name, width: 1})
	}
	if numbers == len(names) {
		return f, unusable("the first line has only numbers: it must name the columns")
	}
	f.begin = func(chosen []int) (cursors []cursor, next func() (float64, error), err error) {
		r, record, err := open()
		for _, c := range chosen {
			cursors = append(cursors, &field{&record, c})
		}
		return cursors, func() (float64, error) {
			if record, err = r.Read(); errors.Is(err, csv.ErrFieldCount) {
				line, _ := r.FieldPos(0)
				err = fmt.Errorf("line %d has %d fields, and the first line %d", line, len(record), len(f.columns))
			}
			if err != nil && err != io.EOF {
				err = unusable("%w", err)
			}
			return float64(r.InputOffset()) / float64(size), err
		}, err
	}
	return f, nil
}

// field is the cursor of a column of CSV.
type field struct {
	record *[]string
	column int
}

func (f *field) text() (string, error) { return strings.TrimSpace((*f.record)[f.column]), nil }

func (f *field) numbers(to []float64) (err error) {
	text, _ := f.text()
	if to[0], err = strconv.ParseFloat(text, 64); text == "" {
		return errors.New("it is empty: fill it or leave the row out")
	} else if err != nil {
		return fmt.Errorf("%.40q is %w", text, ErrNumber)
	}
	return nil
}
