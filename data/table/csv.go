package table

import (
	"bufio"
	"encoding/csv"
	"errors"
	"io"
	"strconv"
	"strings"
)

// csvFile is text with a line of column names.
type csvFile struct {
	file  io.ReaderAt
	size  int64
	comma rune
	all   []column
}

func openCSV(file io.ReaderAt, size int64, tabs bool) (*csvFile, error) {
	c := &csvFile{file: file, size: size, comma: ','}
	if tabs {
		c.comma = '\t'
	}
	names, err := c.reader().Read()
	if err != nil {
		return nil, unusable("the line with the names of the columns: %v", err)
	}
	numbers := 0
	for i, name := range names {
		if i == 0 {
			name = strings.TrimPrefix(name, "\ufeff")
		}
		if strings.ContainsRune(name, 0) {
			return nil, unusable("%.40q is not the first line of CSV; NPZ and Parquet are read too", name)
		}
		if _, err := strconv.ParseFloat(name, 64); err == nil {
			numbers++
		}
		c.all = append(c.all, column{name: strings.Clone(name), width: 1})
	}
	if numbers == len(names) {
		return nil, unusable("the first line has only numbers: it must name the columns")
	}
	return c, nil
}

func (c *csvFile) columns() []column { return c.all }

func (c *csvFile) reader() *csv.Reader {
	r := csv.NewReader(bufio.NewReaderSize(io.NewSectionReader(c.file, 0, c.size), 1<<18))
	r.Comma, r.ReuseRecord = c.comma, true
	return r
}

func (c *csvFile) read(label int, features []int, b *Batch, f func() error) error {
	r := c.reader()
	if _, err := r.Read(); err != nil {
		return err
	}
	b.fit(label)
	most, n := b.Rows, 0
	emit := func() error {
		b.cut(n)
		b.Done = float64(r.InputOffset()) / float64(c.size)
		n = 0
		return f()
	}
	for {
		record, err := r.Read()
		if err == io.EOF {
			if n > 0 {
				return emit()
			}
			return nil
		}
		if err != nil {
			if errors.Is(err, csv.ErrFieldCount) {
				line, _ := r.FieldPos(0)
				return unusable("line %d has %d fields, and the first line %d", line, len(record), len(c.all))
			}
			return unusable("%v", err)
		}
		if label >= 0 {
			b.Labels[n] = strings.TrimSpace(record[label])
		}
		for i, at := range features {
			x, err := strconv.ParseFloat(strings.TrimSpace(record[at]), 64)
			if err != nil {
				return unusable("row %d, column %q: %.40q is not a number: name the features without it", b.Row+uint64(n), c.all[at].name, record[at])
			}
			b.X[n*b.Width+i] = x
		}
		if n++; n == most {
			if err := emit(); err != nil {
				return err
			}
		}
	}
}
