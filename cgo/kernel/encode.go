package kernel

/*
#include "kernel.h"

#cgo noescape rwk_encode
#cgo nocallback rwk_encode
*/
import "C"

import (
	"fmt"
	"structs"
	"unsafe"
)

// Encoding mirrors struct rwk_encoding. It encodes a chunk of N elements with the bits of package codec: the values with a residual
// as Spec.Encode does, or with a reference as Spec.EncodeChange does.
type Encoding struct {
	_                       structs.HostLayout
	Values                  uint64 // Type[N]
	Memory                  uint64 // f32[N], the residual or the reference
	Payload                 uint64 // room for f32[N]
	N                       uint64
	Seed, First             uint64  // of the random numbers, as in codec.Key
	Param                   float64 // codec.Spec's
	Step, Tensor, Rank      uint32  // as in codec.Key
	Factor                  float32 // of the residual
	Type, Codec, Stochastic uint8   // the Codec is a codec.ID; Stochastic is 0 or 1
	Reference               uint8   // if 1, Memory is a reference
}

func init() {
	if unsafe.Sizeof(Encoding{}) != C.sizeof_struct_rwk_encoding {
		panic("kernel: struct rwk_encoding differs between Go and C")
	}
}

// Run encodes the chunk and returns the payload's length.
func (e *Encoding) Run(isa ISA) int {
	checkType(e.Type)
	if e.Codec >= C.RWK_CODECS {
		panic(fmt.Sprintf("kernel: codec(%d) is not a codec", e.Codec))
	}
	return int(C.rwk_encode(C.int(isa), (*C.struct_rwk_encoding)(unsafe.Pointer(e))))
}
