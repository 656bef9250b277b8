// Package kernel holds the SIMD kernels of the aggregating core (kernel.h) for Go: sums over workers, optimizer updates fused into
// the same pass, casts, norms, and a memory probe as their roofline. Each gives the bits of the plain Go reference in
// aggregate/optim at every width.
//
// Arrays are given by address. They lie outside the Go heap, in registered arenas, and the package does not keep them alive. No
// call allocates. An invalid dtype, or an empty list of sources, panics.
package kernel

/*
#cgo CFLAGS: -std=c11 -Wall -Wextra -Werror -fno-strict-aliasing
#cgo !asan CFLAGS: -O3
#cgo asan CFLAGS: -O1
#cgo LDFLAGS: -lm
#include "kernel.h"

#cgo noescape rwk_update
#cgo nocallback rwk_update
#cgo noescape rwk_sum
#cgo nocallback rwk_sum
#cgo noescape rwk_convert
#cgo nocallback rwk_convert
#cgo noescape rwk_sumsq
#cgo nocallback rwk_sumsq
*/
import "C"

import (
	"embed"
	"fmt"
	"structs"
	"unsafe"
)

// See package base.
//
//go:embed *.h
var _ embed.FS

// These are the element types, as in chunk.DType.
const (
	F32  = C.RWK_F32
	BF16 = C.RWK_BF16
	F16  = C.RWK_F16
)

const cScalars = C.RWK_SCALARS

func checkType(d uint8) {
	if d < F32 || d > F16 {
		panic(fmt.Sprintf("kernel: dtype(%d) is not a wire type", d))
	}
}

// Sources are the summands of a pass, in order.
type Sources struct {
	Addr []uint64 // addresses of as many elements as the pass has
	// Form holds the codec.Form of each source: 0 for elements of Type, otherwise that of a payload of F32. If nil, all are 0.
	Form []uint64
	Type uint8
}

// From returns sources of a type at these addresses.
func From(addrs []uint64, dtype uint8) Sources { return Sources{Addr: addrs, Type: dtype} }

// Part returns the sources from first on and before end.
func (s Sources) Part(first, end int) Sources {
	s.Addr = s.Addr[first:end]
	if s.Form != nil {
		s.Form = s.Form[first:end]
	}
	return s
}

func (s *Sources) check() {
	checkType(s.Type)
	if s.Form != nil && (len(s.Form) != len(s.Addr) || s.Type != F32) {
		panic(fmt.Sprintf("kernel: %d forms for %d sources of dtype(%d)", len(s.Form), len(s.Addr), s.Type))
	}
}

// Sum is a sum of sources, written to every destination in one pass. For each element i of N it is
//
//	sum := float32(Dst[0][i]) // if Accumulate, else 0
//	for _, src := range Src {
//		sum += float32(src[i])
//	}
//	for _, dst := range Dst {
//		dst[i] = DstType(sum)
//	}
//
// in f32 and in the order of the sources.
type Sum struct {
	Dst        []uint64 // addresses of N elements of DstType each; F32 with Accumulate
	DstType    uint8
	Src        Sources
	N          uint64
	Accumulate bool // the first destination comes before the first source
	// PastCache writes the destinations past the cache, for results that this core will not read. They are visible to other cores when
	// Run returns.
	PastCache bool
}

// Run runs the sum.
func (s Sum) Run(isa ISA) {
	checkType(s.DstType)
	s.Src.check()
	if len(s.Src.Addr) == 0 || len(s.Dst) == 0 || s.Accumulate && s.DstType != F32 {
		panic(fmt.Sprintf("kernel: sum of %d sources to %d destinations of dtype(%d), accumulate %v", len(s.Src.Addr), len(s.Dst), s.DstType,
			s.Accumulate))
	}
	C.rwk_sum(C.int(isa), pointer(s.Dst), C.uint32_t(len(s.Dst)), C.int(s.DstType), pointer(s.Src.Addr),
		pointer(s.Src.Form), C.uint32_t(len(s.Src.Addr)), C.int(s.Src.Type), C.uint64_t(s.N), flag(s.Accumulate), flag(s.PastCache))
}

func pointer(addrs []uint64) *C.uint64_t {
	return (*C.uint64_t)(unsafe.Pointer(unsafe.SliceData(addrs)))
}

// Convert casts n elements, rounding to nearest even. With pastCache it writes dst past the cache, for results that this core will
// not read.
func Convert(isa ISA, dst uint64, dstType uint8, src uint64, srcType uint8, n uint64, pastCache bool) {
	checkType(dstType)
	checkType(srcType)
	C.rwk_convert(C.int(isa), C.uint64_t(dst), C.int(dstType), C.uint64_t(src), C.int(srcType), C.uint64_t(n),
		flag(pastCache))
}

// SumSq returns the sum of squares of x, f32[n], in f64 and in a fixed order.
func SumSq(isa ISA, x, n uint64) float64 {
	return float64(C.rwk_sumsq(C.int(isa), C.uint64_t(x), C.uint64_t(n)))
}

// Check returns the form of a payload for so many elements, or what is wrong with it, as codec.Check does. It takes no top-k.
func Check(payload []byte, elems int) (form uint64, wrong string) {
	s := C.rwk_check(unsafe.Pointer(unsafe.SliceData(payload)), C.uint64_t(len(payload)), C.uint64_t(elems),
		(*C.uint64_t)(unsafe.Pointer(&form)))
	if s != nil {
		return 0, C.GoString(s)
	}
	return form, ""
}

func flag(b bool) C.int {
	if b {
		return 1
	}
	return 0
}

// Update mirrors struct rwk_update. It is one fused pass that sums sources, updates W and the states, and writes the result to
// outputs.
type Update struct {
	_                structs.HostLayout
	W                uint64    // f32[N]
	State            [3]uint64 // f32[N] each, as many as the rule keeps
	N                uint64
	srcType, OutType uint8
	Rule             uint8             // optim.Rule
	PastCache        uint8             // if 1, the outputs are written past the cache, for results that this core will not read
	Scalar           [cScalars]float32 // optim.Derive
}

func init() {
	if unsafe.Sizeof(Update{}) != C.sizeof_struct_rwk_update {
		panic("kernel: struct rwk_update differs between Go and C")
	}
}

// Run runs the update on the sources, and writes the result to every output, OutType[N] each. outs may be empty.
// The slices may lie in the Go heap. Run panics without an array that the rule needs.
func (u *Update) Run(isa ISA, src Sources, outs []uint64) {
	src.check()
	if len(outs) > 0 {
		checkType(u.OutType)
	}
	if len(src.Addr) == 0 {
		panic("kernel: update without sources")
	}
	u.srcType = src.Type
	if C.rwk_update(C.int(isa), (*C.struct_rwk_update)(unsafe.Pointer(u)), pointer(src.Addr), pointer(src.Form),
		C.uint32_t(len(src.Addr)), pointer(outs), C.uint32_t(len(outs))) != 0 {
		panic(fmt.Sprintf("kernel: rule(%d) is not an update rule, or w or a state array that it needs is 0", u.Rule))
	}
}
