package fabric

/*
#include "ibv/ibv.h"
*/
import "C"

import (
	"errors"
	"unsafe"
)

// CheckIBVEndpoint checks the endpoint of a queue pair of provider ibv, as connecting does.
func CheckIBVEndpoint(blob []byte) error {
	var e C.struct_rwf_ibv_endpoint
	if C.rwf_ibv_decode_endpoint(unsafe.Pointer(unsafe.SliceData(blob)), C.size_t(len(blob)), &e) != 0 {
		return errors.New(LastError())
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
