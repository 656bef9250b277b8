package fabric

/*
#include "shm/shm.h"
*/
import "C"

import "unsafe"

// ShmEndpointValid reports whether provider shm takes these bytes for an endpoint; LastError says why not.
func ShmEndpointValid(b []byte) bool {
	var ep C.struct_shm_endpoint
	return C.shm_decode_endpoint(unsafe.Pointer(unsafe.SliceData(b)), C.size_t(len(b)), &ep) == 0
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
