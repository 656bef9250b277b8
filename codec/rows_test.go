package codec

import (
	"bytes"
	"encoding/hex"
	"errors"
	"testing"
)

func TestRowsTakeTheShorterOfIdsAndABitmap(t *testing.T) {
	for _, c := range []struct {
		from, to uint32
		ids      []uint32
		want     string
	}{
		{0, 70, nil, "00000000" + "46000000" + "00000000" + "00000000"},
		{10, 110, []uint32{11, 42, 99}, "0a000000" + "6e000000" + "03000000" + "01000000" + "0b0000002a00000063000000" + "aabbcc"},
		{10, 43, []uint32{10, 41, 42}, "0a000000" + "2b000000" + "03000000" + "01010000" + "0100008001000000" + "aabbcc"},
	} {
		values := []byte{0xaa, 0xbb, 0xcc}[:len(c.ids)]
		kind := RowsWanted
		if c.ids == nil {
			kind = RowsGradient
		}
		p := AppendRows(nil, kind, c.from, c.to, c.ids, values)
		if got := hex.EncodeToString(p); got != c.want {
			t.Errorf("%v in [%d, %d) are %s, want %s", c.ids, c.from, c.to, got, c.want)
		}
		h, err := ParseRows(p[:RowsHeader], uint32(len(p)), 1)
		if err != nil || h.From != c.from || h.To != c.to || int(h.Count) != len(c.ids) || h.Kind != kind ||
			!bytes.Equal(p[h.Offset():], values) {
			t.Errorf("%s reads as %+v, %v", c.want, h, err)
		}
	}
}

func TestAMessageOfRowsHasTheLengthThatItsHeaderTells(t *testing.T) {
	for name, c := range map[string]struct {
		h     Rows
		bytes uint32
	}{
		"shorter than a header":       {Rows{To: 1}, 15},
		"an empty range":              {Rows{From: 4, To: 4}, 16},
		"a range that ends before":    {Rows{From: 5, To: 4}, 16},
		"more rows than its range":    {Rows{To: 4, Count: 5}, 16 + 5*4 + 5*8},
		"a row too long":              {Rows{To: 4, Count: 1}, 16 + 4 + 16},
		"a row too short":             {Rows{To: 4, Count: 1}, 16 + 4 + 7},
		"ids, though a bitmap":        {Rows{To: 40, Count: 1, Bitmap: true}, 16 + 4 + 8},
		"rows of 2^32 bytes and more": {Rows{To: 1 << 31, Count: 1 << 30}, 16},
		"a fetch with rows":           {Rows{Kind: RowsFetch, Count: 1}, 20},
		"a fetch of a range":          {Rows{Kind: RowsFetch, To: 1}, 16},
		"a pull of a range":           {Rows{Kind: RowsPull, To: 4, Count: 1}, 20},
		"a pull by bitmap":            {Rows{Kind: RowsPull, Bitmap: true}, 16},
		"a pull with rows":            {Rows{Kind: RowsPull, Count: 1}, 28},
		"a block":                     {Rows{Kind: RowsBlock, To: 4}, 16},
		"an unknown kind":             {Rows{Kind: 9, To: 4}, 16},
	} {
		if _, err := ParseRows(c.h.Append(nil), c.bytes, 8); !errors.Is(err, ErrRows) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for i := range 3 {
		p := Rows{Kind: RowsFetch}.Append(nil)
		p[13+i] = 2
		if _, err := ParseRows(p, 16, 8); !errors.Is(err, ErrRows) {
			t.Errorf("byte %d is 2: %v", 13+i, err)
		}
	}
	for _, h := range []Rows{{Kind: RowsFetch}, {Kind: RowsPull}} {
		if got, err := ParseRows(h.Append(nil), 16, 8); got != h || err != nil {
			t.Errorf("%+v reads as %+v, %v", h, got, err)
		}
	}
	if h, err := ParseRows(Rows{Kind: RowsPull, Count: 3}.Append(nil), 28, 8); h.Count != 3 || err != nil {
		t.Errorf("a pull of 3 reads as %+v, %v", h, err)
	}
}
