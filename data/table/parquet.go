package table

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/parquet-go/parquet-go"
)

func openParquet(file io.ReaderAt, size int64) (c *columnar, err error) {
	var p *parquet.File
	err = guarded(func() error {
		p, err = parquet.OpenFile(file, size, parquet.SkipPageIndex(true), parquet.SkipBloomFilters(true))
		return err
	})
	if err != nil {
		return nil, unusable("Parquet: %w: is the file whole?", err)
	}
	c = &columnar{}
	var places []int
	for _, path := range p.Schema().Columns() {
		leaf, ok := p.Schema().Lookup(path...)
		if ok && leaf.MaxRepetitionLevel == 0 { // others are lists, of any length in each row
			c.all = append(c.all, column{strings.Join(path, "."), uint64(p.NumRows()), 1})
			places = append(places, leaf.ColumnIndex)
		}
	}
	if len(places) == 0 {
		return nil, unusable("Parquet without a column of single values")
	}
	c.open = func(at int) (cursor, error) { return &leaf{groups: p.RowGroups(), at: places[at]}, nil }
	return c, nil
}

// guarded calls the library, which panics on some damaged files.
func guarded(call func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("damaged: %v", p)
		}
	}()
	return call()
}

// leaf is the cursor of a column.
type leaf struct {
	groups []parquet.RowGroup // that are not begun
	at     int                // of the column
	chunk  parquet.ColumnChunkValueReader
	values [batchRows]parquet.Value
}

func (l *leaf) Close() error {
	if l.chunk == nil {
		return nil
	}
	return guarded(l.chunk.Close)
}

// each calls f with the next values.
func (l *leaf) each(rows int, f func(i int, v parquet.Value) error) error {
	for i := 0; i < rows; {
		if l.chunk == nil {
			if len(l.groups) == 0 {
				return io.ErrUnexpectedEOF
			}
			l.chunk = parquet.NewColumnChunkValueReader(l.groups[0].ColumnChunks()[l.at])
			l.groups = l.groups[1:]
		}
		n, err := l.chunk.ReadValues(l.values[:min(len(l.values), rows-i)])
		for _, v := range l.values[:n] {
			if v.IsNull() {
				return fmt.Errorf("value %d of them is null: fill it or leave the row out", i)
			}
			if err := f(i, v); err != nil {
				return err
			}
			i++
		}
		if errors.Is(err, io.EOF) {
			err, l.chunk = l.chunk.Close(), nil
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (l *leaf) labels(to []string) error {
	return guarded(func() error {
		return l.each(len(to), func(i int, v parquet.Value) error {
			to[i] = v.String()
			return nil
		})
	})
}

func (l *leaf) numbers(to []float64, rows, _, stride int) error {
	return guarded(func() error {
		return l.each(rows, func(i int, v parquet.Value) error {
			switch v.Kind() {
			case parquet.Boolean:
				if to[i*stride] = 0; v.Boolean() {
					to[i*stride] = 1
				}
			case parquet.Int32:
				to[i*stride] = float64(v.Int32())
			case parquet.Int64:
				to[i*stride] = float64(v.Int64())
			case parquet.Float:
				to[i*stride] = float64(v.Float())
			case parquet.Double:
				to[i*stride] = v.Double()
			default:
				return fmt.Errorf("value %d of them, %.40q, is not a number: name the features without the column", i, v.String())
			}
			return nil
		})
	})
}
