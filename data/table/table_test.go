package table

import (
	"archive/zip"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/parquet-go/parquet-go"
	schema "github.com/parquet-go/parquet-go/format"
	"pgregory.net/rapid"

	"github.com/rackweave/rackweave/data/npy"
)

// row is a row of the files that tests write.
type row struct {
	X     float32 `parquet:"x"`
	Label string  `parquet:"label"`
	N     int64   `parquet:"n"`
}

func csvOf(rows []row) []byte {
	var b bytes.Buffer
	fmt.Fprintln(&b, "x,label,n")
	for _, r := range rows {
		fmt.Fprintf(&b, "%v,%q,%d\n", r.X, r.Label, r.N)
	}
	return b.Bytes()
}

func parquetOf(rows []row) []byte {
	var b bytes.Buffer
	w := parquet.NewGenericWriter[row](&b, parquet.MaxRowsPerRowGroup(700), parquet.PageBufferSize(1000))
	if _, err := w.Write(rows); err != nil {
		panic(err)
	}
	if err := w.Close(); err != nil {
		panic(err)
	}
	return b.Bytes()
}

// member is an array of an NPZ file, with elements of a fixed size or as bytes.
type member struct {
	name string
	h    npy.Header
	data any
}

func npzOf(method uint16, members ...member) []byte {
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	for _, m := range members {
		w, err := z.CreateHeader(&zip.FileHeader{Name: m.name + ".npy", Method: method})
		if err != nil {
			panic(err)
		}
		w.Write(m.h.Bytes())
		order := binary.ByteOrder(binary.LittleEndian)
		if m.h.Order == '>' {
			order = binary.BigEndian
		}
		if err := binary.Write(w, order, m.data); err != nil {
			panic(err)
		}
	}
	if err := z.Close(); err != nil {
		panic(err)
	}
	return b.Bytes()
}

func npzOfRows(method uint16, rows []row) []byte {
	x, n, labels := make([]float32, 0), make([]int64, 0), make([]byte, 0)
	const wide = 5
	for _, r := range rows {
		x, n = append(x, r.X), append(n, r.N)
		label := make([]byte, wide)
		copy(label, r.Label)
		labels = append(labels, label...)
	}
	count := uint64(len(rows))
	return npzOf(method, member{"x", npy.Header{Order: '>', Kind: 'f', Size: 4, Shape: []uint64{count, 1, 1}}, x},
		member{"label", npy.Header{Order: '|', Kind: 'S', Size: wide, Shape: []uint64{count}}, labels},
		member{"other", npy.Header{Order: '<', Kind: 'i', Size: 8, Shape: []uint64{count + 1}}, make([]int64, count+1)},
		member{"n", npy.Header{Order: '<', Kind: 'i', Size: 8, Shape: []uint64{count}}, n})
}

func (t *Table) read(want Want, f func(*Batch) error) error {
	rows, err := t.Select(want)
	if err != nil {
		return err
	}
	return rows.Read(f)
}

func open(t interface{ Fatal(...any) }, dir, name string, raw []byte) (*Table, error) {
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	return Open(path)
}

// read returns all rows, by the columns of type row that are wanted.
func read(t *Table, want Want) (rows []row, err error) {
	done := 0.0
	err = t.read(want, func(b *Batch) error {
		if b.Row != uint64(len(rows)) || b.Rows == 0 || b.Done < done || b.Done > 1 {
			return fmt.Errorf("a batch %+v after %d rows", b, len(rows))
		}
		done = b.Done
		for i := range b.Rows {
			var r row
			if want.Label != "" {
				r.Label = b.Labels[i]
			}
			if want.Features {
				x := b.X[i*b.Width:][:b.Width]
				r.X, r.N = float32(x[0]), int64(x[1])
			}
			rows = append(rows, r)
		}
		return nil
	})
	if err == nil && done != 1 {
		err = fmt.Errorf("%v of the file is done", done)
	}
	return rows, err
}

