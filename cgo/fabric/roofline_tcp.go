package fabric

/*
#include "tcp/roofline.h"
*/
import "C"

import "time"

// TCPRoofline describes a bare socket loop on loopback in both directions at once, against which provider tcp is measured.
type TCPRoofline struct {
	// Connections is how many there are; Hubs and Peers are the threads at their two ends, the connections dealt out among
	// the threads of an end.
	Connections, Hubs, Peers int
	// Block is the bytes of one send or recv.
	Block int
	// Span is the bytes of memory that each connection walks through in each direction, at least Block.
	Span int
	// Bytes is how many go in each direction, over all connections.
	Bytes int64
	// SocketBuffer is the bytes of each socket buffer; 0 leaves them to the kernel.
	SocketBuffer int
	// Timeout bounds the run.
	Timeout time.Duration
}

// Run returns how long the loop took, or a negative errno with LastError.
func (r TCPRoofline) Run() (time.Duration, int) {
	ns := int64(C.rwf_tcp_roofline(&C.struct_rwf_tcp_roofline{
		connections: C.uint32_t(r.Connections), hubs: C.uint32_t(r.Hubs), peers: C.uint32_t(r.Peers), block: C.uint32_t(r.Block),
		span: C.uint64_t(r.Span), bytes: C.uint64_t(r.Bytes), sockbuf: C.uint32_t(r.SocketBuffer),
		timeout_ms: C.uint32_t(r.Timeout.Milliseconds()),
	}))
	if ns < 0 {
		return 0, int(ns)
	}
	return time.Duration(ns), 0
}
