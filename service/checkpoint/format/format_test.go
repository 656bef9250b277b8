package format

import (
	"bytes"
	"errors"
	"io"
	"math"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/rackweave/rackweave/hierarchy"
	"github.com/rackweave/rackweave/service/api"
)

func header(arrays uint32, elems ...uint64) *api.CheckpointHeader {
	h := &api.CheckpointHeader{Job: "job", Mode: "eager", Optimizer: "adam_torch", Arrays: arrays, SavedUnix: 7}
	for i, n := range elems {
		h.Tensors = append(h.Tensors, &api.CheckpointTensor{Name: strings.Repeat("t", i+1), Elems: n, Updates: uint32(i)})
	}
	return h
}

// content is what a header's arrays hold in these tests, one after another.
func content(h *api.CheckpointHeader) []float32 {
	var x []float32
	for _, t := range h.Tensors {
		for range t.Elems * uint64(h.Arrays) {
			x = append(x, float32(len(x))*0.5)
		}
	}
	return x
}

func file(t testing.TB, h *api.CheckpointHeader) []byte {
	var b bytes.Buffer
	w, err := NewWriter(&b, h)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Write(content(h)); err != nil {
		t.Fatal(err)
	}
	if sum, err := w.Close(); err != nil || !bytes.HasSuffix(b.Bytes(), sum) {
		t.Fatalf("%x, %v", sum, err)
	}
	return b.Bytes()
}

func TestWhatIsWrittenIsReadWhateverThePieces(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		racks := rapid.SampledFrom([][]string{nil, {"a", "b"}}).Draw(t, "racks")
		h := header(rapid.Uint32Range(1, uint32(4+4*len(racks))).Draw(t, "arrays"),
			rapid.SliceOfN(rapid.Uint64Range(1, 3*blockElems), 0, 4).Draw(t, "elems")...)
		h.Racks = racks
		x := content(h)
		var b bytes.Buffer
		w, err := NewWriter(&b, h)
		if err != nil {
			t.Fatal(err)
		}
		for rest := x; len(rest) > 0; {
			n := rapid.IntRange(1, len(rest)).Draw(t, "write")
			if err := w.Write(rest[:n]); err != nil {
				t.Fatal(err)
			}
			rest = rest[n:]
		}
		if _, err := w.Close(); err != nil {
			t.Fatal(err)
		}
		r, err := NewReader(&b)
		if err != nil {
			t.Fatal(err)
		}
		if !proto.Equal(r.Header, h) {
			t.Fatalf("header %v, wrote %v", r.Header, h)
		}
		got := make([]float32, len(x))
		for rest := got; len(rest) > 0; {
			n := rapid.IntRange(1, len(rest)).Draw(t, "read")
			if err := r.Read(rest[:n]); err != nil {
				t.Fatal(err)
			}
			rest = rest[n:]
		}
		for i := range x {
			if got[i] != x[i] {
				t.Fatalf("element %d is %v, wrote %v", i, got[i], x[i])
			}
		}
	})
}

