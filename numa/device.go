package numa

import (
	"path"
	"regexp"
	"strings"
)

var pciAddress = regexp.MustCompile(`^[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$`)

// device describes the device at a path below sys/devices, or one without hardware if the path is empty.
func (t tree) device(name, dev string) Device {
	d := Device{Name: name, NodeUnknown: true, Driver: t.link(dev + "/driver")}
	noded := false
	// Only bus devices have the file numa_node and a link, unlike the virtio or auxiliary devices on top of them.
	for at := dev; strings.HasPrefix(at, "sys/devices/"); at = path.Dir(at) {
		if n, found := t.number(at + "/numa_node"); found && !noded { // -1 if the firmware gave none
			noded, d.Node, d.NodeUnknown = true, max(0, int(n)), n < 0
		}
		if d.PCI == "" && pciAddress.MatchString(path.Base(at)) {
			d.PCI, d.PCIe = path.Base(at), t.pcie(at)
		}
	}
	return d
}

// pcie reads the link of a device, as in "16.0 GT/s PCIe". A virtual machine may report "Unknown", which is the zero value.
func (t tree) pcie(at string) PCIe {
	lanes, _ := t.number(at + "/current_link_width")
	speed := t.figure(at+"/current_link_speed", 1024)
	if lanes < 1 || lanes > 32 || speed == 0 { // 255 lanes mean an unknown number
		return PCIe{}
	}
	return PCIe{Lanes: int(lanes), GigaTransfer: speed}
}

// discoverNICs lists the network devices with hardware behind them, but no loopback, bridges, tunnels or bonds.
func (t *Topology) discoverNICs(tr tree) {
	for _, name := range tr.names("sys/class/net") {
		at := path.Join("sys/class/net", name)
		dev := tr.resolve(at + "/device")
		if dev == "" {
			continue
		}
		speed, _ := tr.number(at + "/speed") // -1 or unreadable without a link
		mtu, _ := tr.number(at + "/mtu")
		t.NICs = append(t.NICs, NIC{
			Device: tr.device(name, dev), SpeedMbps: max(0, int(speed)), MTU: int(mtu), OperState: tr.text(at + "/operstate"),
		})
	}
}

// NIC returns the NIC of a name, or nil.
func (t *Topology) NIC(name string) *NIC {
	return find(t.NICs, func(n NIC) bool { return n.Name == name })
}
