package table

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
)

// ReadLabels calls f with all labels of a file, some at a time: a label on each line, or an .npy array of one dimension.
func ReadLabels(path string, f func(labels []string) error) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	r := bufio.NewReaderSize(file, 1<<16)
	read := readLines
	if first, _ := r.Peek(len(numpy)); string(first) == numpy {
		read = readArray
	}
	// The check of a batch needs no more of a table.
	t := &Table{file: file, from: &columnar{all: []column{{name: path, width: 1}}}}
	b := &Batch{Labels: make([]string, batchRows)}
	err = read(r, b, func() error {
		b.Rows = len(b.Labels)
		err := t.check(b, 0, nil)
		b.Row += uint64(b.Rows)
		return errors.Join(err, f(b.Labels))
	})
	if err == nil && b.Row == 0 {
		err = unusable("it is empty: give a group for each row")
	}
	if err != nil {
		err = fmt.Errorf("%s: %w", path, err)
	}
	return errors.Join(err, file.Close())
}

func readLines(r *bufio.Reader, b *Batch, f func() error) error {
	lines := bufio.NewScanner(r)
	b.Labels = b.Labels[:0]
	for lines.Scan() {
		if b.Labels = append(b.Labels, lines.Text()); len(b.Labels) == batchRows {
			if err := f(); err != nil {
				return err
			}
			b.Labels = b.Labels[:0]
		}
	}
	if err := lines.Err(); err != nil || len(b.Labels) == 0 {
		return err
	}
	return f()
}

func readArray(r *bufio.Reader, b *Batch, f func() error) error {
	a, err := newArray("groups", r)
	if err != nil {
		return err
	}
	if len(a.h.Shape) != 1 {
		return unusable("an array of shape %d: give one of one dimension", a.h.Shape)
	}
	for left := a.h.Shape[0]; left > 0; left -= uint64(b.Rows) {
		b.Labels = b.Labels[:min(batchRows, left)]
		if err := a.labels(b.Labels); err != nil {
			if err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			return unusable("from row %d on: %w", b.Row, err)
		}
		if err := f(); err != nil {
			return err
		}
	}
	return nil
}