func TestFormatsHaveTheSameRows(t *testing.T) {
	dir := t.TempDir()
	rapid.Check(t, func(t *rapid.T) {
		rows := make([]row, rapid.SampledFrom([]int{1, 5, batchRows, batchRows + 1, 3000}).Draw(t, "rows"))
		seed := rapid.Uint32().Draw(t, "seed")
		for i := range rows {
			h := (uint32(i) + seed) * 2654435761
			rows[i] = row{float32(h) / 7, []string{"a", "b,c", "ü"}[h>>8%3], int64(h%100) - 50}
		}
		for name, raw := range map[string][]byte{
			"in.csv": csvOf(rows), "in.tsv": bytes.ReplaceAll(bytes.ReplaceAll(csvOf(rows), []byte(",\""), []byte("\t\"")),
				[]byte("\","), []byte("\"\t")),
			"stored.npz": npzOfRows(zip.Store, rows), "compressed.npz": npzOfRows(zip.Deflate, rows), "in.parquet": parquetOf(rows),
		} {
			if name == "in.tsv" {
				raw = bytes.Replace(raw, []byte("x,label,n"), []byte("\ufeffx\tlabel\tn"), 1)
			}
			f, err := open(t, dir, name, raw)
			if err != nil {
				t.Fatal(name, err)
			}
			defer f.Close()
			for _, want := range []Want{{Label: "label", Features: true}, {Label: "label"}, {Features: true, Columns: []string{"x", "n"}}} {
				got, err := read(f, want)
				if err != nil {
					t.Fatal(name, err)
				}
				for i, r := range rows {
					if want.Label == "" {
						r.Label = ""
					}
					if !want.Features {
						r.X, r.N = 0, 0
					}
					if i >= len(got) || got[i] != r {
						t.Fatalf("%s, wanting %+v: row %d of %d is %+v, not %+v", name, want, i, len(got), got[min(i, len(got)-1)], r)
					}
				}
			}
		}
	})
}

func TestArraysOfAllTypesAreRead(t *testing.T) {
	var chars []uint32
	for _, s := range []string{"ja", "n\U0001F600", "x"} {
		r := []rune(s + "\x00\x00")
		chars = append(chars, uint32(r[0]), uint32(r[1]))
	}
	for _, c := range []struct {
		m    member
		want []string
	}{
		{member{"y", npy.Header{Order: '|', Kind: 'b', Size: 1}, []bool{true, false, true}}, []string{"1", "0", "1"}},
		{member{"y", npy.Header{Order: '|', Kind: 'u', Size: 1}, []uint8{255, 0, 1}}, []string{"255", "0", "1"}},
		{member{"y", npy.Header{Order: '|', Kind: 'i', Size: 1}, []int8{-1, 0, 1}}, []string{"-1", "0", "1"}},
		{member{"y", npy.Header{Order: '>', Kind: 'u', Size: 2}, []uint16{65535, 0, 1}}, []string{"65535", "0", "1"}},
		{member{"y", npy.Header{Order: '<', Kind: 'i', Size: 2}, []int16{-300, 0, 1}}, []string{"-300", "0", "1"}},
		{member{"y", npy.Header{Order: '>', Kind: 'i', Size: 4}, []int32{-70000, 0, 1}}, []string{"-70000", "0", "1"}},
		{member{"y", npy.Header{Order: '<', Kind: 'u', Size: 4}, []uint32{1 << 31, 0, 1}}, []string{"2147483648", "0", "1"}},
		{member{"y", npy.Header{Order: '<', Kind: 'u', Size: 8}, []uint64{1 << 53, 0, 1}}, []string{"9007199254740992", "0", "1"}},
		{member{"y", npy.Header{Order: '<', Kind: 'i', Size: 8}, []int64{-5, 0, 1}}, []string{"-5", "0", "1"}},
		{member{"y", npy.Header{Order: '<', Kind: 'f', Size: 4}, []float32{-0.5, 0, 1}}, []string{"-0.5", "0", "1"}},
		{member{"y", npy.Header{Order: '>', Kind: 'f', Size: 8}, []float64{1e20 / 1e18, 0, 1}}, []string{"100", "0", "1"}},
		{member{"y", npy.Header{Order: '<', Kind: 'U', Size: 8}, chars}, []string{"ja", "n\U0001F600", "x"}},
	} {
		c.m.h.Shape = []uint64{3}
		f, err := open(t, t.TempDir(), "in.npz", npzOf(zip.Store, c.m))
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		err = f.read(Want{Label: "y"}, func(b *Batch) error { got = append(got, b.Labels...); return nil })
		if err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%c%d: %q, not %q: %v", c.m.h.Kind, c.m.h.Size, got, c.want, err)
		}
		f.Close()
	}
}

