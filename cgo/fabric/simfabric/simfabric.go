// Package simfabric is a transport provider for tests: hosts, links and queue pairs in one process, on a network that is seeded,
// repeatable, and may have faults (sim.h). A program that imports it has the provider.
package simfabric

/*
#cgo CFLAGS: -std=gnu11 -O2 -Wall -Wextra -Werror -fno-strict-aliasing
#include <stdlib.h>
#include "sim.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"structs"
	"time"
	"unsafe"

	_ "github.com/rackweave/rackweave/cgo/fabric/base"
)

// Provider is the name of the provider.
const Provider = "sim"

func init() {
	if C.rwf_sim_provide() != 0 {
		panic("simfabric: there are too many providers")
	}
}

// World is a network (sim.h). Devices opened with its [World.Options] reach each other, and only [World.Step] moves anything. Equal
// seeds and calls give equal schedules.
type World struct{ h *C.struct_rwf_sim }

// Network mirrors struct rwf_sim_network: chances in 1/65536 per attempt to deliver a message unless stated otherwise.
type Network struct {
	_           structs.HostLayout
	Delay       uint32 // held for up to DelayMax
	Drop        uint32 // lost and sent again, until the ack timeout
	RNR         uint32 // turned away as if no receive were posted
	SilentClose uint32 // per queue pair that fails: its peer is not notified
	StaleKey    uint32 // refused as if its rkey were stale
	QPFail      uint32 // the sending queue pair fails
	CQOverrun   uint32 // per completion: its queue overruns
	FatalMax    uint32 // total number of StaleKey, QPFail and CQOverrun; if 0, not limited
	DelayMax    time.Duration
	ByTime      bool // the first possible event by a latency drawn per message happens; otherwise any, with equal chance
}

// Fault is the effect of [Trigger] on a queue pair's next attempt to deliver.
type Fault int

// These are the faults to trigger.
const (
	Delay    Fault = C.RWF_SIM_DELAY
	Drop     Fault = C.RWF_SIM_DROP
	RNR      Fault = C.RWF_SIM_RNR
	StaleKey Fault = C.RWF_SIM_STALE_KEY
	QPFail   Fault = C.RWF_SIM_QP_FAIL
)

// New makes a world. It fails if too many are open.
func New(seed uint64) (*World, error) {
	h := C.rwf_sim_new(C.uint64_t(seed))
	if h == nil {
		return nil, errors.New("make a simulated world: too many are open; close one")
	}
	return &World{h}, nil
}

// Options returns the options with which devices of this world are opened.
func (w *World) Options() string { return fmt.Sprintf("world=%d", int(C.rwf_sim_id(w.h))) }

// Close releases the world. Devices still open keep it alive until they are closed.
func (w *World) Close() { C.rwf_sim_free(w.h) }

// Step lets one event happen or, with nothing due, up to a millisecond pass. It returns the number of messages that are still to be
// delivered or acknowledged.
func (w *World) Step() int { return int(C.rwf_sim_step(w.h)) }

// Now returns the virtual time since the world was made.
func (w *World) Now() time.Duration { return time.Duration(C.rwf_sim_now(w.h)) }

// SetNetwork sets the order of events and the chances of faults from now on.
func (w *World) SetNetwork(n Network) {
	C.rwf_sim_set_network(w.h, (*C.struct_rwf_sim_network)(unsafe.Pointer(&n)))
}

// LogHash returns a hash over all events so far. It is equal for equal seeds and calls.
func (w *World) LogHash() uint64 { return uint64(C.rwf_sim_log_hash(w.h)) }

// Trace writes a line for every event to fd from now on. If fd is -1, it stops.
func (w *World) Trace(fd int) { C.rwf_sim_trace(w.h, C.int(fd)) }

// object is a device, queue pair or completion queue of the provider, as package verbs has them.
type object interface{ Handle() unsafe.Pointer }

// Kill stops a simulated host. Nothing comes from it or reaches it again.
func Kill(d object) { C.rwf_sim_kill_device((*C.rwf_device)(d.Handle())) }

// Link takes a simulated host's link down or up.
func Link(d object, up bool) { C.rwf_sim_link((*C.rwf_device)(d.Handle()), C.bool(up)) }

// LinkNamed does so for the devices of a name in the process's own world, and returns their number.
func LinkNamed(name string, up bool) int {
	s := C.CString(name)
	defer C.free(unsafe.Pointer(s))
	return int(C.rwf_sim_link_named(s, C.bool(up)))
}

// Trigger makes the next attempt to deliver a message of a simulated queue pair fail with a fault.
func Trigger(qp object, f Fault) {
	C.rwf_sim_trigger((*C.rwf_qp)(qp.Handle()), C.enum_rwf_sim_fault(f))
}

// ShrinkCQ leaves a simulated completion queue room for cqe completions.
func ShrinkCQ(cq object, cqe int) {
	C.rwf_sim_shrink_cq((*C.rwf_cq)(cq.Handle()), C.uint32_t(cqe))
}
