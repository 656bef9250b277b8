package fabric

/*
#include "shm/shm.h"
*/
import "C"

import "unsafe"

// ShmEndpoint is a decoded endpoint of provider shm.
type ShmEndpoint struct {
	QPNum, RecvDepth uint32
	ByReference      bool
	Listener, Cookie [16]byte
}

// DecodeShmEndpoint decodes an endpoint that a peer sent. rc is negative if it is invalid.
func DecodeShmEndpoint(buf []byte) (ep ShmEndpoint, rc int) {
	var c C.struct_shm_endpoint
	rc = int(C.shm_decode_endpoint(unsafe.Pointer(unsafe.SliceData(buf)), C.size_t(len(buf)), &c))
	if rc < 0 {
		return ep, rc
	}
	ep = ShmEndpoint{QPNum: uint32(c.qp_num), RecvDepth: uint32(c.recv_depth), ByReference: c.by_ref == 1}
	copy(ep.Listener[:], C.GoBytes(unsafe.Pointer(&c.listener[0]), C.SHM_COOKIE))
	copy(ep.Cookie[:], C.GoBytes(unsafe.Pointer(&c.cookie[0]), C.SHM_COOKIE))
	return ep, 0
}

// ShmCopyLevel returns the widest kind of store with which this processor can copy. Every processor has level 0.
func ShmCopyLevel() int { return int(C.shm_copy_level()) }

// ShmCopy copies src over the start of dst with a level's stores, past the cache or not.
func ShmCopy(level int, dst, src []byte, pastCache bool) {
	if level > ShmCopyLevel() || len(dst) < len(src) {
		panic("fabric: copy beyond the target or the processor")
	}
	past := C.int(0)
	if pastCache {
		past = 1
	}
	C.shm_copy_with(C.int(level), unsafe.Pointer(unsafe.SliceData(dst)), unsafe.Pointer(unsafe.SliceData(src)), C.size_t(len(src)),
		past)
}
