package main

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/rackweave/rackweave/bench/models"
	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/numa"
)

func topoCommand() *cobra.Command {
	var nics []string
	var cores, chunkBytes int
	var model string
	cmd := printing(&cobra.Command{
		Use:   "topo",
		Short: "Show NICs, NUMA nodes, cores, huge pages, and the chunk map an aggregator would use here",
		Example: `  rackweave topo
  rackweave topo --model bert-large --cores 8
  rackweave topo --nics mlx5_0,mlx5_1 --json`,
	}, func(*cobra.Command, []string) (any, func(io.Writer), error) {
		top, err := numa.Discover("")
		if err != nil {
			return nil, nil, err
		}
		if len(nics) == 0 {
			nics = servedByDefault(top.RDMA)
		}
		lanes, notes, err := top.Lanes(nics, cores)
		if err != nil {
			return nil, nil, err
		}
		m, err := models.Get(model)
		if err != nil {
			return nil, nil, err
		}
		places := make([]chunk.Lane, len(lanes))
		for i, l := range lanes {
			places[i] = chunk.Lane{NIC: l.NICIndex, Core: l.CPU, Weight: uint32(l.Mbps)}
		}
		plan, err := chunk.NewPlan(chunk.Config{ChunkBytes: chunkBytes, Lanes: places})
		if err == nil {
			err = plan.Add(m.Chunkable(chunk.F32))
		}
		if err != nil {
			return nil, nil, err
		}
		loads := make([]laneLoad, len(lanes))
		for l := range loads {
			_, bytes := plan.LaneLoad(l)
			loads[l] = laneLoad{len(plan.LaneChunks(l)), bytes}
		}
		return map[string]any{
				"topology": top, "lanes": lanes, "notes": notes,
				"model": m.Name, "chunk_bytes": plan.ChunkBytes(), "chunks": plan.NumChunks(), "lane_load": loads,
			}, func(w io.Writer) {
				fmt.Fprint(w, top, "\n", numa.LanesText(lanes, notes), "\n")
				fmt.Fprintf(w, "chunk map of %s\n", m.Name)
				for l, load := range loads {
					fmt.Fprintf(w, "  lane %d (cpu %d): %d chunks, %.1f MB\n", l, lanes[l].CPU, load.Chunks, float64(load.Bytes)/1e6)
				}
			}, nil
	})
	cmd.Flags().StringSliceVar(&nics, "nics", nil,
		"network or RDMA devices to serve (default: RDMA devices with a link; without any, lanes are spread over the nodes)")
	cmd.Flags().IntVar(&cores, "cores", 0, "cores to use; if 0, chosen")
	cmd.Flags().IntVar(&chunkBytes, "chunk-bytes", chunk.DefaultChunkBytes, "chunk size in bytes")
	cmd.Flags().StringVar(&model, "model", "resnet50", "model whose chunk map to show")
	return cmd
}

// servedByDefault names the devices that an aggregator serves when none is named: those with a link, or all if none has one.
func servedByDefault(devices []numa.RDMADevice) []string {
	var all, up []string
	for _, d := range devices {
		all = append(all, d.Name)
		if d.Active() {
			up = append(up, d.Name)
		}
	}
	if len(up) > 0 {
		return up
	}
	return all
}

type laneLoad struct {
	Chunks int    `json:"chunks"`
	Bytes  uint64 `json:"bytes"`
}