// half is the type of float16.
type half struct{ parquet.Type }

func (half) LogicalType() *schema.LogicalType {
	return &schema.LogicalType{Value: &schema.Float16Type{}}
}

// parquetOfOpaque has columns whose bytes are neither text nor numbers, and one of numbers.
func parquetOfOpaque() []byte {
	var b bytes.Buffer
	two, nine := parquet.FixedLenByteArrayType(2), parquet.FixedLenByteArrayType(9)
	w := parquet.NewWriter(&b, parquet.NewSchema("rows", parquet.Group{
		"half": parquet.Leaf(half{two}), "price": parquet.Decimal(2, 20, nine), "tags": parquet.Repeated(parquet.String()),
		"x": parquet.Leaf(parquet.DoubleType),
	}))
	row := parquet.Row{parquet.FixedLenByteArrayValue([]byte("\x00<")).Level(0, 0, 0),
		parquet.FixedLenByteArrayValue(make([]byte, 9)).Level(0, 0, 1), parquet.ByteArrayValue([]byte("a")).Level(0, 1, 2),
		parquet.DoubleValue(1).Level(0, 0, 3)}
	if _, err := w.WriteRows([]parquet.Row{row}); err != nil {
		panic(err)
	}
	if err := w.Close(); err != nil {
		panic(err)
	}
	return b.Bytes()
}

// A column that cannot be read does not prevent others from being read.
func TestColumnsBesideOpaqueOnesAreRead(t *testing.T) {
	f, err := open(t, t.TempDir(), "in.parquet", parquetOfOpaque())
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, want := range []Want{{}, {Label: "x"}, {Features: true, Columns: []string{"x"}}} {
		rows := 0
		if err := f.read(want, func(b *Batch) error { rows += b.Rows; return nil }); err != nil || rows != 1 {
			t.Errorf("%+v: %d rows: %v", want, rows, err)
		}
	}
	f, err = open(t, t.TempDir(), "in.csv", []byte("x,,\n1,2,3\n")) // columns without a name
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
}

