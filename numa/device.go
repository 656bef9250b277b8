package numa

import (
	"path"
	"regexp"
	"strconv"
	"strings"
)

var pciAddress = regexp.MustCompile(`^[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$`)

// deviceNode returns the NUMA node of a device. Only bus devices have the file numa_node, unlike the virtio or auxiliary devices on
// top of them, so it searches upwards. The node is -1 if the firmware gave none.
func (t tree) deviceNode(dev string) (node int, ok bool) {
	for at := dev; strings.HasPrefix(at, "sys/devices/"); at = path.Dir(at) {
		if n, found := t.number(at + "/numa_node"); found {
			return max(0, int(n)), n >= 0
		}
	}
	return 0, false
}

// pciOf returns the PCI address of a device or of the nearest one above it.
func pciOf(dev string) string {
	address, _ := pciAt(dev)
	return address
}

// pciAt also returns the path of that device.
func pciAt(dev string) (address, at string) {
	for at := dev; strings.HasPrefix(at, "sys/devices/"); at = path.Dir(at) {
		if pciAddress.MatchString(path.Base(at)) {
			return path.Base(at), at
		}
	}
	return "", ""
}

// pcie reads the link of a device, as in "16.0 GT/s PCIe". A virtual machine may report "Unknown", which is the zero value.
func (t tree) pcie(dev string) PCIe {
	_, at := pciAt(dev)
	lanes, ok := t.number(at + "/current_link_width")
	number, _, _ := strings.Cut(t.text(at+"/current_link_speed"), " ")
	speed, err := strconv.ParseFloat(number, 64)
	if at == "" || !ok || err != nil || lanes < 1 || lanes > 32 || !(speed > 0 && speed <= 1024) { // 255 lanes mean an unknown number
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
		n := NIC{Name: name, PCI: pciOf(dev), PCIe: tr.pcie(dev), Driver: tr.link(dev + "/driver"), OperState: tr.text(at + "/operstate")}
		node, known := tr.deviceNode(dev)
		n.Node, n.NodeUnknown = node, !known
		speed, _ := tr.number(at + "/speed") // -1 or unreadable without a link
		n.SpeedMbps = max(0, int(speed))
		mtu, _ := tr.number(at + "/mtu")
		n.MTU = int(mtu)
		t.NICs = append(t.NICs, n)
	}
}

// NIC returns the NIC of a name, or nil.
func (t *Topology) NIC(name string) *NIC {
	for i := range t.NICs {
		if t.NICs[i].Name == name {
			return &t.NICs[i]
		}
	}
	return nil
}
