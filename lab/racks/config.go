package racks

import (
	"fmt"
	"strings"
)

// Config describes a fabric.
type Config struct {
	// Name is the prefix of the namespaces, at most 20 letters, digits and dashes.
	Name    string  `json:"-"`
	Racks   int     `json:"racks"`
	Workers int     `json:"workers"` // in each rack
	Rate    float64 `json:"rate"`    // of a worker's link, in bits per second and direction
	Core    float64 `json:"core"`    // of the workers' links of a rack, over the rack's uplink; at least 1
	// Pods are equal runs of racks, each behind an uplink that carries the traffic of its racks. If 0, the racks meet at the spine.
	Pods int `json:"pods,omitempty"`
}

// The limits of a fabric: addresses of one subnet, and what tbf can shape.
const (
	maxRacks   = 64
	maxWorkers = 200
	minRate    = 1e6
	maxRate    = 2e9
)

// Check reports what of a configuration cannot be built.
func (c *Config) Check() error {
	outside := func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '-'
	}
	switch {
	case c.Name == "" || len(c.Name) > 20 || strings.ContainsFunc(c.Name, outside):
		return fmt.Errorf("racks named %q: use 1 to 20 of a-z, 0-9 and -", c.Name)
	case c.Racks < 1 || c.Racks > maxRacks || c.Workers < 1 || c.Workers > maxWorkers:
		return fmt.Errorf("%d racks of %d workers: use 1 to %d racks of 1 to %d", c.Racks, c.Workers, maxRacks, maxWorkers)
	case c.Pods < 0 || c.Pods > 0 && c.Racks%c.Pods != 0:
		return fmt.Errorf("%d racks in %d pods: use a number of pods that divides the racks, or 0", c.Racks, c.Pods)
	case !(c.Rate >= minRate && c.Rate <= maxRate):
		return fmt.Errorf("links of %g bit/s: use %g to %g, which this way of shaping keeps to", c.Rate, minRate, maxRate)
	case c.Pods > 0 && c.PodUplink() > maxRate:
		return fmt.Errorf("pod uplinks of %g bit/s: use at most %g, which this way of shaping keeps to", c.PodUplink(), maxRate)
	case !(c.Core >= 1) || c.Uplink() < minRate:
		return fmt.Errorf("a core oversubscribed %g:1: use at least 1, with at least %g bit/s for an uplink", c.Core, minRate)
	}
	return nil
}

// Uplink returns the rate of a rack's uplink, in bits per second and direction.
func (c *Config) Uplink() float64 { return c.Rate * float64(c.Workers) / c.Core }

// PodUplink returns the rate of a pod's uplink, in bits per second and direction.
func (c *Config) PodUplink() float64 { return c.Uplink() * float64(c.Racks/max(c.Pods, 1)) }

// pod is a rack's pod.
func (c *Config) pod(rack int) int { return rack * c.Pods / c.Racks }

// Host is a machine: a network namespace with one interface, [Interface].
type Host struct {
	Namespace string `json:"namespace"`
	Addr      string `json:"addr"`
}

// Interface is the name of every host's interface.
const Interface = "eth0"

// Command returns the command line that runs a command on the host.
func (h Host) Command(argv ...string) []string {
	return append([]string{"ip", "netns", "exec", h.Namespace}, argv...)
}

// Worker returns a worker of a rack.
func (c *Config) Worker(rack, worker int) Host {
	return Host{fmt.Sprintf("%s-w%d.%d", c.Name, rack, worker), fmt.Sprintf("10.77.%d.%d", rack, 10+worker)}
}

// WorkerOfRank returns the worker of a rank: ranks go through a rack before the next.
func (c *Config) WorkerOfRank(rank int) Host { return c.Worker(rank/c.Workers, rank%c.Workers) }

// Aggregator returns the aggregator of a rack.
func (c *Config) Aggregator(rack int) Host {
	return Host{fmt.Sprintf("%s-a%d", c.Name, rack), fmt.Sprintf("10.77.%d.1", rack)}
}

// Hosts are all hosts, by their racks.
type Hosts struct {
	Aggregator Host   `json:"aggregator"`
	URL        string `json:"url"` // of the aggregator
	Workers    []Host `json:"workers"`
}

// Hosts returns all hosts, by their racks.
func (c *Config) Hosts() (all []Hosts) {
	for rack := range c.Racks {
		hosts, _ := c.hosts(rack)
		all = append(all, Hosts{hosts[0], c.URL(rack), hosts[1:]})
	}
	return all
}

// switches is the namespace of all bridges.
func (c *Config) switches() string { return c.Name + "-net" }

