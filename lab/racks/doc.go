// Package racks emulates a data centre on one machine: workers and aggregators are network namespaces, racks are bridges, and links
// are veth pairs shaped by tc's tbf so that a step waits for them, and not for the machine's cores.
//
//	fabric, err := racks.Up(ctx, racks.Config{Racks: 2, Workers: 4, Rate: 200e6, Core: 8})
//	defer fabric.Close()
//	cmd := exec.Command(fabric.Aggregator(0).Command("rackweave", "serve", "--insecure", "--listen", ":7077"))
//
// Each worker has one link of [Config.Rate] in each direction. An aggregator's link is not shaped: it has a NIC for each of its
// workers, and one for the core. A rack's uplink to the spine has the rate of its workers' links over [Config.Core].
//
// Everything lies in namespaces of its own, so that nothing of the machine's network changes, and all goes when they do. It needs
// root and iproute2; [Probe] names what is missing. Times are those of an emulated network: they show shares of what links allow.
package racks
