package kernel_test

import (
	"math/rand/v2"
	"testing"

	"github.com/rackweave/rackweave/cgo/kernel"
	"github.com/rackweave/rackweave/codec"
)

// checkAlike compares the check with codec.Check, and returns whether the payload passes.
func checkAlike(t *testing.T, p []byte, elems int) bool {
	t.Helper()
	want, err := codec.Check(p, elems)
	if want.ID() == codec.TopK {
		return false
	}
	form, wrong := kernel.Check(p, elems)
	if form != uint64(want) || (wrong == "") != (err == nil) {
		t.Fatalf("%d bytes for %d elements, %x: form %#x, %q; expected %#x, %v", len(p), elems, p[:min(len(p), 32)], form, wrong, want, err)
	}
	return err == nil
}

func TestAPayloadPassesIfItsPlainCheckPasses(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	passed := 0
	for _, text := range codec.Names()[1:] {
		spec, err := codec.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		for _, elems := range []int{1, 7, 64, 511, 513, 5000} {
			g, p := make([]float32, elems), make([]byte, 4*elems)
			for i := range g {
				g[i] = r.Float32() - 0.5
			}
			p = p[:spec.Encode(p, g, nil, 1, codec.Key{})]
			if !checkAlike(t, p, elems) && spec.ID != codec.TopK {
				t.Fatalf("%v of %d elements does not pass", spec, elems)
			}
			for range 2000 {
				broken := append([]byte(nil), p[:len(p)-r.IntN(2)*r.IntN(2)]...)
				for range 1 + r.IntN(2) {
					broken[r.IntN(min(len(broken), 16+4*elems/512+8))] = byte(r.Uint32())
				}
				if checkAlike(t, broken, elems) {
					passed++
				}
			}
		}
	}
	if passed == 0 {
		t.Error("every change broke the payload: the test does not see what may change")
	}
}

func FuzzCheck(f *testing.F) {
	f.Add([]byte{1, 1, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 128, 63, 1, 2, 3, 4, 5, 6, 7}, uint16(7))
	f.Fuzz(func(t *testing.T, p []byte, elems uint16) { checkAlike(t, p, max(1, int(elems))) })
}
