// Package kernel holds the SIMD kernels of the aggregating core (kernel.h) as seen from Go: sums over workers, optimizer
// updates fused into the same pass, casts, norms, and the memory probe they are measured against. Each gives the bits of
// the plain Go reference in aggregate/optim at every width.
//
// Arrays are given by address: they lie outside the Go heap, in registered arenas, and nothing here keeps them alive. No call
// allocates. A wrong dtype, or no source at all, panics.
package kernel

/*
#cgo CFLAGS: -std=c11 -Wall -Wextra -Werror -fno-strict-aliasing
#cgo !asan CFLAGS: -O3
#cgo asan CFLAGS: -O1
#cgo LDFLAGS: -lm
#include "kernel.h"

// Runs u on sources and outputs that lie in Go memory for the length of the call.
static inline int rwk_update_on(int isa, const struct rwk_update *u, const uint64_t *src, uint32_t nsrc, const uint64_t *out,
				uint32_t nout)
{
	struct rwk_update on = *u;

	on.src = (uintptr_t)src;
	on.nsrc = nsrc;
	on.out = (uintptr_t)out;
	on.nout = nout;
	return rwk_update(isa, &on);
}

static inline void rwk_convert_at(int isa, uint64_t dst, int dst_type, uint64_t src, int src_type, uint64_t n, int streaming)
{
	rwk_convert(isa, (void *)(uintptr_t)dst, dst_type, (const void *)(uintptr_t)src, src_type, n, streaming);
}

static inline double rwk_sumsq_at(int isa, uint64_t x, uint64_t n)
{
	return rwk_sumsq(isa, (const float *)(uintptr_t)x, n);
}

#cgo noescape rwk_update_on
#cgo nocallback rwk_update_on
#cgo noescape rwk_sum
#cgo nocallback rwk_sum
#cgo noescape rwk_convert_at
#cgo nocallback rwk_convert_at
#cgo noescape rwk_sumsq_at
#cgo nocallback rwk_sumsq_at
*/
import "C"

import (
	"fmt"
	"structs"
	"unsafe"
)

// Element types, as chunk.DType.
const (
	F32  = C.RWK_F32
	BF16 = C.RWK_BF16
	F16  = C.RWK_F16
)

const cScalars = C.RWK_SCALARS

func checkType(d uint8) {
	if d < F32 || d > F16 {
		panic(fmt.Sprintf("kernel: dtype(%d) is no wire type", d))
	}
}

// SumTo writes the sum of the sources, n elements of srcType each, to every destination, in one pass: in index order, in
// f32, cast to dstType at the end. With accumulate the destinations are f32, and the first one stands before the first
// source. With stream the destinations are written past the cache: for results that this core will not read. They are
// visible to other cores when SumTo returns.
func SumTo(isa ISA, dsts []uint64, dstType uint8, src []uint64, srcType uint8, n uint64, accumulate, stream bool) {
	checkType(dstType)
	checkType(srcType)
	if len(src) == 0 || len(dsts) == 0 || accumulate && dstType != F32 {
		panic(fmt.Sprintf("kernel: sum of %d sources to %d destinations of dtype(%d), accumulate %v", len(src), len(dsts), dstType,
			accumulate))
	}
	C.rwk_sum(C.int(isa), pointer(dsts), C.uint32_t(len(dsts)), C.int(dstType), pointer(src), C.uint32_t(len(src)), C.int(srcType),
		C.uint64_t(n), flag(accumulate), flag(stream))
}

func pointer(addrs []uint64) *C.uint64_t {
	return (*C.uint64_t)(unsafe.Pointer(unsafe.SliceData(addrs)))
}

// Convert casts n elements, rounding to nearest even. Streaming writes dst past the cache, for results that this core will not
// read.
func Convert(isa ISA, dst uint64, dstType uint8, src uint64, srcType uint8, n uint64, streaming bool) {
	checkType(dstType)
	checkType(srcType)
	C.rwk_convert_at(C.int(isa), C.uint64_t(dst), C.int(dstType), C.uint64_t(src), C.int(srcType), C.uint64_t(n),
		flag(streaming))
}

// SumSq returns the sum of squares of x, f32[n], in f64 and in a fixed order.
func SumSq(isa ISA, x, n uint64) float64 {
	return float64(C.rwk_sumsq_at(C.int(isa), C.uint64_t(x), C.uint64_t(n)))
}

func flag(b bool) C.int {
	if b {
		return 1
	}
	return 0
}

// Update mirrors struct rwk_update: one fused pass that sums sources, updates W and the states, and writes the result to
// outputs.
type Update struct {
	_                structs.HostLayout
	W                uint64    // f32[N]
	State            [3]uint64 // f32[N] each, as many as the rule keeps
	_, _             uint64    // the addresses that Run is given
	N                uint64
	_, _             uint32
	SrcType, OutType uint8
	Rule             uint8             // optim.Rule
	Stream           uint8             // 1: write the outputs past the cache, for results that this core will not read
	Scalar           [cScalars]float32 // optim.Derive
}

func init() {
	if unsafe.Sizeof(Update{}) != C.sizeof_struct_rwk_update {
		panic("kernel: struct rwk_update differs between Go and C")
	}
}

// Run runs the update on the sources, SrcType[N] each, and writes the result to every output, OutType[N] each; there may be
// none. The slices may lie in the Go heap.
func (u *Update) Run(isa ISA, src, outs []uint64) error {
	checkType(u.SrcType)
	if len(outs) > 0 {
		checkType(u.OutType)
	}
	if len(src) == 0 {
		panic("kernel: update without sources")
	}
	switch C.rwk_update_on(C.int(isa), (*C.struct_rwk_update)(unsafe.Pointer(u)), pointer(src), C.uint32_t(len(src)), pointer(outs),
		C.uint32_t(len(outs))) {
	case -1:
		return fmt.Errorf("kernel: rule(%d) is no update rule: use one of optim.Rules", u.Rule)
	case -2:
		return fmt.Errorf("kernel: rule(%d): w or a state array it needs is 0: allocate as many as optim.Rule.States says", u.Rule)
	}
	return nil
}
