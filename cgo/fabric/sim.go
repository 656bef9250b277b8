package fabric

/*
#include <stdlib.h>
#include "sim/sim.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"time"
	"unsafe"
)

// Sim is a world of provider sim (sim.h): devices opened with its [Sim.Options] reach each other, nothing moves but by
// [Sim.Step], and the same seed and calls give the same schedule.
type Sim struct{ h *C.struct_rwf_sim }

// SimOrder says how a step chooses among the events that may happen.
type SimOrder int

// Orders of events.
const (
	SimRandom SimOrder = C.RWF_SIM_RANDOM  // any, with equal chance
	SimByTime SimOrder = C.RWF_SIM_BY_TIME // the first by a latency drawn per message
)

// SimFaults are chances in 1/65536 per attempt to deliver a message unless said otherwise (struct rwf_sim_faults).
type SimFaults struct {
	Delay       uint32 // held for up to DelayMax
	Drop        uint32 // lost and sent again, until the ack timeout
	RNR         uint32 // turned away as if no receive were posted
	StaleKey    uint32 // refused as if its rkey were stale
	QPFail      uint32 // the sending queue pair fails
	CQOverrun   uint32 // per completion: its queue overruns
	LinkDown    uint32 // per step: a device's link goes down for up to LinkDownMax
	Kill        uint32 // per step: a device dies
	SilentClose uint32 // per queue pair that fails: its peer is not notified
	FatalMax    uint32 // how many of StaleKey, QPFail, CQOverrun and Kill may strike in all; 0: any number
	DelayMax    time.Duration
	LinkDownMax time.Duration
}

// SimFault is what [TriggerSim] makes of a queue pair's next attempt to deliver.
type SimFault int

// Faults to trigger.
const (
	SimDelay    SimFault = C.RWF_SIM_DELAY
	SimDrop     SimFault = C.RWF_SIM_DROP
	SimRNR      SimFault = C.RWF_SIM_RNR
	SimStaleKey SimFault = C.RWF_SIM_STALE_KEY
	SimQPFail   SimFault = C.RWF_SIM_QP_FAIL
)

// NewSim makes a world. It fails when too many are open.
func NewSim(seed uint64) (*Sim, error) {
	h := C.rwf_sim_new(C.uint64_t(seed))
	if h == nil {
		return nil, errors.New("make a simulated world: too many are open; close one")
	}
	return &Sim{h}, nil
}

// Options returns what to open a device of this world with.
func (s *Sim) Options() string { return fmt.Sprintf("world=%d", int(C.rwf_sim_id(s.h))) }

// Close lets the world go; devices still open keep it alive until they are closed.
func (s *Sim) Close() { C.rwf_sim_free(s.h) }

// Step lets one event happen or, with nothing due, up to a millisecond pass. It returns how many messages are still to be
// delivered or acknowledged.
func (s *Sim) Step() int { return int(C.rwf_sim_step(s.h)) }

// Now returns the virtual time since the world was made.
func (s *Sim) Now() time.Duration { return time.Duration(C.rwf_sim_now(s.h)) }

// SetOrder chooses how events are ordered.
func (s *Sim) SetOrder(o SimOrder) { C.rwf_sim_set_order(s.h, C.enum_rwf_sim_order(o)) }

// SetFaults chooses what may go wrong from now on.
func (s *Sim) SetFaults(f SimFaults) {
	C.rwf_sim_set_faults(s.h, &C.struct_rwf_sim_faults{
		delay: C.uint32_t(f.Delay), drop: C.uint32_t(f.Drop), rnr: C.uint32_t(f.RNR), stale_key: C.uint32_t(f.StaleKey),
		qp_fail: C.uint32_t(f.QPFail), cq_overrun: C.uint32_t(f.CQOverrun), link_down: C.uint32_t(f.LinkDown),
		kill: C.uint32_t(f.Kill), silent_close: C.uint32_t(f.SilentClose), fatal_max: C.uint32_t(f.FatalMax),
		delay_max_ns: C.uint64_t(f.DelayMax), link_down_max_ns: C.uint64_t(f.LinkDownMax),
	})
}

// LogHash returns a hash over all that happened: equal for equal seeds and calls.
func (s *Sim) LogHash() uint64 { return uint64(C.rwf_sim_log_hash(s.h)) }

// Trace writes a line for every event to fd from now on; -1 ends it.
func (s *Sim) Trace(fd int) { C.rwf_sim_trace(s.h, C.int(fd)) }

// KillSim stops a simulated host: nothing comes from it or reaches it again.
func KillSim(d Device) { C.rwf_sim_kill_device((*C.rwf_device)(unsafe.Pointer(d))) }

// LinkSim takes a simulated host's link down or up.
func LinkSim(d Device, up bool) { C.rwf_sim_link((*C.rwf_device)(unsafe.Pointer(d)), simFlag(up)) }

// LinkSimNamed does so for the devices of a name in the process's own world, and counts them.
func LinkSimNamed(name string, up bool) int {
	s := C.CString(name)
	defer C.free(unsafe.Pointer(s))
	return int(C.rwf_sim_link_named(s, simFlag(up)))
}

func simFlag(b bool) C.int {
	if b {
		return 1
	}
	return 0
}

// TriggerSim makes the next attempt to deliver a message of a simulated queue pair meet a fault.
func TriggerSim(qp QP, f SimFault) {
	C.rwf_sim_trigger((*C.rwf_qp)(unsafe.Pointer(qp)), C.enum_rwf_sim_fault(f))
}

// ShrinkSimCQ leaves a simulated completion queue room for cqe completions.
func ShrinkSimCQ(cq CQ, cqe int) {
	C.rwf_sim_shrink_cq((*C.rwf_cq)(unsafe.Pointer(cq)), C.uint32_t(cqe))
}
