package paper

import (
	"fmt"
	"io"
	"math"
)

// placement is the place of parameter servers, in the words of the paper's Table I: colocated with workers (C) or not (NC),
// centralized on one machine (C) or sharded over all (S).
type placement uint8

const (
	colocated        placement = iota // CC
	colocatedSharded                  // CS
	apart                             // NCC
	apartSharded                      // NCS
	placements
)

// busiest returns the models that the busiest NIC carries in one step with n workers, in each direction. Sharded servers that
// are not colocated are as many as the workers.
func (p placement) busiest(n int) float64 {
	N := float64(n)
	return [...]float64{colocated: N - 1, colocatedSharded: 2 * (N - 1) / N, apart: N, apartSharded: 1}[p]
}

// row1 is a row of the paper's Table I: the bisection bandwidth, in Gb/s, that hides communication behind compute.
type row1 struct {
	network string
	paper   [placements]float64 // as printed
	model   string              // of this repository's shapes
}

// workers is the number of workers of the paper's tables. Table II gives it; only with 8 do the four columns of Table I agree.
const workers = 8

// table1 is Table I (section II.B of the paper). The paper gives neither workers nor sizes nor compute times. The columns of a row
// have one unknown, U = 2M/T, in + out of a NIC that carries one model per step: NCS is U, and with 8 workers CS 1.75 U, CC 7 U
// and NCC 8 U.
var table1 = []row1{
	{"ResNet-269", [placements]float64{122, 31, 140, 17}, "resnet269"},
	{"Inception-V3", [placements]float64{44, 11, 50, 6}, "inception-v3"},
	{"GoogleNet", [placements]float64{40, 10, 46, 6}, "googlenet"},
	{"AlexNet", [placements]float64{1232, 308, 1408, 176}, "alexnet"},
}

// unit returns the U, in Gb/s, with which all four cells of a row come out as printed, rounded: the middle of the values that do.
// It reports whether there is one.
func (r *row1) unit() (u float64, ok bool) {
	low, high := 0.0, math.Inf(1)
	for p := range placements {
		low = math.Max(low, (r.paper[p]-0.5)/p.busiest(workers))
		high = math.Min(high, (r.paper[p]+0.5)/p.busiest(workers))
	}
	return (low + high) / 2, low <= high
}

// writeTable1 writes each row's unknown, and the computation that it implies with our model.
func writeTable1(w io.Writer) {
	fmt.Fprint(w, "| | U, Gb/s | M | T | CC | CS | NCC | NCS |\n|---|---|---|---|---|---|---|---|\n")
	for _, r := range table1 {
		u, _ := r.unit()
		m := model(r.model)
		bytes := float64(m.Params()) * 4
		fmt.Fprintf(w, "| %s | %.2f | %.1f MB | %.0f ms |", r.network, u, bytes/1e6, 2*bytes*8/(u*1e9)*1e3)
		for p := range placements {
			fmt.Fprintf(w, " %.0f |", p.busiest(workers)*u)
		}
		fmt.Fprintln(w)
	}
}
