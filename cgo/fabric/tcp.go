package fabric

/*
#include "tcp/wire.h"
*/
import "C"

import "unsafe"

// TCPEndpointValid reports whether provider tcp takes these bytes for an endpoint; LastError says why not.
func TCPEndpointValid(b []byte) bool {
	var ep C.struct_tcp_endpoint
	return C.tcp_endpoint_decode(&ep, unsafe.Pointer(unsafe.SliceData(b)), C.size_t(len(b))) == 0
}
