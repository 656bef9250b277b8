package numa

import (
	"fmt"
	"math"
	"net/netip"
	"path"
	"slices"
	"strconv"
	"strings"
)

// discoverRDMA lists RDMA devices. It runs after discoverNICs.
func (t *Topology) discoverRDMA(tr tree) {
	for _, name := range tr.names("sys/class/infiniband") {
		d, loopback := t.rdmaDevice(tr, name)
		if loopback {
			t.Notes = append(t.Notes, fmt.Sprintf("RDMA device %s is on the loopback interface and left out", name))
			continue
		}
		t.RDMA = append(t.RDMA, d)
		for _, dev := range d.NetDevs {
			if n := t.NIC(dev); n != nil {
				n.RDMA = append(n.RDMA, name)
			}
		}
	}
}

func (t *Topology) rdmaDevice(tr tree, name string) (d RDMADevice, loopback bool) {
	at := path.Join("sys/class/infiniband", name)
	// A software device has no hardware of its own. The file parent names the network device below it.
	if parent := tr.text(at + "/parent"); parent != "" {
		d.Soft = true
		d.NetDevs = append(d.NetDevs, parent)
	}
	for _, num := range tr.names(at + "/ports") {
		p := tr.port(path.Join(at, "ports", num))
		for _, g := range p.GIDs {
			if g.NetDev != "" && !slices.Contains(d.NetDevs, g.NetDev) {
				d.NetDevs = append(d.NetDevs, g.NetDev)
			}
		}
		d.Ports = append(d.Ports, p)
	}
	if slices.Contains(d.NetDevs, "lo") {
		return d, true
	}
	dev := tr.resolve(at + "/device")
	d.Device = tr.device(name, dev)
	if len(d.NetDevs) == 0 { // InfiniBand GIDs name no network device, but IP over InfiniBand is on the same PCI device
		for _, n := range t.NICs {
			if n.PCI != "" && n.PCI == d.PCI {
				d.NetDevs = append(d.NetDevs, n.Name)
			}
		}
	}
	if dev == "" && len(d.NetDevs) > 0 {
		d.Device = tr.device(name, tr.resolve(path.Join("sys/class/net", d.NetDevs[0], "device")))
	}
	if d.Soft {
		d.Driver = ""
	}
	return d, false
}

// port reads a port's directory. Its files are described in the kernel's Documentation/ABI/stable/sysfs-class-infiniband.
func (t tree) port(dir string) Port {
	num, _ := strconv.Atoi(path.Base(dir))
	_, state, _ := strings.Cut(t.text(dir+"/state"), ": ") // "4: ACTIVE"
	gbps := t.figure(dir+"/rate", 1e6)                     // "2.5 Gb/sec (1X SDR)"
	p := Port{Num: num, State: state, LinkLayer: t.text(dir + "/link_layer"), RateMbps: int(math.Round(gbps * 1000))}
	for _, name := range t.names(dir + "/gids") {
		index, err := strconv.Atoi(name)
		gid, err2 := netip.ParseAddr(t.text(path.Join(dir, "gids", name)))
		if err != nil || err2 != nil || gid.IsUnspecified() {
			continue
		}
		p.GIDs = append(p.GIDs, GID{
			Index: index, GID: gid.String(),
			Type:   t.text(path.Join(dir, "gid_attrs/types", name)),
			NetDev: t.text(path.Join(dir, "gid_attrs/ndevs", name)),
		})
	}
	return p
}

// rdma returns the RDMA device of a name, or nil.
func (t *Topology) rdma(name string) *RDMADevice {
	return find(t.RDMA, func(d RDMADevice) bool { return d.Name == name })
}
