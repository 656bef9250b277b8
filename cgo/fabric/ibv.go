package fabric

/*
#include "ibv/ibv.h"
*/
import "C"

import (
	"errors"
	"unsafe"
)

// IBVEndpoint is a decoded endpoint of a queue pair of provider ibv. Link is 1 InfiniBand, 2 RoCE v1, 3 RoCE v2. MTU is in bytes.
type IBVEndpoint struct {
	QPN, PSN, MTU uint32
	LID           uint16
	Link          uint8
	GID           [16]byte
}

// DecodeIBVEndpoint decodes the endpoint of a queue pair of provider ibv, as connecting does.
func DecodeIBVEndpoint(blob []byte) (IBVEndpoint, error) {
	var e C.struct_rwf_ibv_endpoint
	if C.rwf_ibv_decode_endpoint(unsafe.Pointer(unsafe.SliceData(blob)), C.size_t(len(blob)), &e) != 0 {
		return IBVEndpoint{}, errors.New(LastError())
	}
	return IBVEndpoint{
		QPN: uint32(e.qpn), PSN: uint32(e.psn), MTU: 128 << e.mtu, LID: uint16(e.lid), Link: uint8(e.link),
		GID: *(*[16]byte)(unsafe.Pointer(&e.gid)),
	}, nil
}

// EncodeIBVEndpoint is the inverse of [DecodeIBVEndpoint].
func EncodeIBVEndpoint(e IBVEndpoint) []byte {
	c := C.struct_rwf_ibv_endpoint{qpn: C.uint32_t(e.QPN), psn: C.uint32_t(e.PSN), lid: C.uint16_t(e.LID), link: C.uint8_t(e.Link)}
	for 128<<c.mtu < e.MTU {
		c.mtu++
	}
	*(*[16]byte)(unsafe.Pointer(&c.gid)) = e.GID
	blob := make([]byte, C.RWF_IBV_ENDPOINT_BYTES)
	C.rwf_ibv_encode_endpoint(&c, (*C.uint8_t)(unsafe.Pointer(unsafe.SliceData(blob))))
	return blob
}

// IBVAckTimeout returns the code of ibv_modify_qp(3) for an acknowledgement timeout.
func IBVAckTimeout(ms uint32, retry uint8) uint8 {
	return uint8(C.rwf_ibv_ack_timeout(C.uint32_t(ms), C.uint8_t(retry)))
}

// IBVRNRTimer returns the code of ibv_modify_qp(3) for the receiver's RNR timer.
func IBVRNRTimer(ms uint32, retries uint8) uint8 {
	return uint8(C.rwf_ibv_rnr_timer(C.uint32_t(ms), C.uint8_t(retries)))
}
