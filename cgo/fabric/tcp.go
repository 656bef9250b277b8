package fabric

/*
#include "tcp/tcp.h"
*/
import "C"

import (
	"net/netip"
	"unsafe"
)

// TCPLocated returns an endpoint of provider tcp with the address at which it is reached if its device listens on every address. It
// returns others as they are.
func TCPLocated(endpoint []byte, at netip.Addr) []byte {
	var ep C.struct_tcp_endpoint
	rc := C.tcp_endpoint_decode(&ep, unsafe.Pointer(unsafe.SliceData(endpoint)), C.size_t(len(endpoint)))
	if !at.IsValid() || rc != 0 || !bool(C.tcp_is_wildcard(&ep)) {
		return endpoint
	}
	ep.ip = 6
	if at.Unmap().Is4() {
		ep.ip = 4
	}
	for i, b := range at.Unmap().AsSlice() {
		ep.addr[i] = C.uint8_t(b)
	}
	return C.GoBytes(unsafe.Pointer(&ep), C.sizeof_struct_tcp_endpoint)
}