func TestUnusableInputsAreNamed(t *testing.T) {
	rows := []row{{1, "a", 2}, {3, "b", 4}, {5, "a", 6}}
	nan := slices.Clone(rows)
	nan[2].X = float32(math.NaN())
	i64 := func(shape ...uint64) npy.Header { return npy.Header{Order: '<', Kind: 'i', Size: 8, Shape: shape} }
	fortran := i64(2, 2)
	fortran.Fortran = true
	both := Want{Label: "label", Features: true}
	long := strings.Repeat("long", 100)
	opaque := parquetOfOpaque()
	for _, c := range []struct {
		name string
		raw  []byte
		want Want
		err  []string
	}{
		{"empty.csv", nil, both, []string{"empty"}},
		{"header.csv", []byte("x,label\n"), both, []string{"no rows"}},
		{"none.npz", npzOfRows(zip.Store, nil), both, []string{"no rows"}},
		{"none.parquet", parquetOf(nil), both, []string{"no rows"}},
		{"other.csv", csvOf(rows), Want{Label: "labels"}, []string{`"labels"`, `did you mean "label"`, "x, label, n"}},
		{"other.npz", npzOfRows(zip.Store, rows), Want{Label: "Label"}, []string{`did you mean "label"`, "x, label, other, n"}},
		{"other.parquet", parquetOf(rows), Want{Features: true, Columns: []string{"m"}}, []string{`no column "m"`, "x, label, n"}},
		{"twice.csv", []byte("x,x\n1,2\n"), Want{}, []string{`the first line names several columns "x"`}},
		{"semicolons.csv", []byte("x;label\n1;2\n"), both, []string{`"x;label", has no comma`, "tabs in a .tsv file"}},
		{"tabs.csv", []byte("x\tlabel\n1\t2\n"), both, []string{"tabs in a .tsv file"}},
		{"ragged.csv", []byte("x,label\n1,2\n3\n"), both, []string{"line 3 has 1 fields"}},
		{"quote.csv", []byte("x,label\n1,\"2\n"), both, []string{"line 2"}},
		{"text.csv", []byte("x,label\n1,2\n?,2\n"), both, []string{`row 1, column "x": "?" is not a number`}},
		{"label.csv", []byte("x,label\n1,2\n1,\n"), both, []string{`row 1, column "label": it is "", not a label`}},
		{"long.csv", []byte("x,label\n1," + long + "\n"), both, []string{"row 0", "at most 256"}},
		{"numbers.csv", []byte("1,2\n3,4\n"), both, []string{"must name the columns"}},
		{"binary.csv", []byte("\x00\x01\x02"), both, []string{"not the first line of CSV"}},
		{"nan.csv", csvOf(nan), both, []string{`row 2, column "x": it is NaN`}},
		{"nan.npz", npzOfRows(zip.Deflate, nan), both, []string{`row 2, column "x": it is NaN`}},
		{"nan.parquet", parquetOf(nan), Want{Features: true, Columns: []string{"n", "x"}}, []string{`row 2, column "x": it is NaN`}},
		{"gzip.csv", []byte("\x1f\x8b\x08\x00"), both, []string{"gunzip"}},
		{"one.npy", []byte("\x93NUMPY\x01\x00"), both, []string{"numpy.savez"}},
		{"text.parquet", parquetOf(rows), Want{Features: true}, []string{`column "label"`, `"a" is not a number`}},
		{"text.npz", npzOfRows(zip.Store, rows), Want{Features: true, Columns: []string{"label"}}, []string{"type S5"}},
		{"rows.npz", npzOfRows(zip.Store, rows), Want{}, []string{`"other" has 4 rows, and "x" 3`}},
		{"alone.npz", npzOf(zip.Store, member{"label", i64(1), []int64{1}}), both, []string{"no columns beside the label"}},
		{"others.npz", npzOf(zip.Store, member{"label", i64(1), []int64{1}}, member{"x", i64(2), []int64{1, 2}}), both,
			[]string{`no columns beside the label that have its rows; "x" has 2 rows`}},
		{"objects.npz", npzOf(zip.Store, member{"label", npy.Header{Order: '|', Kind: 'O', Shape: []uint64{1}}, []byte{1}}), Want{Label: "label"},
			[]string{`column "label": it is an array of objects: save numbers or fixed-width strings`}},
		{"half.parquet", opaque, Want{Label: "half"}, []string{`column "half" is of type FLOAT16: convert it`}},
		{"decimal.parquet", opaque, Want{Features: true, Columns: []string{"price"}}, []string{`"price" is of type DECIMAL(20,2)`}},
		{"every.parquet", opaque, Want{Features: true}, []string{`column "half" is of type FLOAT16`}},
		{"list.parquet", opaque, Want{Label: "tags"}, []string{`column "tags" is of type list`}},
		{"wide.npz", npzOf(zip.Store, member{"label", i64(1, 2), []int64{1, 2}}), both, []string{"2 values a row"}},
		{"turned.npz", npzOf(zip.Store, member{"x", fortran, make([]int64, 4)}), Want{Features: true}, []string{"ascontiguousarray"}},
		{"short.npz", npzOf(zip.Store, member{"x", i64(9), make([]int64, 8)}), Want{Features: true}, []string{`row 8, column "x": the file ends here`}},
		{"large.npz", npzOf(zip.Store, member{"x", i64(1), []int64{1<<53 + 2}}), Want{Label: "x"}, []string{"too large for a label"}},
		{"scalar.npz", npzOf(zip.Store, member{"x", i64(), []int64{1}}), both, []string{"without an array of rows"}},
		{"huge.npz", npzOf(zip.Store, member{"x", i64(1, 1<<40), []int64{1}}), both, []string{"at most 1048576"}},
	} {
		f, err := open(t, t.TempDir(), c.name, c.raw)
		if err == nil {
			err = f.read(c.want, func(*Batch) error { return nil })
			f.Close()
		}
		for _, want := range append(c.err, c.name) {
			if err == nil || !errors.Is(err, ErrInput) || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, which does not have %q", c.name, err, want)
			}
		}
	}
	if _, err := Open(t.TempDir()); !errors.Is(err, ErrInput) {
		t.Errorf("a folder: %v", err)
	}
}

