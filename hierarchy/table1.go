package hierarchy

import "math"

// Placement is where parameter servers stand, in the words of Table I of the RackWeave paper: colocated with workers (C) or not
// (NC), centralized on one machine (C) or sharded over all (S).
type Placement uint8

// The placements.
const (
	CC Placement = iota
	CS
	NCC
	NCS
)

func (p Placement) String() string { return [...]string{"CC", "CS", "NCC", "NCS"}[p] }

// Busiest returns the models that the busiest NIC carries in one step with n workers, in each direction. Sharded servers that
// are not colocated are as many as the workers.
func (p Placement) Busiest(n int) float64 {
	N := float64(n)
	return [...]float64{CC: N - 1, CS: 2 * (N - 1) / N, NCC: N, NCS: 1}[p]
}

// TableRow is a row of the paper's Table I: the bisection bandwidth, in Gb/s, that hides communication behind compute.
type TableRow struct {
	Network string
	Paper   [4]float64 // as printed, by placement
	Model   string     // ours, of this repository's shapes
}

// TableWorkers is the number of workers that the paper's table implies: only with 8 do its four columns agree with each other.
const TableWorkers = 8

// Table1 is Table I (section II.B of the paper). The paper gives neither workers nor sizes nor compute times. The columns of a row
// have one unknown, U = 2M/T, in + out of a NIC that carries one model per step: NCS is U, and with 8 workers CS 1.75 U, CC 7 U
// and NCC 8 U.
func Table1() []TableRow {
	return []TableRow{
		{Network: "ResNet-269", Paper: [4]float64{122, 31, 140, 17}, Model: "resnet269"},
		{Network: "Inception-V3", Paper: [4]float64{44, 11, 50, 6}, Model: "inception-v3"},
		{Network: "GoogleNet", Paper: [4]float64{40, 10, 46, 6}, Model: "googlenet"},
		{Network: "AlexNet", Paper: [4]float64{1232, 308, 1408, 176}, Model: "alexnet"},
	}
}

// Unit returns the U, in Gb/s, with which all four cells of a row come out as printed, rounded: the middle of the values that do.
// ok is false if there is none.
func (r *TableRow) Unit() (u float64, ok bool) {
	low, high := 0.0, math.Inf(1)
	for p := CC; p <= NCS; p++ {
		low = math.Max(low, (r.Paper[p]-0.5)/p.Busiest(TableWorkers))
		high = math.Min(high, (r.Paper[p]+0.5)/p.Busiest(TableWorkers))
	}
	return (low + high) / 2, low <= high
}

// Cell returns a cell as we compute it, in Gb/s: in + out of the busiest NIC for a model of so many bytes in a step of so many
// seconds.
func Cell(p Placement, bytes, step float64) float64 {
	return 2 * p.Busiest(TableWorkers) * bytes * 8 / step / 1e9
}
