package worker_test

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"github.com/rackweave/rackweave/aggregate/optim"
	"github.com/rackweave/rackweave/cgo/fabric"
	"github.com/rackweave/rackweave/cgo/worker"
	"github.com/rackweave/rackweave/chunk"
)

// round returns what is left of a value in a type.
func round(x float32, d chunk.DType) float32 {
	b, out := make([]byte, d.Size()), []float32{0}
	optim.Encode(b, []float32{x}, d)
	optim.Decode(out, b, d)
	return out[0]
}

func TestRowsOfTheSameIDAreSummedInTheirOrder(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for _, d := range []chunk.DType{chunk.F32, chunk.BF16, chunk.F16} {
		for _, most := range []int64{1, 5, 3000, 1 << 40} {
			for _, n := range []int{0, 1, 2, 400} {
				width := 1 + r.IntN(20)
				ids, x := make([]int64, n), make([]float32, n*width)
				sums := map[int64][]float32{}
				for i := range x {
					x[i] = round(float32(r.NormFloat64()), d)
				}
				for i := range ids {
					ids[i] = r.Int64N(most)
					row := x[i*width:][:width]
					if s := sums[ids[i]]; s != nil {
						for j := range s {
							s[j] = round(s[j]+row[j], d)
						}
					} else {
						sums[ids[i]] = slices.Clone(row)
					}
				}
				rows := make([]byte, len(x)*d.Size())
				optim.Encode(rows, x, d)
				count := worker.SumRows(ids, unsafe.Pointer(unsafe.SliceData(rows)), uint32(width), uint8(d))
				if count != len(sums) || !slices.IsSorted(ids[:count]) {
					t.Fatalf("%v: %d ids are left of %d, expected %d, ascending", d, count, n, len(sums))
				}
				optim.Decode(x, rows, d)
				for i, id := range ids[:count] {
					if want := sums[id]; !slices.Equal(x[i*width:][:width], want) {
						t.Fatalf("%v: row %d is %v, expected %v", d, id, x[i*width:][:width], want)
					}
				}
			}
		}
	}
}

func TestRowsAreSummedOnlyWithMemoryATypeAndNumbersOfRows(t *testing.T) {
	runtime.LockOSThread() // which has the text of its last failure
	defer runtime.UnlockOSThread()
	rows := unsafe.Pointer(unsafe.SliceData(make([]float32, 4)))
	for _, tc := range []struct {
		rows  unsafe.Pointer
		id    int64
		width uint32
		d     uint8
		what  string
	}{
		{rows, -5, 1, uint8(chunk.F32), "id 1 is -5: rows are numbered from 0"},
		{rows, 5, 0, uint8(chunk.F32), "rows of 0 elements"},
		{rows, 5, 1, 9, "of type 9"},
		{nil, 5, 1, uint8(chunk.F32), "elements at NULL of 2 rows: give their memory"},
	} {
		rc := worker.SumRows([]int64{7, tc.id}, tc.rows, tc.width, tc.d)
		if text := fabric.LastError(); rc != -int(syscall.EINVAL) || !strings.Contains(text, tc.what) {
			t.Errorf("%s: %d %q", fmt.Sprint(tc), rc, text)
		}
	}
}
