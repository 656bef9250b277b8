package npy

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func header(version byte, text string) []byte {
	b := append([]byte(Magic), version, 0, byte(len(text)), byte(len(text)>>8))
	if version > 1 {
		b = append(b, 0, 0)
	}
	return append(b, text...)
}

func TestHeadersOfNumpyAreRead(t *testing.T) {
	for _, c := range []struct {
		version byte
		text    string
		want    Header
	}{
		{1, "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 5), }  \n", Header{'<', 'f', 4, false, []uint64{3, 5}}},
		{2, "{'descr': '>i8', 'fortran_order': True, 'shape': (7,), }\n", Header{'>', 'i', 8, true, []uint64{7}}},
		{3, "{'descr': '|b1', 'fortran_order': False, 'shape': (), }\n", Header{'|', 'b', 1, false, nil}},
		{1, "{'descr': '<U12', 'fortran_order': False, 'shape': (0, 4), }", Header{'<', 'U', 48, false, []uint64{0, 4}}},
		{1, "{'descr': '|O', 'fortran_order': False, 'shape': (2,), }", Header{'|', 'O', 0, false, []uint64{2}}},
	} {
		h, err := Read(bytes.NewReader(header(c.version, c.text)))
		if err != nil {
			t.Errorf("%s: %v", c.text, err)
		} else if h.Order != c.want.Order || h.Kind != c.want.Kind || h.Size != c.want.Size || h.Fortran != c.want.Fortran ||
			!slices.Equal(h.Shape, c.want.Shape) {
			t.Errorf("%s is read as %+v, not %+v", c.text, *h, c.want)
		}
	}
}

func TestHeadersThatAreNotAnArraysAreRefused(t *testing.T) {
	ok := "{'descr': '<f4', 'fortran_order': False, 'shape': (3,), }"
	for text, raw := range map[string][]byte{
		"begins":  []byte("PK\x03\x04 and so on, a file of another kind"),
		"ends":    header(1, ok)[:30],
		"records": header(1, "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (3,), }"),
		"large":   header(1, "{'descr': '<f8', 'fortran_order': False, 'shape': (4611686018427387904, 9), }"),
		"bytes":   header(1, "{'descr': '<U99999999', 'fortran_order': False, 'shape': (1,), }"),
		"10000":   header(2, strings.Repeat(" ", 20000)),
	} {
		if _, err := Read(bytes.NewReader(raw)); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%.60q: %v, which does not have %q", raw, err, text)
		}
	}
}

func TestHeadersAreReadAsWritten(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := Header{'<', rapid.SampledFrom([]byte("iufSU")).Draw(t, "kind"), 4 * rapid.IntRange(1, 100).Draw(t, "size"),
			rapid.Bool().Draw(t, "fortran"), rapid.SliceOfN(rapid.Uint64Range(0, 999), 0, 5).Draw(t, "shape")}
		raw := h.Bytes()
		if len(raw)%align != 0 {
			t.Fatalf("elements begin at byte %d", len(raw))
		}
		got, err := Read(bytes.NewReader(raw))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got.Bytes(), raw) || got.Elems() != h.Elems() {
			t.Fatalf("%q is read as %+v", raw, got)
		}
	})
}

func FuzzRead(f *testing.F) {
	f.Add(header(1, "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 5), }  \n"))
	f.Add(header(2, "{'descr': '>i8', 'fortran_order': True, 'shape': (7,), }\n"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		h, err := Read(bytes.NewReader(raw))
		if err != nil {
			return
		}
		if n := h.Elems(); h.Size > 0 && n > 1<<62/uint64(h.Size) {
			t.Fatalf("%+v has %d elements", h, n)
		}
	})
}
