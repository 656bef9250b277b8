// Package fabrictest lets tests call parts of the providers by themselves: how they decode an endpoint, copy, and convert times.
package fabrictest

/*
#cgo CFLAGS: -std=gnu11 -O2 -Wall -Wextra -Werror
#include "../ibv/ibv.h"
#include "../shm/shm.h"
#include "../tcp/tcp.h"
*/
import "C"

import (
	"errors"
	"unsafe"

	_ "github.com/rackweave/rackweave/cgo/fabric/base" // for their C
	_ "github.com/rackweave/rackweave/cgo/fabric/ibv"
	_ "github.com/rackweave/rackweave/cgo/fabric/shm"
	_ "github.com/rackweave/rackweave/cgo/fabric/tcp"
)

// CheckIBVEndpoint checks the endpoint of a queue pair of provider ibv, as connecting does.
func CheckIBVEndpoint(blob []byte) error {
	var e C.struct_rwf_ibv_endpoint
	if C.rwf_ibv_decode_endpoint(unsafe.Pointer(unsafe.SliceData(blob)), C.size_t(len(blob)), &e) != 0 {
		return errors.New(C.GoString(C.rwf_last_error()))
	}
	return nil
}

// IBVAckTimeout returns the code of ibv_modify_qp(3) for an acknowledgement timeout.
func IBVAckTimeout(ms uint32, retry uint8) uint8 {
	return uint8(C.rwf_ibv_ack_timeout(C.uint32_t(ms), C.uint8_t(retry)))
}

// IBVRNRTimer returns the code of ibv_modify_qp(3) for the receiver's RNR timer.
func IBVRNRTimer(ms uint32, retries uint8) uint8 {
	return uint8(C.rwf_ibv_rnr_timer(C.uint32_t(ms), C.uint8_t(retries)))
}

// ShmEndpointValid reports whether provider shm takes these bytes for an endpoint.
func ShmEndpointValid(b []byte) bool {
	var ep C.struct_shm_endpoint
	return C.shm_decode_endpoint(unsafe.Pointer(unsafe.SliceData(b)), C.size_t(len(b)), &ep) == 0
}

// ShmCopy copies src over the start of dst, past the cache or not.
func ShmCopy(dst, src []byte, pastCache bool) {
	if len(dst) < len(src) {
		panic("fabrictest: copy beyond the target")
	}
	past := C.int(0)
	if pastCache {
		past = 1
	}
	C.shm_copy(unsafe.Pointer(unsafe.SliceData(dst)), unsafe.Pointer(unsafe.SliceData(src)), C.size_t(len(src)), past)
}

// TCPEndpointValid reports whether provider tcp takes these bytes for an endpoint.
func TCPEndpointValid(b []byte) bool {
	var ep C.struct_tcp_endpoint
	return C.tcp_endpoint_decode(&ep, unsafe.Pointer(unsafe.SliceData(b)), C.size_t(len(b))) == 0
}
