// Package verbs is the one transport contract, in RDMA's own words: devices, protection domains, memory regions, completion
// queues, queue pairs, work requests and completions. The code above it is written once, and providers implement it:
//
//	ibv   libibverbs: hardware NICs and soft-RoCE
//	shm   one host: shared memory
//	tcp   between hosts without RDMA
//
// The contract is cgo/fabric/base/fabric.h. It defines the strictness of providers, and the threads that may make each call. In
// short, a [CQ] and the [QP]s bound to it belong to one owner at a time. Only [CQ.Wake], [PD.RegisterMR] and [Device.AsyncEvent]
// may be called by others. Queue pairs are closed first, then completion queues, memory regions, protection domains, the device.
//
// The types and constants are those of package cgo/fabric, which makes the calls into C. Here are those in use.
package verbs

import (
	"errors"
	"net/netip"
	"syscall"
	"time"

	"github.com/rackweave/rackweave/cgo/fabric"
)

// These are the names of the providers.
const (
	ProviderIBV = "ibv"
	ProviderSHM = "shm"
	ProviderTCP = "tcp"
)

// These are the contract's objects and structs.
type (
	Device        = fabric.Device
	Attr          = fabric.Attr // of a device
	PD            = fabric.PD
	MR            = fabric.MR
	CQ            = fabric.CQ
	QP            = fabric.QP
	QPConfig      = fabric.QPConfig
	ConnectConfig = fabric.ConnectConfig
	SendWR        = fabric.SendWR
	WC            = fabric.WC
	AsyncEvent    = fabric.AsyncEvent
	Error         = fabric.Error
)

// LinkSettles is the time for which a link must be up before both ends use it again, because a link that comes up often goes down
// once more.
const LinkSettles = 500 * time.Millisecond

// Providers lists the providers, fastest first.
func Providers() []string { return fabric.Providers() }

// HasNICs reports whether a provider's devices are NICs: a host may have several, and uses all unless some are chosen.
func HasNICs(provider string) bool { return fabric.HasNICs(provider) }

// Devices lists a provider's devices.
func Devices(provider string) ([]string, error) { return fabric.Devices(provider) }

// ProvidersHere lists the providers that this machine can use, fastest first. They have a device whose link is up, if their devices
// have links.
func ProvidersHere() []string {
	var here []string
	for _, p := range Providers() {
		if names, err := Devices(p); err != nil || len(names) == 0 {
			continue
		}
		d, err := Open(p, "", "")
		if errors.Is(err, syscall.ENETDOWN) {
			continue
		}
		here = append(here, p) // use of the device shows its other faults
		if err == nil {
			_ = d.Close() // nothing opened from it is open
		}
	}
	return here
}

// Open opens a device of a provider (see [fabric.Open]).
func Open(provider, name, options string) (*Device, error) {
	return fabric.Open(provider, name, options)
}

// MapAll finds the addresses in this process of a range at each queue pair's peer (see [fabric.MapAll]).
func MapAll(qps []*QP, rkeys []uint32, raddrs []uint64, length uint32, out []uint64) bool {
	return fabric.MapAll(qps, rkeys, raddrs, length, out)
}

// Located returns a peer's endpoint with the address at which the peer is reached, if it listens on every address and names none.
// It returns others as they are.
func Located(endpoint []byte, at netip.Addr) []byte { return fabric.TCPLocated(endpoint, at) }
