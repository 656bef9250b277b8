package numatest

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// CurrentCPU returns the CPU on which the calling thread runs now. It stays true only for a pinned thread.
func CurrentCPU() int {
	var cpu uint32
	if _, _, errno := unix.RawSyscall(unix.SYS_GETCPU, uintptr(unsafe.Pointer(&cpu)), 0, 0); errno != 0 {
		panic(fmt.Sprintf("getcpu: %v", errno)) // only for an address that cannot be written
	}
	return int(cpu)
}
