package paper

import (
	"fmt"
	"io"

	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/hierarchy"
	"github.com/rackweave/rackweave/hierarchy/planner"
	"github.com/rackweave/rackweave/lab/study/transfers"
)

// mostPieces bounds racks times the pieces that a simulated model is cut into, and so the time that a simulation takes. Larger
// pieces make the last one late: a simulated step is that much longer than one of small chunks.
const mostPieces = 125_000

// writeScale writes what a step takes as a cluster grows by racks of 40 workers, predicted, and simulated transfer by transfer.
func writeScale(w io.Writer) {
	bytes := float64(model("resnet50").Params()) * 4
	shapes := []hierarchy.Shape{hierarchy.Flat, hierarchy.Sharded}
	fmt.Fprint(w, "| racks | workers |")
	for _, s := range shapes {
		fmt.Fprintf(w, " %v | simulated |", s)
	}
	fmt.Fprint(w, "\n|---|---|---|---|---|---|\n")
	for _, racks := range []int{1, 2, 8, 32, 64} {
		const workers, nic, core = 40, 100e9 / 8, 4
		c := planner.Cluster{Racks: racks, Workers: workers, WorkerNIC: nic, AggregatorNIC: workers * nic, Uplink: workers * nic / core,
			RackLatency: 3e-6, CoreLatency: 10e-6}
		pieces := min(mostPieces/racks, int(bytes/chunk.DefaultChunkBytes))
		fmt.Fprintf(w, "| %d | %d |", racks, racks*workers)
		for _, s := range shapes {
			fmt.Fprintf(w, " %.1f ms | %.1f ms |", 1e3*c.Predict(s, bytes, bytes/float64(pieces)).Seconds,
				1e3*transfers.Simulate(&c, s, pieces, bytes/float64(pieces)))
		}
		fmt.Fprintln(w)
	}
}
