package kernel

/*
#include "kernel.h"

#cgo noescape rwk_probe
#cgo nocallback rwk_probe
*/
import "C"

import (
	"fmt"
	"runtime"
	"sync"
	"unsafe"
)

// Probe touches memory as a kernel would, without arithmetic. In one pass it reads each array of Read, reads and writes back each
// of Update through the cache, and writes zeros to each of Write past it. It is the roofline of the kernels. The arrays start on
// cache lines and are Bytes long, cut down to whole lines.
type Probe struct {
	Read, Update, Write []uint64
	Bytes               uint64
}

// Moved returns the number of bytes that the probe moves between cache and memory if the arrays do not fit in the cache.
func (p Probe) Moved() uint64 {
	return p.Bytes * uint64(len(p.Read)+2*len(p.Update)+len(p.Write))
}

// Run runs the probe on threads threads, each on its own part of every array, and returns when all have.
func (p Probe) Run(isa ISA, threads int) {
	arrays := make([]uint64, 0, len(p.Read)+len(p.Update)+len(p.Write))
	arrays = append(append(append(arrays, p.Read...), p.Update...), p.Write...)
	for _, a := range arrays {
		if a%lineBytes != 0 {
			panic(fmt.Sprintf("kernel: probe of %#x, which is not on a cache line", a))
		}
	}
	split(threads, p.Bytes/lineBytes, func(from, to uint64) {
		part := make([]uint64, len(arrays))
		for i, a := range arrays {
			part[i] = a + from*lineBytes
		}
		c := C.struct_rwk_probe{
			bytes: C.uint64_t((to - from) * lineBytes),
			nread: C.uint32_t(len(p.Read)), nupdate: C.uint32_t(len(p.Update)), nwrite: C.uint32_t(len(p.Write)),
		}
		C.rwk_probe(C.int(isa), &c, (*C.uint64_t)(unsafe.Pointer(unsafe.SliceData(part))))
	})
}

const lineBytes = 64

// split calls do on threads operating-system threads at once, each with its share [from, to) of n items, and waits for all of them.
func split(threads int, n uint64, do func(from, to uint64)) {
	var wg sync.WaitGroup
	for t := range uint64(threads) {
		wg.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			do(n*t/uint64(threads), n*(t+1)/uint64(threads))
		})
	}
	wg.Wait()
}
