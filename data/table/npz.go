package table

import (
	"archive/zip"
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"

	"github.com/rackweave/rackweave/data/npy"
)

// maxWidth bounds the numbers of a row in an array.
const maxWidth = 1 << 20

func openNPZ(file io.ReaderAt, size int64) (f format, err error) {
	z, err := zip.NewReader(file, size)
	if err != nil {
		return f, unusable("NPZ: %v: is the file whole?", err)
	}
	var columns []column
	var members []*zip.File
	for _, m := range z.File {
		a, err := openArray(m)
		if err != nil {
			return f, err
		}
		if len(a.h.Shape) == 0 {
			continue
		}
		c, err := a.column(strings.TrimSuffix(m.Name, ".npy"))
		if err != nil {
			return f, err
		}
		columns, members = append(columns, c), append(members, m)
	}
	if len(members) == 0 {
		return f, unusable("NPZ without an array of rows")
	}
	return stored(columns, func(c int) (cursor, error) { return openArray(members[c]) }), nil
}

// array is the cursor of an array.
type array struct {
	h      *npy.Header
	order  binary.ByteOrder
	r      io.Reader
	raw    []byte
	decode func(binary.ByteOrder, []byte) float64
}

func openArray(f *zip.File) (*array, error) {
	r, err := f.Open()
	if err != nil {
		return nil, unusable("array %q: %w", f.Name, err)
	}
	return newArray(f.Name, bufio.NewReaderSize(r, 1<<16))
}

func newArray(name string, r io.Reader) (*array, error) {
	h, err := npy.Read(r)
	if err != nil {
		return nil, unusable("array %q: %w", name, err)
	}
	a := &array{h: h, order: binary.LittleEndian, r: r, decode: decoders[fmt.Sprintf("%c%d", h.Kind, h.Size)]}
	if h.Order == '>' {
		a.order = binary.BigEndian
	}
	return a, nil
}

// column returns the array as a column of rows. It must have a dimension.
func (a *array) column(name string) (column, error) {
	row := npy.Header{Shape: a.h.Shape[1:]}
	if row.Elems() > maxWidth {
		return column{}, unusable("array %q has %d numbers a row: at most %d", name, row.Elems(), maxWidth)
	}
	return column{name: name, rows: a.h.Shape[0], width: int(row.Elems())}, nil
}

// next returns the bytes of the next elements.
func (a *array) next(elems int) ([]byte, error) {
	if n := elems * a.h.Size; len(a.raw) != n {
		a.raw = make([]byte, n)
	}
	_, err := io.ReadFull(a.r, a.raw)
	return a.raw, err
}

// decoders return an element as a number, by its kind and bytes.
var decoders = map[string]func(binary.ByteOrder, []byte) float64{
	"b1": func(_ binary.ByteOrder, b []byte) float64 { return float64(b[0]) },
	"u1": func(_ binary.ByteOrder, b []byte) float64 { return float64(b[0]) },
	"i1": func(_ binary.ByteOrder, b []byte) float64 { return float64(int8(b[0])) },
	"u2": func(o binary.ByteOrder, b []byte) float64 { return float64(o.Uint16(b)) },
	"i2": func(o binary.ByteOrder, b []byte) float64 { return float64(int16(o.Uint16(b))) },
	"u4": func(o binary.ByteOrder, b []byte) float64 { return float64(o.Uint32(b)) },
	"i4": func(o binary.ByteOrder, b []byte) float64 { return float64(int32(o.Uint32(b))) },
	"u8": func(o binary.ByteOrder, b []byte) float64 { return float64(o.Uint64(b)) },
	"i8": func(o binary.ByteOrder, b []byte) float64 { return float64(int64(o.Uint64(b))) },
	"f4": func(o binary.ByteOrder, b []byte) float64 { return float64(math.Float32frombits(o.Uint32(b))) },
	"f8": func(o binary.ByteOrder, b []byte) float64 { return math.Float64frombits(o.Uint64(b)) },
}

func (a *array) numbers(to []float64) error {
	switch {
	case a.h.Kind == 'O':
		return errors.New("it is an array of objects: save numbers or fixed-width strings")
	case a.decode == nil:
		return fmt.Errorf("an element of type %c%d is %w that can be read: convert it to an integer, f4 or f8", a.h.Kind, a.h.Size, ErrNumber)
	case a.h.Fortran && len(to) > 1:
		return errors.New("it lies column by column: numpy.ascontiguousarray turns it")
	}
	raw, err := a.next(len(to))
	for i := range to {
		to[i] = a.decode(a.order, raw[i*a.h.Size:])
	}
	return err
}

func (a *array) text() (string, error) {
	if a.h.Kind != 'S' && a.h.Kind != 'U' {
		var x [1]float64
		err := a.numbers(x[:])
		if math.Abs(x[0]) > 1<<53 {
			err = fmt.Errorf("%v is too large for a label: such numbers are not told apart", x[0])
		}
		return strconv.FormatFloat(x[0], 'f', -1, 64), err
	}
	raw, err := a.next(1)
	if a.h.Kind == 'U' {
		var s strings.Builder
		for ; len(raw) > 0; raw = raw[4:] {
			s.WriteRune(rune(a.order.Uint32(raw)))
		}
		raw = []byte(s.String())
	}
	return strings.TrimRight(string(raw), "\x00"), err
}
