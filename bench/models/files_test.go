package models

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"

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

func TestLayersAreRead(t *testing.T) {
	want := []Tensor{
		{"layer0", []int{524288}, 5 * time.Microsecond, 6 * time.Microsecond},
		{"layer3", []int{1}, 0, 7},
	}
	for name, text := range map[string]string{
		"header":        "layer_index,numel,forward_ns,backward_ns\n0,524288,5000,6000\n3,1,0,7\n",
		"SwitchML's":    "layer_index, numel, forward_pass_ns, backward_pass_ns\n0,524288,5000,6000\n3,1,0,7",
		"no header":     "0,524288,5000,6000\n3,1,0,7",
		"spaced, DOS's": "0 , 524288,\t5000, 6000 \r\n\r\n3,1,0,7\r\n",
	} {
		m, err := FromCSV(strings.NewReader(text))
		if err != nil || !slices.EqualFunc(m.Tensors, want, func(a, b Tensor) bool { return fmt.Sprint(a) == fmt.Sprint(b) }) {
			t.Errorf("%s: %v, %v", name, m.Tensors, err)
		}
	}
}

func TestLayersErrorsNameTheLine(t *testing.T) {
	for text, want := range map[string]string{
		"":                               "the file has none",
		"layer_index,numel,f,b\n":        "the file has none",
		"0,1,2\n":                        "line 1: not the four fields",
		"0,1,2,3\n1,2,3,4,5\n":           "line 2: not the four fields",
		"0,1,2,3\n\n1,x,3,4\n":           `line 3: numel "x": use a whole number from 0 to 281474976710656`,
		"0,0,2,3\n":                      "line 1: numel is 0",
		"-1,1,2,3\n":                     `line 1: layer_index "-1"`,
		"0,1,2,3\n0,1,2,3\n":             "line 2: layer_index 0 after 0",
		"0,1,-2,3\n":                     `line 1: forward_ns "-2"`,
		"0,1,2,9223372036854775808\n":    `line 1: backward_ns "9223372036854775808"`,
		"0,281474976710657,2,3\n":        `line 1: numel "281474976710657"`,
		"0,281474976710656,2,3\n1,1,2,3": "line 2: 281474976710657 elements in 2 layers so far",
		"0,1,2,3\n1,\"1,2,3\n":           "line 2: ",
		"index,numel,f,b\n0,1,2,3\n":     `line 1: layer_index "index"`,
	} {
		if m, err := FromCSV(strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), want) || m.Tensors != nil {
			t.Errorf("%q: %v", text, err)
		}
	}
	broken := errors.New("broken disk")
	if _, err := FromCSV(iotest.ErrReader(broken)); !errors.Is(err, broken) {
		t.Errorf("a reader's error: %v", err)
	}
}

func FuzzLayersAreAModelThatCanBePlannedOrAnError(f *testing.F) {
	f.Add([]byte("layer_index, numel, forward_pass_ns, backward_pass_ns\n0,524288,5000,5000\n1,1,0,0\n"))
	f.Add([]byte("0,1,2,3\r\n5,\"7\",2,3"))
	f.Fuzz(func(t *testing.T, text []byte) {
		m, err := FromCSV(bytes.NewReader(text))
		if err != nil {
			if !strings.Contains(err.Error(), "layers") {
				t.Errorf("%v does not say what it is about", err)
			}
			return
		}
		if n := m.Params(); n == 0 || n > maxElems {
			t.Errorf("%d parameters", n)
		}
		seen := map[string]bool{}
		for _, ts := range m.Tensors {
			if ts.Elems() == 0 || ts.Forward < 0 || ts.Backward < 0 || seen[ts.Name] {
				t.Errorf("tensor %+v", ts)
			}
			seen[ts.Name] = true
		}
	})
}

type endless struct{}

func (endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = '1'
	}
	return len(p), nil
}

func TestAFileOfLayersHasABound(t *testing.T) {
	if _, err := FromCSV(endless{}); err == nil || !strings.Contains(err.Error(), "more than 134217728 bytes") {
		t.Errorf("error %v, want the bound", err)
	}
}
