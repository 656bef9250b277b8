package table

import (
	"archive/zip"
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"strings"

	"github.com/rackweave/rackweave/data/npy"
)

// maxWidth bounds the numbers of a row in an array.
const maxWidth = 1 << 20

func openNPZ(file io.ReaderAt, size int64) (*columnar, error) {
	z, err := zip.NewReader(file, size)
	if err != nil {
		return nil, unusable("NPZ: %v: is the file whole?", err)
	}
	c := &columnar{}
	var members []*zip.File
	for _, f := range z.File {
		a, err := openArray(f)
		if err != nil {
			return nil, err
		}
		a.Close()
		if len(a.h.Shape) == 0 {
			continue
		}
		row := npy.Header{Shape: a.h.Shape[1:]}
		if row.Elems() > maxWidth {
			return nil, unusable("array %q has %d numbers a row: at most %d", f.Name, row.Elems(), maxWidth)
		}
		c.all = append(c.all, column{strings.TrimSuffix(f.Name, ".npy"), a.h.Shape[0], int(row.Elems())})
		members = append(members, f)
	}
	if len(members) == 0 {
		return nil, unusable("NPZ without an array of rows")
	}
	c.open = func(at int) (cursor, error) {
		a, err := openArray(members[at])
		if err == nil && a.h.Fortran && c.all[at].width > 1 {
			err = unusable("array %q lies column by column: numpy.ascontiguousarray turns it", a.name)
		}
		return a, err
	}
	return c, nil
}

// array is the cursor of an array.
type array struct {
	io.Closer
	name  string
	h     *npy.Header
	order binary.ByteOrder
	r     *bufio.Reader
	raw   []byte
}

func openArray(f *zip.File) (*array, error) {
	r, err := f.Open()
	if err != nil {
		return nil, unusable("array %q: %w", f.Name, err)
	}
	a, err := newArray(f.Name, bufio.NewReaderSize(r, 1<<16))
	if err != nil {
		return nil, err
	}
	a.Closer = r
	return a, nil
}

func newArray(name string, r *bufio.Reader) (*array, error) {
	h, err := npy.Read(r)
	if err != nil {
		return nil, unusable("array %q: %w", name, err)
	}
	a := &array{name: name, h: h, order: binary.LittleEndian, r: r}
	if a.h.Order == '>' {
		a.order = binary.BigEndian
	}
	return a, nil
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

func (a *array) numbers(to []float64, rows, width, stride int) error {
	kind := fmt.Sprintf("%c%d", a.h.Kind, a.h.Size)
	decode := decoders[kind]
	if decode == nil {
		return fmt.Errorf("its elements are of type %s, not integers, f4 or f8: convert it, or name the features without it", kind)
	}
	for row := range rows {
		raw, err := a.next(width)
		if err != nil {
			return err
		}
		for i := range width {
			to[row*stride+i] = decode(a.order, raw[i*a.h.Size:])
		}
	}
	return nil
}

func (a *array) labels(to []string) error {
	if a.h.Kind != 'S' && a.h.Kind != 'U' {
		return numbersAsText(to, a)
	}
	for i := range to {
		raw, err := a.next(1)
		if err != nil {
			return err
		}
		if a.h.Kind == 'U' {
			var s strings.Builder
			for ; len(raw) > 0; raw = raw[4:] {
				s.WriteRune(rune(a.order.Uint32(raw)))
			}
			raw = []byte(s.String())
		}
		to[i] = strings.TrimRight(string(raw), "\x00")
	}
	return nil
}