// hosts returns all hosts, each with the name of its port at its rack's bridge.
func (c *Config) hosts(rack int) (hosts []Host, ports []string) {
	hosts, ports = append(hosts, c.Aggregator(rack)), append(ports, AggregatorPort(rack))
	for w := range c.Workers {
		hosts, ports = append(hosts, c.Worker(rack, w)), append(ports, WorkerPort(rack, w))
	}
	return hosts, ports
}

// The names of ports, which counters go by. What a port of a host sends, the host receives.

// WorkerPort returns the port of a rack's bridge at which a worker's link ends.
func WorkerPort(rack, worker int) string { return fmt.Sprintf("w%d.%d", rack, worker) }

// AggregatorPort returns the port at which an aggregator's link ends.
func AggregatorPort(rack int) string { return fmt.Sprintf("a%d", rack) }

// UplinkPort returns the port of a rack's bridge at which its uplink ends: what it sends leaves the rack.
func UplinkPort(rack int) string { return fmt.Sprintf("up%d", rack) }

func downlinkPort(rack int) string { return fmt.Sprintf("down%d", rack) }

// podPorts are the ends of a pod's uplink: at the pod, and at the spine.
func podPorts(pod int) [2]string {
	return [2]string{fmt.Sprintf("podup%d", pod), fmt.Sprintf("poddown%d", pod)}
}

const (
	// With frames of 9000 bytes headers take 0.75% of what tbf counts, with 1500 bytes 4.6%.
	mtu = 9000
	// burst is above the largest segment that the kernel hands a veth whole; below it tbf would cut each up.
	burst = "128kb"
	// queue is more than all connections through a port have under way, so that none loses a segment.
	queue = "16mb"
)

// goodput is the share of a shaped rate that is left for payload.
const goodput = 1 / 1.0075

// script builds the fabric. Namespaces inherit the machine's congestion control; bbr takes less than half of a shaped link that
// several connections share, and cubic is not everywhere.
func (c *Config) script() string {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	net := c.switches()
	shape := func(namespace, device string, rate float64) {
		line("tc -n %s qdisc add dev %s root tbf rate %.0fbit burst %s limit %s", namespace, device, rate, burst, queue)
	}
	line("ip netns add %s", net)
	line("ip netns exec %s sh -c 'echo 1 >/proc/sys/net/ipv6/conf/default/disable_ipv6'", net)
	bridge := func(name string) {
		line("ip -n %s link add %s mtu %d type bridge", net, name, mtu)
		line("ip -n %s link set %s up", net, name)
	}
	attach := func(port, bridge string) {
		line("ip -n %s link set %s mtu %d master %s up", net, port, mtu, bridge)
	}
	uplink := func(up, from, down, to string, rate float64) {
		line("ip -n %s link add %s type veth peer name %s", net, up, down)
		attach(up, from)
		attach(down, to)
		shape(net, up, rate)
		shape(net, down, rate)
	}
	if c.Racks > 1 {
		bridge("spine")
	}
	for pod := range c.Pods {
		name, ports := fmt.Sprintf("pod%d", pod), podPorts(pod)
		bridge(name)
		uplink(ports[0], name, ports[1], "spine", c.PodUplink())
	}
	for rack := range c.Racks {
		name := fmt.Sprintf("rack%d", rack)
		bridge(name)
		if c.Racks > 1 {
			above := "spine"
			if c.Pods > 0 {
				above = fmt.Sprintf("pod%d", c.pod(rack))
			}
			uplink(UplinkPort(rack), name, downlinkPort(rack), above, c.Uplink())
		}
		hosts, ports := c.hosts(rack)
		for i, h := range hosts {
			line("ip netns add %s", h.Namespace)
			line("ip netns exec %s sh -c 'cd /proc/sys/net && echo 1 >ipv6/conf/default/disable_ipv6 && "+
				"echo reno >ipv4/tcp_congestion_control && echo 0 >ipv4/tcp_slow_start_after_idle'", h.Namespace)
			line("ip -n %s link add %s type veth peer name %s netns %s", net, ports[i], Interface, h.Namespace)
			attach(ports[i], name)
			line("ip -n %s link set lo up", h.Namespace)
			line("ip -n %s address add %s/16 dev %s", h.Namespace, h.Addr, Interface)
			line("ip -n %s link set %s mtu %d up", h.Namespace, Interface, mtu)
			if i > 0 {
				shape(h.Namespace, Interface, c.Rate)
				shape(net, ports[i], c.Rate)
			}
		}
	}
	return b.String()
}

// removal takes the fabric away. Links go with their namespaces.
func (c *Config) removal() string {
	var b strings.Builder
	for rack := range c.Racks {
		hosts, _ := c.hosts(rack)
		for _, h := range hosts {
			fmt.Fprintf(&b, "ip netns del %s\n", h.Namespace)
		}
	}
	fmt.Fprintf(&b, "ip netns del %s\n", c.switches())
	return b.String()
}
