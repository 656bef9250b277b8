package table

import (
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
)

// cursor reads a column from its beginning on.
type cursor interface {
	labels(to []string) error
	// numbers reads some rows of width numbers. Each row begins a stride after the one before.
	numbers(to []float64, rows, width, stride int) error
	io.Closer
}

// columnar reads files that store columns.
type columnar struct {
	all  []column
	open func(column int) (cursor, error)
}

func (c *columnar) columns() []column { return c.all }

func (c *columnar) read(label int, features []int, b *Batch, f func() error) (err error) {
	first := 0
	if label >= 0 {
		first = label
		features = append([]int{label}, features...)
	} else if len(features) > 0 {
		first = features[0]
	}
	cursors := make([]cursor, len(features))
	for i, at := range features {
		if cursors[i], err = c.open(at); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, cursors[i].Close()) }()
	}
	b.fit(label)
	rows := c.all[first].rows
	for most := uint64(b.Rows); b.Row < rows; {
		b.cut(int(min(most, rows-b.Row)))
		x := b.X
		for i, at := range features {
			if i == 0 && label >= 0 {
				err = cursors[i].labels(b.Labels)
			} else {
				err = cursors[i].numbers(x, b.Rows, c.all[at].width, b.Width)
				x = x[c.all[at].width:]
			}
			if err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			if err != nil {
				return unusable("column %q, in the rows from %d on: %w", c.all[at].name, b.Row, err)
			}
		}
		b.Done = float64(b.Row+uint64(b.Rows)) / float64(rows)
		if err := f(); err != nil {
			return err
		}
	}
	return nil
}

// numbersAsText reads labels that are numbers.
func numbersAsText(to []string, from cursor) error {
	x := make([]float64, len(to))
	if err := from.numbers(x, len(x), 1, 1); err != nil {
		return err
	}
	for i, x := range x {
		if math.Abs(x) > 1<<53 {
			return fmt.Errorf("%v is too large for a label: such numbers are not told apart", x)
		}
		to[i] = strconv.FormatFloat(x, 'f', -1, 64)
	}
	return nil
}
