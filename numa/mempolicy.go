package numa

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// bind takes every page of a mapping from one node (mbind(2) with MPOL_BIND), whichever process touches it first, because the
// policy of shared memory belongs to the file. With move it also moves the pages that exist.
func bind(addr unsafe.Pointer, size uintptr, node int, move bool) error {
	const wordBits = 64
	mask := make([]uint64, node/wordBits+1)
	mask[node/wordBits] = 1 << (node % wordBits)
	flags := uintptr(unix.MPOL_MF_STRICT)
	if move {
		flags |= unix.MPOL_MF_MOVE
	}
	// The kernel takes maxnode as one more than the bits it reads.
	_, _, errno := unix.Syscall6(unix.SYS_MBIND, uintptr(addr), size, unix.MPOL_BIND,
		uintptr(unsafe.Pointer(&mask[0])), uintptr(len(mask)*wordBits+1), flags)
	switch errno {
	case 0:
		return nil
	case unix.EPERM:
		return fmt.Errorf("bind memory to node %d: %w: give the container the capability SYS_NICE, or ask for any node", node, errno)
	case unix.EINVAL:
		return fmt.Errorf("bind memory to node %d: %w: the node has no memory, or the cpuset does not allow it", node, errno)
	}
	return fmt.Errorf("bind memory to node %d: %w", node, errno)
}

// NodeOf returns the node of the page at an address of this process (get_mempolicy(2) with MPOL_F_NODE|MPOL_F_ADDR). The call makes
// a page that does not exist yet.
func NodeOf(addr uintptr) (int, error) {
	var node int32
	_, _, errno := unix.Syscall6(unix.SYS_GET_MEMPOLICY, uintptr(unsafe.Pointer(&node)), 0, 0, addr, unix.MPOL_F_NODE|unix.MPOL_F_ADDR,
		0)
	if errno != 0 {
		return 0, fmt.Errorf("get node of page: %w", errno)
	}
	return int(node), nil
}