// Nulls are of optional columns.
func TestNullsOfParquetAreNamed(t *testing.T) {
	var b bytes.Buffer
	w := parquet.NewGenericWriter[struct {
		X *float64 `parquet:"x,optional"`
	}](&b)
	one := 1.0
	for _, x := range []*float64{&one, nil} {
		if _, err := w.Write([]struct {
			X *float64 `parquet:"x,optional"`
		}{{x}}); err != nil {
			t.Fatal(err)
		}
	}
	w.Close()
	f, err := open(t, t.TempDir(), "in.parquet", b.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.read(Want{Label: "x"}, func(*Batch) error { return nil }); err == nil || !strings.Contains(err.Error(), `row 1, column "x": it is null`) {
		t.Error(err)
	}
}

func TestTruncatedFilesAreErrors(t *testing.T) {
	rows := make([]row, 2000)
	for i := range rows {
		rows[i] = row{float32(i), fmt.Sprint(i % 7), int64(i) * 7919}
	}
	dir := t.TempDir()
	for name, raw := range map[string][]byte{"in.npz": npzOfRows(zip.Deflate, rows), "in.parquet": parquetOf(rows)} {
		for n := 8; n < len(raw); n += 1 + n/7 {
			f, err := open(t, dir, name, raw[:n])
			if err == nil {
				err = f.read(Want{Label: "label", Features: true}, func(*Batch) error { return nil })
				f.Close()
			}
			if !errors.Is(err, ErrInput) {
				t.Errorf("the first %d of %d bytes of %s: %v", n, len(raw), name, err)
			}
		}
	}
}

func TestSumsAreOfTheWholeFile(t *testing.T) {
	f, err := open(t, t.TempDir(), "in.csv", []byte("x\n1\n"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	const want = "daff832f802000e645771a60983c76c963f6ee602a6230e45237bd360e91cc1a" // as sha256sum prints
	if sum, err := f.SHA256(func(float64) error { return nil }); err != nil || sum != want {
		t.Error(sum, err, want)
	}
	if err := f.Unchanged(); err != nil {
		t.Error(err)
	}
	if err := os.WriteFile(f.file.Name(), []byte("x\n1\n2\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := f.Unchanged(); !errors.Is(err, ErrInput) {
		t.Error(err)
	}
}

func TestLabelsAreReadFromLinesAndArrays(t *testing.T) {
	dir := t.TempDir()
	ints := func(shape ...uint64) []byte {
		h := npy.Header{Order: '<', Kind: 'i', Size: 2, Shape: shape}
		return h.Bytes()
	}
	var lines, array bytes.Buffer
	var want []string
	array.Write(ints(batchRows + 2))
	for i := range int16(batchRows + 2) {
		fmt.Fprintf(&lines, "%d\r\n", i-5)
		binary.Write(&array, binary.LittleEndian, i-5)
		want = append(want, fmt.Sprint(i-5))
	}
	for name, c := range map[string]struct {
		raw  []byte
		want []string
		err  string
	}{
		"lines": {lines.Bytes(), want, ""}, "array": {array.Bytes(), want, ""}, "no end": {[]byte("a\nb"), []string{"a", "b"}, ""},
		"short": {array.Bytes()[:array.Len()-1], nil,
			"row 1025, column \"group\": the file ends here"}, "empty": {nil, nil, "it has no rows"},
		"gap": {[]byte("a\n\nb\n"), nil, `row 1, column "group": it is ""`}, "table": {ints(2, 3), nil, "one of one dimension"},
		"long": {bytes.Repeat([]byte("x"), 1<<17), nil, "too long"}, "none": {ints(0), nil, "it has no rows"},
	} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, c.raw, 0o600); err != nil {
			t.Fatal(err)
		}
		var got []string
		err := ReadLabels(path, func(l []string) error { got = append(got, l...); return nil })
		if c.err == "" && (err != nil || !slices.Equal(got, c.want)) {
			t.Errorf("%s: %d labels, not %d: %v", name, len(got), len(c.want), err)
		}
		if c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err) || !strings.Contains(err.Error(), path)) {
			t.Errorf("%s: %v, which does not have %q", name, err, c.err)
		}
	}
	stop := errors.New("stop")
	if err := ReadLabels(filepath.Join(dir, "lines"), func([]string) error { return stop }); !errors.Is(err, stop) {
		t.Error(err)
	}
}

