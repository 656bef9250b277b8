package paper

import (
	"fmt"
	"io"

	"github.com/rackweave/rackweave/lab/study/overlap"
)

// link is the rate, in bytes per second, of the network that section VII.B of the paper measures on.
const link = 10e9 / 8

// table2 is Table II of the paper, in samples per second with 56 Gb/s, in the order of [overlap.Ways]: RackWeave, MXNet with
// sharded servers and Gloo. It has no GoogleNet.
var table2 = []struct {
	network, model string
	paper          [3]float64
}{
	{"AlexNet", "alexnet", [3]float64{1712, 634, 583}},
	{"VGG-19", "vgg19", [3]float64{1387, 513, 492}},
	{"GoogleNet", "googlenet", [3]float64{}},
	{"ResNet-50", "resnet50", [3]float64{735, 688, 645}},
	{"Inception-V3", "inception-v3", [3]float64{448, 410, 398}},
}

// writeTable2 writes the samples per second that computation and bytes allow, beside the paper's.
func writeTable2(w io.Writer) {
	fmt.Fprint(w, "| | compute alone | aggregator | paper | sharded servers | paper | ring | paper |\n|---|---|---|---|---|---|---|---|\n")
	for _, r := range table2 {
		m := model(r.model)
		samples := float64(workers * m.Compute.Batch)
		fmt.Fprintf(w, "| %s | %.0f |", r.network, samples/m.Compute.Time.Seconds())
		for i, way := range overlap.Ways(workers) {
			fmt.Fprintf(w, " %.0f | %s |", samples/way.Step(m, link).Total, orNothing(r.paper[i]))
		}
		fmt.Fprintln(w)
	}
}

func orNothing(v float64) string {
	if v == 0 {
		return ""
	}
	return fmt.Sprintf("%.0f", v)
}

// writeEnough writes the rate of a worker's NIC from which on a step takes at most 5% more than its computation.
func writeEnough(w io.Writer) {
	fmt.Fprint(w, "| Gb/s | aggregator | sharded servers | ring |\n|---|---|---|---|\n")
	for _, r := range table2 {
		m := model(r.model)
		fmt.Fprintf(w, "| %s |", r.network)
		for _, way := range overlap.Ways(workers) {
			fmt.Fprintf(w, " %.1f |", way.Enough(m, 0.05)*8/1e9)
		}
		fmt.Fprintln(w)
	}
}