func TestNaNsKeepTheirBits(t *testing.T) {
	h := header(1, 1)
	var b bytes.Buffer
	w, err := NewWriter(&b, h)
	if err != nil {
		t.Fatal(err)
	}
	nan := math.Float32frombits(0x7fc12345)
	if err := w.Write([]float32{nan}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Close(); err != nil {
		t.Fatal(err)
	}
	r, err := NewReader(&b)
	if err != nil {
		t.Fatal(err)
	}
	var x [1]float32
	if err := r.Read(x[:]); err != nil || math.Float32bits(x[0]) != math.Float32bits(nan) {
		t.Fatalf("%08x, %v", math.Float32bits(x[0]), err)
	}
}

func TestEveryDamageIsFound(t *testing.T) {
	good := file(t, header(2, 5, 3))
	if _, sum, err := Verify(bytes.NewReader(good)); err != nil || !bytes.HasSuffix(good, sum) {
		t.Fatalf("%x, %v", sum, err)
	}
	for i := range good {
		bad := bytes.Clone(good)
		bad[i] ^= 0x10
		if _, _, err := Verify(bytes.NewReader(bad)); !errors.Is(err, ErrCorrupt) {
			t.Errorf("byte %d damaged: %v", i, err)
		}
	}
	for n := range good {
		if _, _, err := Verify(bytes.NewReader(good[:n])); !errors.Is(err, ErrCorrupt) {
			t.Errorf("cut to %d bytes: %v", n, err)
		}
	}
	if _, _, err := Verify(bytes.NewReader(append(bytes.Clone(good), 0))); !errors.Is(err, ErrCorrupt) {
		t.Errorf("one byte too many: %v", err)
	}
}

func TestReadFindsDamageWithTheLastElements(t *testing.T) {
	bad := file(t, header(2, 5, 3))
	bad[len(bad)-40] ^= 1 // an element
	r, err := NewReader(bytes.NewReader(bad))
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Read(make([]float32, 15)); err != nil {
		t.Fatal(err)
	}
	if err := r.Read(make([]float32, 1)); !errors.Is(err, ErrCorrupt) {
		t.Errorf("%v", err)
	}
}

func TestAHeaderThatCannotBeIsRefused(t *testing.T) {
	of := func(arrays uint32, racks ...string) *api.CheckpointHeader {
		h := header(arrays, 1)
		h.Racks = racks
		return h
	}
	for name, h := range map[string]*api.CheckpointHeader{
		"many arrays of racks": of(25, "a", "b"),
		"many racks":           of(1, strings.Split(strings.Repeat("r", hierarchy.MaxRacks+1), "")...),
		"a rack without name":  of(1, "a", ""),
		"a rack's long name":   of(1, "a", strings.Repeat("b", hierarchy.MaxRackName+1)),
		"no arrays":            header(0, 1),
		"many arrays":          header(9, 1),
		"no elements":          header(1, 0),
		"name twice":           {Arrays: 1, Tensors: []*api.CheckpointTensor{{Name: "a", Elems: 1}, {Name: "a", Elems: 1}}},
		"no name":              {Arrays: 1, Tensors: []*api.CheckpointTensor{{Elems: 1}}},
	} {
		if _, err := NewWriter(io.Discard, h); err == nil {
			t.Errorf("%s: written", name)
		}
	}
}

func TestAFileThatEndsEarlyIsNotClosed(t *testing.T) {
	w, err := NewWriter(io.Discard, header(1, 4))
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Write(make([]float32, 3)); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Close(); err == nil {
		t.Error("closed with an element missing")
	}
}

func FuzzVerify(f *testing.F) {
	f.Add(file(f, header(2, 5, 3)))
	f.Add(file(f, header(1)))
	f.Add([]byte("RWCKPT2\n\xff\xff\xff\xff"))
	f.Fuzz(func(t *testing.T, b []byte) {
		h, _, err := Verify(bytes.NewReader(b))
		if err == nil {
			if _, err := check(h); err != nil {
				t.Error("took a header that cannot be")
			}
		}
		if err != nil && !errors.Is(err, ErrCorrupt) {
			t.Errorf("reading from memory failed otherwise than by its content: %v", err)
		}
	})
}

// A checkpoint of another version is not read, and its error names the versions. A save over several aggregators replaces it.
func TestAnotherVersionIsNamedAndReplaced(t *testing.T) {
	old := []byte("RWCKPT1\nand what it had")
	if _, err := NewReader(bytes.NewReader(old)); !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), "RWCKPT1") ||
		!strings.Contains(err.Error(), "RWCKPT2") {
		t.Errorf("read: %v, want both versions", err)
	}
	if m, err := ReadManifest(bytes.NewReader(old)); err != nil || len(m.Parts) > 0 {
		t.Errorf("its manifest: %v, %v, want none", m, err)
	}
}
