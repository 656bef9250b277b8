package numa

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
)

// String formats the topology for a person: the machine, a table each of nodes, NICs and RDMA devices, and the notes.
func (t *Topology) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s, Linux %s\n", orUnknown(t.CPUModel), orUnknown(t.Kernel))
	var all CPUSet
	for _, c := range t.CPUs {
		all = append(all, c.ID)
	}
	fmt.Fprintf(&b, "%s, %s, %s, %s; memory %s, %s available\n", Count(t.Sockets, "socket"), Count(len(t.Nodes), "node"),
		Count(len(t.cores(all)), "core"), Count(len(t.CPUs), "cpu"), FormatBytes(t.MemoryBytes), FormatBytes(t.AvailableBytes))
	fmt.Fprintf(&b, "cpus allowed %s, isolated %s, nohz_full %s; governor %s\n",
		orNone(t.Allowed.String()), orNone(t.Isolated.String()), orNone(t.NoHzFull.String()), orUnknown(strings.Join(t.Governors(),
			", ")))
	fmt.Fprintf(&b, "last-level cache to count on %s; hypervisor %s\n", FormatBytes(t.LastLevelCache()), orNone(t.Hypervisor))
	fmt.Fprintf(&b, "transparent huge pages: anonymous memory %s, shared memory %s\n", orNone(t.THP.Anon), orNone(t.THP.Shmem))
	t.writeNodes(&b)
	if len(t.NICs) > 0 {
		table(&b, "nic\tnode\tstate\tspeed\tmtu\tdriver\tpci\tpcie\trdma", func(w io.Writer) {
			for _, n := range t.NICs {
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%d\t%s\t%s\t%v\t%s\n", n.Name, n.node(), orUnknown(n.OperState),
					formatMbps(n.SpeedMbps), n.MTU, orUnknown(n.Driver), orNone(n.PCI), n.PCIe, orNone(strings.Join(n.RDMA, ",")))
			}
		})
	}
	t.writeRDMA(&b)
	for i, note := range t.Notes {
		if i == 0 {
			b.WriteByte('\n')
		}
		fmt.Fprintf(&b, "note: %s\n", note)
	}
	return b.String()
}

func (t *Topology) writeNodes(b *strings.Builder) {
	head := "node\tcpus\tcores\tallowed\tL2\tL3\tmemory\tfree"
	for _, p := range t.Nodes[0].HugePages {
		head += "\t" + FormatBytes(p.PageBytes) + " pages"
	}
	table(b, head+"\tdistances", func(w io.Writer) {
		for i := range t.Nodes {
			n := &t.Nodes[i]
			fmt.Fprintf(w, "%d\t%s\t%d\t%s\t%s\t%s\t%s\t%s", n.ID, orNone(n.CPUs.String()), len(t.cores(n.CPUs)),
				orNone(n.Allowed.String()), t.caches(n, func(c CPU) Cache { return c.L2 }), t.caches(n, func(c CPU) Cache { return c.L3 }),
				FormatBytes(n.MemoryBytes), FormatBytes(n.FreeBytes))
			for _, p := range n.HugePages {
				fmt.Fprintf(w, "\t%d of %d free", p.Free, p.Pages)
			}
			fmt.Fprintf(w, "\t%s\n", strings.Trim(fmt.Sprint(n.Distances), "[]"))
		}
	})
}

func (t *Topology) writeRDMA(b *strings.Builder) {
	if len(t.RDMA) == 0 {
		return
	}
	table(b, "rdma\tport\tnode\tstate\tlink\trate\tkind\tpci\tpcie\tnetdev", func(w io.Writer) {
		for _, d := range t.RDMA {
			kind := orUnknown(d.Driver)
			if d.Soft {
				kind = "software"
			}
			for _, p := range d.Ports {
				fmt.Fprintf(w, "%s\t%d\t%s\t%s\t%s\t%s\t%s\t%s\t%v\t%s\n", d.Name, p.Num, d.node(), orUnknown(p.State),
					orUnknown(p.LinkLayer), formatMbps(p.RateMbps), kind, orNone(d.PCI), d.PCIe, orNone(strings.Join(d.NetDevs, ",")))
			}
		}
	})
	table(b, "rdma\tport\tgid\taddress\ttype\tnetdev", func(w io.Writer) {
		for _, d := range t.RDMA {
			for _, p := range d.Ports {
				for _, g := range p.GIDs {
					fmt.Fprintf(w, "%s\t%d\t%d\t%s\t%s\t%s\n", d.Name, p.Num, g.Index, g.GID, orUnknown(g.Type), orNone(g.NetDev))
				}
			}
		}
	})
}

// caches describes the caches of a node's CPUs, as in "8 x 4 MiB". It marks a cache that other nodes' CPUs share.
func (t *Topology) caches(n *Node, pick func(CPU) Cache) string {
	seen := map[string]int{}
	var kinds []string
	for _, c := range t.CPUs {
		cache := pick(c)
		if c.Node != n.ID || cache.Bytes == 0 || len(cache.CPUs) > 0 && cache.CPUs.And(n.CPUs)[0] != c.ID {
			continue
		}
		kind := FormatBytes(cache.Bytes)
		if len(cache.CPUs.Minus(n.CPUs)) > 0 {
			kind += " (spans nodes)"
		}
		if seen[kind]++; seen[kind] == 1 {
			kinds = append(kinds, kind)
		}
	}
	for i, kind := range kinds {
		kinds[i] = fmt.Sprintf("%d x %s", seen[kind], kind)
	}
	return orUnknown(strings.Join(kinds, ", "))
}

// Governors lists the frequency governors in use.
func (t *Topology) Governors() []string {
	all := map[string]bool{}
	for _, c := range t.CPUs {
		all[c.Governor] = true
	}
	delete(all, "")
	return slices.Sorted(maps.Keys(all))
}

// table writes columns after an empty line, without spaces at the ends of lines.
func table(b *strings.Builder, head string, rows func(io.Writer)) {
	var text strings.Builder
	w := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, head)
	rows(w)
	w.Flush()
	b.WriteByte('\n')
	for line := range strings.Lines(text.String()) {
		b.WriteString(strings.TrimRight(line, " \n") + "\n")
	}
}

func (d *Device) node() string {
	if d.NodeUnknown {
		return fmt.Sprintf("%d?", d.Node)
	}
	return fmt.Sprint(d.Node)
}

func orUnknown(s string) string { return cmp.Or(s, "unknown") }

func orNone(s string) string { return cmp.Or(s, "-") }

// Count returns a number of things: "1 core", "2 cores".
func Count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// FormatBytes formats a size in the largest binary unit that leaves at least one: "32 KiB", "23.5 GiB".
func FormatBytes(n int64) string {
	units := [...]string{"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"}
	v, u := float64(n), 0
	for v >= 1024 && u < len(units)-1 {
		v /= 1024
		u++
	}
	if v == float64(int64(v)) {
		return fmt.Sprintf("%d %s", int64(v), units[u])
	}
	return fmt.Sprintf("%.1f %s", v, units[u])
}

func formatMbps(n int) string {
	switch {
	case n == 0:
		return "unknown"
	case n >= 1000:
		return fmt.Sprintf("%g Gb/s", float64(n)/1000)
	}
	return fmt.Sprintf("%d Mb/s", n)
}