// What f returns ends the reading, as it is.
func TestReadingEndsWithTheCallersError(t *testing.T) {
	rows := make([]row, 5000)
	for i := range rows {
		rows[i].Label = "a"
	}
	stop := errors.New("stop")
	for name, raw := range map[string][]byte{"a.csv": csvOf(rows), "a.npz": npzOfRows(zip.Store, rows), "a.parquet": parquetOf(rows)} {
		f, err := open(t, t.TempDir(), name, raw)
		if err != nil {
			t.Fatal(err)
		}
		batches := 0
		err = f.read(Want{Label: "label"}, func(b *Batch) error {
			if batches++; batches == 2 {
				return stop
			}
			return nil
		})
		if err != stop || batches != 2 {
			t.Errorf("%s: %v after %d batches", name, err, batches)
		}
		f.Close()
	}
}

func FuzzRead(f *testing.F) {
	rows := []row{{1, "a", 2}, {3, "b", 4}, {5, "a", 6}}
	f.Add(csvOf(rows))
	f.Add(npzOfRows(zip.Store, rows))
	f.Add(npzOfRows(zip.Deflate, rows))
	f.Add(parquetOf(rows))
	f.Fuzz(func(t *testing.T, raw []byte) {
		table, err := open(t, t.TempDir(), "in", raw)
		if err != nil {
			return
		}
		defer table.Close()
		_ = ReadLabels(table.file.Name(), func([]string) error { return nil })
		labels := []string{""}
		for _, c := range table.columns[:min(3, len(table.columns))] {
			labels = append(labels, c.name)
		}
		for _, label := range labels {
			_ = table.read(Want{Label: label, Features: label != ""}, func(b *Batch) error {
				if b.Rows < 1 || len(b.X) != b.Rows*b.Width || label != "" && len(b.Labels) != b.Rows || b.Row > 1e6 {
					return fmt.Errorf("a batch of %d rows, %d labels and %d numbers", b.Rows, len(b.Labels), len(b.X))
				}
				return nil
			})
		}
	})
}
