package numa

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Lane is a (NIC, core) pair: a core that serves a NIC, from the NIC's own node.
type Lane struct {
	NIC      string `json:"nic,omitempty"` // name of a network or RDMA device, as it was chosen; empty if none was
	NICIndex int    `json:"nic_index"`     // position of that device among those chosen; 0 if none was
	Node     int    `json:"node"`          // node of the core, to which the lane's memory belongs
	CPU      int    `json:"cpu"`
	// Mbps is the NIC's link speed. It is 0 on every lane if the speed of any NIC is unknown.
	Mbps int `json:"mbps"`
}

// site is a recipient of cores: a chosen NIC, or a whole node if none is chosen.
type site struct {
	Lane
	node  *nodeCores
	taken int
}

// Lanes returns the NIC↔node↔core map, and notes for a person. nics names the network or RDMA devices to serve. If it is empty, the
// lanes are spread over the nodes. cores is the number of cores to use. If 0, Lanes uses the isolated cores of each node that
// serves. Where none are isolated, it uses all allowed cores but one, which is left to the system, or all of at most two.
//
// Each physical core is used once, by one of its SMT siblings. Cores go to NICs in proportion to link speed, isolated ones first,
// the core left to the system last. The lanes are ordered by NIC, node and CPU. Lanes refuses an unknown or repeated NIC, more
// cores than the machine has, and fewer cores than the NICs have nodes.
func (t *Topology) Lanes(nics []string, cores int) ([]Lane, []string, error) {
	m := &laneMap{t: t}
	for i := range t.Nodes {
		if n := t.nodeCores(i); len(n.cpus) > 0 {
			if cores > 0 {
				n.usable = len(n.cpus)
			}
			m.nodes = append(m.nodes, n)
		}
	}
	if len(m.nodes) == 0 {
		return nil, nil, fmt.Errorf("no cpu of any node is allowed (allowed %s): widen the cpuset", orNone(t.Allowed.String()))
	}
	if err := m.choose(nics); err != nil {
		return nil, nil, err
	}
	usable, serving := 0, 0
	for _, node := range m.nodes {
		if node.serves {
			usable += node.usable
			serving++
		}
	}
	switch {
	case cores < 0 || cores > usable:
		return nil, nil, fmt.Errorf("%s asked for: %d can be used here (one sibling of each core, of cpus %s); 0 chooses",
			Count(cores, "core"), usable, t.Allowed)
	case cores > 0 && cores < serving && len(nics) > 0:
		return nil, nil, fmt.Errorf("%s asked for: the NICs are on %d nodes, each needs a core of its own node",
			Count(cores, "core"), serving)
	}
	m.hand(cmp.Or(cores, usable))
	m.noteUnused()
	return m.lanes, m.notes, nil
}

// nodeCores are a node's CPUs that may be used, one of each core.
type nodeCores struct {
	id, index int   // the node's number, and its place in Topology.Nodes
	cpus      []int // best first
	usable    int   // the number of them to hand out
	used      int   // the number of them handed out
	shares    int   // NICs that share one of those
	serves    bool  // there is a site on the node
}

type laneMap struct {
	t     *Topology
	nodes []*nodeCores
	sites []site
	lanes []Lane
	notes []string
}

func (m *laneMap) note(format string, args ...any) {
	m.notes = append(m.notes, fmt.Sprintf(format, args...))
}

// nodeCores lists one CPU of each core that may be used on a node, with the number to use by default.
func (t *Topology) nodeCores(index int) *nodeCores {
	var isolated, others []int
	for _, core := range t.cores(t.Nodes[index].Allowed) {
		if iso := core.And(t.Isolated); len(iso) > 0 {
			isolated = append(isolated, iso[0])
		} else {
			others = append(others, core[0])
		}
	}
	n := &nodeCores{id: t.Nodes[index].ID, index: index, usable: cmp.Or(len(isolated), len(others))}
	if len(isolated) == 0 && len(others) > 2 {
		n.usable--
	}
	// The first core is the system's, because interrupts and kernel threads gather there.
	if len(others) > 1 {
		others = append(others[1:], others[0])
	}
	n.cpus = append(isolated, others...)
	return n
}

