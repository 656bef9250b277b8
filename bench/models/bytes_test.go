package models

import (
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/rackweave/rackweave/chunk"
)

func TestSizesParse(t *testing.T) {
	for s, want := range map[string]uint64{
		"0": 0, "1": 1, "17B": 17, "3KB": 3000, "100MB": 100e6, "4 GB": 4e9, "2TB": 2e12,
		"100M": 100 << 20, "8k": 8 << 10, "2G": 2 << 30, "1g": 1 << 30, "32KiB": 32 << 10, "1MiB": 1 << 20, "7GiB": 7 << 30,
		"1 TiB": 1 << 40, "18446744073709551615": 1<<64 - 1,
	} {
		if got, err := ParseBytes(s); err != nil || got != want {
			t.Errorf("ParseBytes(%q) = %d, %v", s, got, err)
		}
	}
	for _, s := range []string{"", "MB", "-1", "+1", "1.5GB", "1e9", "5mb", "5Mi", "5t", "5gb", "5 MB B", "5B5", "5iB",
		"18446744073709551616", "18446744073709551615KB"} {
		if got, err := ParseBytes(s); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("size %q: ", s)) {
			t.Errorf("ParseBytes(%q) = %d, %v", s, got, err)
		}
	}
}

func FuzzSizesParseOrExplain(f *testing.F) {
	f.Add("100MB")
	f.Add("9999999999 TiB")
	f.Fuzz(func(t *testing.T, s string) {
		n, err := ParseBytes(s)
		if err != nil {
			return
		}
		if again, err := ParseBytes(fmt.Sprintf("%dB", n)); err != nil || again != n {
			t.Errorf("%q is %d, which reads as %d, %v", s, n, again, err)
		}
	})
}

func TestSyntheticModelHasTheSizeAskedForInEvenTensors(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := rapid.SampledFrom([]chunk.DType{chunk.F32, chunk.BF16}).Draw(t, "dtype")
		elems := rapid.OneOf(rapid.Uint64Range(1, 100), rapid.Uint64Range(1, maxElems)).Draw(t, "elems")
		m, err := FromBytes(fmt.Sprint(elems*uint64(d.Size())), d)
		if err != nil {
			t.Fatal(err)
		}
		if m.Params() != elems || len(m.Tensors) < 1 || len(m.Tensors) > syntheticTensors {
			t.Fatalf("%d elements in %d tensors", m.Params(), len(m.Tensors))
		}
		least, most := m.Tensors[len(m.Tensors)-1].Elems(), m.Tensors[0].Elems()
		if least == 0 || most-least > 1 || len(m.Tensors) > 1 && least*uint64(d.Size()) < syntheticTensorBytes-4 {
			t.Fatalf("tensors of %d to %d elements", least, most)
		}
	})
	for size, want := range map[string]string{
		"0": "0 elements", "101": "not a whole number of f32 elements of 4 bytes", "2048TiB": "562949953421312 elements",
		"much": `size "much"`,
	} {
		if _, err := FromBytes(size, chunk.F32); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("FromBytes(%q): %v", size, err)
		}
	}
	if _, err := FromBytes("4", 0); err == nil {
		t.Error("no dtype: no error")
	}
}
