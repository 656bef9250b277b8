package table

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/parquet-go/parquet-go"
	schema "github.com/parquet-go/parquet-go/format"
)

func openParquet(file io.ReaderAt, size int64) (f format, err error) {
	var p *parquet.File
	err = guarded(func() error {
		p, err = parquet.OpenFile(file, size, parquet.SkipPageIndex(true), parquet.SkipBloomFilters(true))
		return err
	})
	if err != nil {
		return f, unusable("Parquet: %w: is the file whole?", err)
	}
	var columns []column
	var places []int
	leaves := slices.DeleteFunc(slices.Clone(p.Metadata().Schema), func(e schema.SchemaElement) bool { return !e.Type.Valid })
	for _, path := range p.Schema().Columns() {
		if leaf, ok := p.Schema().Lookup(path...); ok {
			c, kind := column{strings.Join(path, "."), uint64(p.NumRows()), 1, ""}, leaves[leaf.ColumnIndex].LogicalType.String()
			if leaf.MaxRepetitionLevel > 0 { // of any length in each row
				c.width, c.opaque = 0, "list"
			} else if leaf.Node.Type().Kind() >= parquet.ByteArray && !slices.Contains([]string{"", "STRING", "ENUM", "JSON"}, kind) {
				c.opaque = kind // of bytes that are neither text nor a number here, such as float16
			}
			columns, places = append(columns, c), append(places, leaf.ColumnIndex)
		}
	}
	if len(places) == 0 {
		return f, unusable("Parquet without a column")
	}
	return stored(columns, func(c int) (cursor, error) { return &leaf{groups: p.RowGroups(), place: places[c]}, nil }), nil
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
	place  int                // of the column
	chunk  parquet.ColumnChunkValueReader
	buffer [batchRows]parquet.Value
	values []parquet.Value // that were not taken
}

// fill reads more values.
func (l *leaf) fill() error {
	for len(l.values) == 0 {
		if l.chunk == nil {
			if len(l.groups) == 0 {
				return io.EOF
			}
			l.chunk = parquet.NewColumnChunkValueReader(l.groups[0].ColumnChunks()[l.place])
			l.groups = l.groups[1:]
		}
		n, err := l.chunk.ReadValues(l.buffer[:])
		l.values = l.buffer[:n]
		if errors.Is(err, io.EOF) {
			err = nil
			if n == 0 {
				err, l.chunk = l.chunk.Close(), nil
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// value returns the next value.
func (l *leaf) value() (v parquet.Value, err error) {
	if len(l.values) == 0 {
		if err := guarded(l.fill); err != nil {
			return v, err
		}
	}
	v, l.values = l.values[0], l.values[1:]
	if v.IsNull() {
		err = errors.New("it is null: fill it or leave the row out")
	}
	return v, err
}

func (l *leaf) text() (string, error) {
	v, err := l.value()
	return v.String(), err
}

func (l *leaf) numbers(to []float64) error {
	v, err := l.value()
	if err != nil {
		return err
	}
	switch v.Kind() {
	case parquet.Boolean:
		if to[0] = 0; v.Boolean() {
			to[0] = 1
		}
	case parquet.Int32:
		to[0] = float64(v.Int32())
	case parquet.Int64:
		to[0] = float64(v.Int64())
	case parquet.Float:
		to[0] = float64(v.Float())
	case parquet.Double:
		to[0] = v.Double()
	default:
		return fmt.Errorf("%.40q is %w", v.String(), ErrNumber)
	}
	return nil
}
