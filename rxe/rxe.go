// Package rxe makes and removes soft-RoCE devices: RDMA in software on any network device.
package rxe

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/vishvananda/netlink"
)

// Device is a soft-RoCE device.
type Device struct {
	Name   string `json:"name"`
	NetDev string `json:"netdev"`
	// State is "made", "was there" or "removed".
	State string `json:"state"`
}

const (
	module   = "rdma_rxe"
	linkType = "rxe"
)

// Add makes a soft-RoCE device on a network device, unless it has one. If netdev is empty, it takes the network device of the
// default route. Errors name the missing part (privileges, the kernel's module, the interface) and the remedy.
func Add(ctx context.Context, netdev string) (Device, error) {
	netdev, there, err := devices(netdev)
	if err != nil {
		return Device{}, fmt.Errorf("make a soft-RoCE device: %w", err)
	}
	if len(there) > 0 {
		return there[0], nil
	}
	d := Device{Name: freeName(), NetDev: netdev, State: "made"}
	if err := d.add(ctx); err != nil {
		return Device{}, fmt.Errorf("make soft-RoCE device %s on %s: %w", d.Name, netdev, err)
	}
	return d, nil
}

// Remove removes the soft-RoCE devices of a network device. If netdev is empty, it takes the network device of the default route.
func Remove(netdev string) ([]Device, error) {
	netdev, there, err := devices(netdev)
	if err != nil {
		return nil, fmt.Errorf("remove a soft-RoCE device: %w", err)
	}
	if len(there) == 0 {
		return nil, fmt.Errorf("remove a soft-RoCE device: %s has none", netdev)
	}
	for i := range there {
		if err := netlink.RdmaLinkDel(there[i].Name); err != nil {
			return nil, fmt.Errorf("remove soft-RoCE device %s from %s: %w", there[i].Name, netdev, privilege(err))
		}
		there[i].State = "removed"
	}
	return there, nil
}

// devices returns the network device, by default that of the default route, and its soft-RoCE devices.
func devices(netdev string) (string, []Device, error) {
	if netdev == "" {
		var err error
		if netdev, err = defaultNetDev(); err != nil {
			return "", nil, err
		}
	}
	if _, err := os.Stat("/sys/class/net/" + netdev); err != nil {
		return "", nil, fmt.Errorf("no network device %s: see ip link", netdev)
	}
	var there []Device
	parents, _ := filepath.Glob("/sys/class/infiniband/*/parent") // none in a kernel without RDMA
	for _, file := range parents {
		parent, err := os.ReadFile(file)
		if err == nil && strings.TrimSpace(string(parent)) == netdev {
			there = append(there, Device{Name: filepath.Base(filepath.Dir(file)), NetDev: netdev, State: "was there"})
		}
	}
	return netdev, there, nil
}

func freeName() string {
	for i := 0; ; i++ {
		name := fmt.Sprintf("rxe%d", i)
		if _, err := os.Stat("/sys/class/infiniband/" + name); err != nil {
			return name
		}
	}
}

// defaultNetDev returns the interface of the default route with the lowest metric, IPv4 before IPv6.
func defaultNetDev() (string, error) {
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		routes, err := netlink.RouteListFiltered(family, &netlink.Route{}, netlink.RT_FILTER_DST) // to anywhere
		if err != nil {
			return "", fmt.Errorf("read the routes: %w", err)
		}
		routes = slices.DeleteFunc(routes, func(r netlink.Route) bool { return r.LinkIndex <= 0 })
		if len(routes) == 0 {
			continue
		}
		best := slices.MinFunc(routes, func(a, b netlink.Route) int { return cmp.Compare(a.Priority, b.Priority) })
		link, err := net.InterfaceByIndex(best.LinkIndex)
		if err != nil {
			return "", err
		}
		return link.Name, nil
	}
	return "", errors.New("this machine has no default route: name the network device, see ip link")
}

func (d Device) add(ctx context.Context) error {
	if os.Geteuid() != 0 {
		return privilege(syscall.EPERM)
	}
	if err := loadModule(ctx); err != nil {
		return err
	}
	switch err := netlink.RdmaLinkAdd(d.Name, linkType, d.NetDev); {
	case errors.Is(err, syscall.ENOENT):
		return fmt.Errorf("%w: the kernel's CRC32 is missing: modprobe crc32_generic", err)
	case errors.Is(err, syscall.EEXIST):
		return fmt.Errorf("%w: RDMA is on this device already: see rackweave topo", err)
	case err != nil:
		return privilege(err)
	}
	return nil
}

// privilege adds the remedy to an error for lack of privileges.
func privilege(err error) error {
	if errors.Is(err, syscall.EPERM) {
		return fmt.Errorf("%w: run it as root", err)
	}
	return err
}

// loadModule loads the kernel's soft-RoCE module.
func loadModule(ctx context.Context) error {
	if _, err := os.Stat("/sys/module/" + module); err == nil {
		return nil
	}
	modprobe, err := exec.LookPath("modprobe")
	if err != nil {
		return errors.New("modprobe is not installed: apt-get install kmod")
	}
	out, err := exec.CommandContext(ctx, modprobe, module).CombinedOutput()
	if err == nil {
		return nil
	}
	release, _ := os.ReadFile("/proc/sys/kernel/osrelease")
	return fmt.Errorf("this kernel, %s, has no module %s (%s): install a kernel that has it: apt-get install linux-image-amd64 on Debian "+
		"(its cloud kernels have none), linux-modules-extra-%[1]s on Ubuntu; or use the lab, which needs none: make lab",
		strings.TrimSpace(string(release)), module, strings.TrimSpace(string(out)))
}
