package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/rackweave/rackweave/bench/roofline"
	"github.com/rackweave/rackweave/numa"
)

// limit is what this machine has of something that binds an aggregator.
type limit struct {
	Of   string  `json:"of"`
	Rate float64 `json:"bytes_per_second"` // 0: unknown
	From string  `json:"from"`
}

// limitsHere reads the NICs and their PCIe links of this machine, and measures its memory and how fast the cores that an aggregator
// would use sum gradients.
func (f *planFlags) limitsHere(top *numa.Topology) ([]limit, error) {
	nics := nicLimits(top)
	lanes, _, err := top.Lanes(numa.LaneConfig{NICs: servedByDefault(top.RDMA)})
	if err != nil {
		return nil, err
	}
	workers := max(1, min(f.workers, 64)) // more change no rate, and would not lie in a cache
	memory, err := roofline.Memory(1, 128<<20)
	if err != nil {
		return nil, err
	}
	sums, err := roofline.Sums(len(lanes), workers, f.chunkBytes)
	if err != nil {
		return nil, err
	}
	return append(nics, limit{"memory", memory.GBs * 1e9, "measured, read and written"},
		limit{"cores", sums.GBs * 1e9, fmt.Sprintf("measured, sums of %d workers on %d", workers, len(lanes))}), nil
}

// nicLimits adds up the NICs that an aggregator serves here: RDMA devices with a link, else network devices that are up. Functions
// of one card share its lanes.
func nicLimits(top *numa.Topology) []limit {
	nic, pcie := limit{Of: "NIC", From: "no NIC with a link and a known speed"}, limit{Of: "PCIe", From: "not known of every NIC"}
	var names, slots []string
	known := true
	add := func(name, address string, mbps int, p numa.PCIe) {
		names = append(names, name)
		nic.Rate += float64(mbps) * 1e6 / 8
		slot, _, _ := strings.Cut(address, ".")
		slots = append(slots, slot)
		for _, other := range slots[:len(slots)-1] {
			if other == slot && slot != "" {
				return
			}
		}
		pcie.Rate += float64(p.Mbps()) * 1e6 / 8
		known = known && p.Mbps() > 0
	}
	for _, d := range top.RDMA {
		if d.Active() && d.RateMbps() > 0 {
			add(d.Name, d.PCI, d.RateMbps(), d.PCIe)
		}
	}
	for _, n := range top.NICs {
		if len(top.RDMA) == 0 && n.OperState == "up" && n.SpeedMbps > 0 {
			add(n.Name, n.PCI, n.SpeedMbps, n.PCIe)
		}
	}
	if len(names) > 0 {
		nic.From = strings.Join(names, ", ")
	}
	if known && len(names) > 0 {
		pcie.From = nic.From
	} else {
		pcie.Rate = 0
	}
	return []limit{nic, pcie}
}

// take has the plan go by this machine's limits, where no flag says otherwise.
func (f *planFlags) take(limits []limit) {
	for _, l := range limits {
		flag := map[string]*string{"NIC": &f.aggregatorLink, "PCIe": &f.pcie, "memory": &f.memory, "cores": &f.fold}[l.Of]
		if *flag == "" && l.Rate > 0 {
			*flag = fmt.Sprintf("%gGB/s", l.Rate/1e9)
		}
	}
}

// planHere predicts with this machine as the aggregator.
func (f *planFlags) planHere(w io.Writer) error {
	top, err := numa.Discover("")
	if err != nil {
		return err
	}
	limits, err := f.limitsHere(top)
	if err != nil {
		return err
	}
	f.take(limits)
	r, err := f.plan()
	if err != nil {
		return err
	}
	if r.Here = limits; f.asJSON {
		return writeJSON(w, r)
	}
	fmt.Fprint(w, "this machine as an aggregator:\n\n")
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, l := range limits {
		known := "unknown"
		if l.Rate > 0 {
			known = rate(l.Rate)
		}
		fmt.Fprintf(t, "%s\t%s\t%s\n", l.Of, known, l.From)
	}
	fmt.Fprintln(t)
	if err := t.Flush(); err != nil {
		return err
	}
	return f.print(w, r)
}