// choose makes the sites and finds the node that serves each.
func (m *laneMap) choose(nics []string) error {
	if len(nics) == 0 {
		for _, node := range m.nodes {
			node.serves = true
			m.sites = append(m.sites, site{Lane: Lane{Node: node.id}, node: node})
		}
		return nil
	}
	speedsKnown := true
	for i, name := range nics {
		s := site{Lane: Lane{NIC: name, NICIndex: i}}
		var unknown, up bool
		if n := m.t.NIC(name); n != nil {
			s.Node, unknown, up, s.Mbps = n.Node, n.NodeUnknown, n.OperState != "down", n.SpeedMbps
		} else if d := m.t.rdma(name); d != nil {
			s.Node, unknown, up, s.Mbps = d.Node, d.NodeUnknown, d.Active(), d.RateMbps()
		} else {
			return fmt.Errorf("no NIC or RDMA device %q: there are %s", name, orNone(strings.Join(m.t.deviceNames(), ", ")))
		}
		if slices.Contains(nics[:i], name) {
			return fmt.Errorf("NIC %q is chosen twice", name)
		}
		if !up {
			m.note("%s is down", name)
		}
		if unknown && len(m.t.Nodes) > 1 {
			m.note("%s: the machine does not say which node it is on; node %d is assumed", name, s.Node)
		}
		if s.node = m.nearest(s.Node); s.node.id != s.Node {
			m.note("%s is on node %d, which has no cpu that may be used: node %d serves it, across the interconnect", name, s.Node,
				s.node.id)
			s.Node = s.node.id
		}
		s.node.serves = true
		if s.Mbps == 0 {
			speedsKnown = false
			m.note("%s: link speed unknown", name)
		}
		m.sites = append(m.sites, s)
	}
	for i := range m.sites {
		if !speedsKnown {
			m.sites[i].Mbps = 0
		}
	}
	return nil
}

// nearest returns the node with usable CPUs at the least distance, which is the node itself if it has some.
func (m *laneMap) nearest(node int) *nodeCores {
	if i := slices.IndexFunc(m.nodes, func(n *nodeCores) bool { return n.id == node }); i >= 0 {
		return m.nodes[i]
	}
	distance := func(to *nodeCores) int {
		from := m.t.node(node)
		if from == nil || to.index >= len(from.Distances) {
			return 0
		}
		return from.Distances[to.index]
	}
	return slices.MinFunc(m.nodes, func(a, b *nodeCores) int { return cmp.Compare(distance(a), distance(b)) })
}

// hand gives out cores one by one: to the site with the fewest for its speed, then the node with the fewest, then in order.
func (m *laneMap) hand(cores int) {
	for range cores {
		var best *site
		for i := range m.sites {
			s := &m.sites[i]
			if s.node.used < s.node.usable && (best == nil || cmp.Or(
				cmp.Compare(s.taken*max(1, best.Mbps), best.taken*max(1, s.Mbps)),
				cmp.Compare(s.node.used, best.node.used)) < 0) {
				best = s
			}
		}
		best.CPU = best.node.cpus[best.node.used]
		best.node.used++
		best.taken++
		m.lanes = append(m.lanes, best.Lane)
	}
	m.share()
	slices.SortFunc(m.lanes, func(a, b Lane) int {
		return cmp.Or(cmp.Compare(a.NICIndex, b.NICIndex), cmp.Compare(a.Node, b.Node), cmp.Compare(a.CPU, b.CPU))
	})
}

// share lets NICs without a core use a core that serves another NIC of their node, as evenly as possible.
func (m *laneMap) share() {
	for i := range m.sites {
		s := &m.sites[i]
		if s.taken > 0 || s.NIC == "" {
			continue
		}
		s.CPU = s.node.cpus[s.node.shares%s.node.used]
		s.node.shares++
		m.lanes = append(m.lanes, s.Lane)
		m.note("%s shares cpu %d with another NIC: node %d has fewer cores in use than NICs", s.NIC, s.CPU, s.Node)
	}
}

// noteUnused notes the cores that stay unused, with the reason.
func (m *laneMap) noteUnused() {
	var left, used CPUSet
	for _, node := range m.nodes {
		if !node.serves {
			m.note("node %d serves no NIC: unused there: %s", node.id, Count(len(node.cpus), "core"))
			continue
		}
		left, used = append(left, node.cpus[node.used:]...), append(used, node.cpus[:node.used]...)
	}
	slices.Sort(left)
	slices.Sort(used)
	if len(left) > 0 {
		m.note("left to the system: cpus %s", left)
	}
	if iso := used.And(m.t.Isolated); len(iso) > 0 && len(iso) < len(used) {
		m.note("cpus %s are not isolated: other work may run there", used.Minus(m.t.Isolated))
	}
	if len(left) == 0 && len(used) == len(m.t.cores(m.t.Allowed)) {
		m.note("every allowed core is in use: loops that spin must yield, no core is left for anything else")
	}
}

// deviceNames lists the devices that can be chosen as NICs.
func (t *Topology) deviceNames() []string {
	var names []string
	for _, n := range t.NICs {
		names = append(names, n.Name)
	}
	for _, d := range t.RDMA {
		names = append(names, d.Name)
	}
	return names
}

// LanesText prints a lane map for a person: a line for each NIC and node, then the notes.
func LanesText(lanes []Lane, notes []string) string {
	var b strings.Builder
	for i := 0; i < len(lanes); {
		first, cpus := lanes[i], CPUSet{}
		for ; i < len(lanes) && lanes[i].NICIndex == first.NICIndex && lanes[i].Node == first.Node; i++ {
			cpus = append(cpus, lanes[i].CPU)
		}
		fmt.Fprintf(&b, "%s: node %d, cpus %s\n", cmp.Or(first.NIC, "no NIC"), first.Node, cpus)
	}
	for _, note := range notes {
		fmt.Fprintf(&b, "note: %s\n", note)
	}
	return b.String()
}
