package lab

import (
	"fmt"
	"strings"
)

// setupScript names the guest's NICs, gives them their addresses and puts a soft-RoCE device on each. An MTU of 4200 gives
// RoCE its largest path MTU, 4096. Without duplicate address detection the link-local GIDs are there at once.
func (g *Guest) setupScript() string {
	var b strings.Builder
	fmt.Fprintf(&b, "set -e\nhostname %s\nip link set lo up\n", g.cfg.Name)
	for i, nic := range g.cfg.NICs {
		name := netID(i)
		if nic.Wire == nil {
			fmt.Fprintf(&b, "ip link add %s type dummy\n", name)
		} else {
			fmt.Fprintf(&b, "ip link set $(grep -l %s /sys/class/net/*/address | cut -d/ -f5) name %s\n", g.macs[i], name)
		}
		fmt.Fprintf(&b, "echo 0 >/proc/sys/net/ipv6/conf/%s/accept_dad\n", name)
		fmt.Fprintf(&b, "ip address add %s dev %s\nip link set %s mtu 4200 up\n", nic.Addr, name, name)
		fmt.Fprintf(&b, "rdma link add rxe%d type rxe netdev %s\n", i, name)
		fmt.Fprintf(&b, "until grep -q ffff: /sys/class/infiniband/rxe%d/ports/1/gids/*; do sleep 0.05; done\n", i)
	}
	return b.String()
}
