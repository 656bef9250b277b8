package numa

import (
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// pool is a size of huge pages that the kernel keeps in pools.
type pool struct {
	size  int64
	flags int
}

var pools = []pool{
	{1 << 30, unix.MFD_HUGETLB | unix.MFD_HUGE_1GB},
	{2 << 20, unix.MFD_HUGETLB | unix.MFD_HUGE_2MB},
}

func roundUp(n, to int64) int64 { return (n + to - 1) / to * to }

// fromPool takes huge pages from their pool, all of them or none. It makes the pages, because mmap alone reserves them in the pool
// of the whole machine, and a page missing on the bound node would be a SIGBUS later.
func (a *Arena) fromPool(p pool) error {
	if err := a.open(p.size, p.flags); err != nil {
		return err
	}
	if err := unix.Madvise(a.pages, unix.MADV_POPULATE_WRITE); err != nil {
		return err
	}
	return a.verify(p.size)
}

// fromShmem takes ordinary memory, in transparent huge pages where they are wanted and possible.
func (a *Arena) fromShmem(tr tree) error {
	c, page := a.config, int64(os.Getpagesize())
	huge, _ := tr.number("sys/kernel/mm/transparent_hugepage/hpage_pmd_size")
	want := !c.Lazy && huge > 0 && c.Bytes >= huge
	if want {
		page = huge
	}
	if free, bound := tr.available(c.Node); roundUp(c.Bytes, page) > free {
		on := ""
		if c.Node != AnyNode {
			on = fmt.Sprintf(" on node %d", c.Node)
		}
		return fmt.Errorf("%w: %s available%s (%s)", ErrNoMemory, FormatBytes(free), on, bound)
	}
	if err := a.open(page, 0); err != nil || c.Lazy {
		return err
	}
	if want {
		a.collapse(int(huge))
	}
	if err := populate(a.pages); err != nil {
		return fmt.Errorf("%w: making its pages: %w", ErrNoMemory, err)
	}
	return a.verify(page)
}

// collapse asks for transparent huge pages. Touching one byte of each and collapsing (madvise(2), MADV_COLLAPSE, kernel 6.1) makes
// a huge page on the node of the byte, whatever the setting in /sys/kernel/mm/transparent_hugepage, without the small ones first.
// Older kernels obey shmem_enabled. A failure leaves small pages, which serve too.
func (a *Arena) collapse(huge int) {
	_ = unix.Madvise(a.pages, unix.MADV_HUGEPAGE)
	for off := 0; off < len(a.pages); off += huge {
		if populate(a.pages[off:off+os.Getpagesize()]) != nil {
			return // the caller's populate hits the error again and reports it
		}
	}
	for range 4 {
		if unix.Madvise(a.pages, unix.MADV_COLLAPSE) != unix.EAGAIN {
			return
		}
	}
}

// populate makes missing pages without touching them, so a failure is an error and never a signal. Where the kernel (before 5.14)
// cannot populate, it touches them.
func populate(pages []byte) error {
	err := unix.Madvise(pages, unix.MADV_POPULATE_WRITE)
	if err != unix.EINVAL {
		return err
	}
	for off := 0; off < len(pages); off += os.Getpagesize() {
		pages[off] = 0
	}
	return nil
}

// bind takes every page of a bound arena from its node (mbind(2) with MPOL_BIND), whichever process touches it first, because the
// policy of shared memory belongs to the file. With MPOL_MF_MOVE it also moves the pages that exist.
func (a *Arena) bind(flags uintptr) error {
	if !a.bound {
		return nil
	}
	node := a.config.Node
	set := unix.NewCPUSet(node + 1) // masks of nodes are as those of CPUs
	set.Set(node)
	// The kernel takes maxnode as one more than the bits it reads.
	_, _, errno := unix.Syscall6(unix.SYS_MBIND, uintptr(a.Addr()), uintptr(len(a.pages)), unix.MPOL_BIND,
		uintptr(unsafe.Pointer(&set[0])), uintptr(len(set)*64+1), flags|unix.MPOL_MF_STRICT)
	remedy := ""
	switch errno {
	case 0:
		return nil
	case unix.EPERM:
		remedy = ": give the container the capability SYS_NICE, or ask for any node"
	case unix.EINVAL:
		remedy = ": the node has no memory, or the cpuset does not allow it"
	}
	return fmt.Errorf("bind memory to node %d: %w%s", node, errno, remedy)
}

// verify checks that the memory of a bound arena is on its node, and moves pages that a collapse put elsewhere.
func (a *Arena) verify(page int64) error {
	if !a.bound || a.strayPage(page) == nil {
		return nil
	}
	if err := a.bind(unix.MPOL_MF_MOVE); err != nil {
		return err
	}
	return a.strayPage(page)
}

// strayPage returns an error if memory is not on the arena's node. It looks at every huge page or every 2 MiB of small ones.
func (a *Arena) strayPage(page int64) error {
	for off := 0; off < len(a.bytes); off += int(max(page, 2<<20)) {
		n, err := NodeOf(uintptr(unsafe.Pointer(&a.bytes[off])))
		if err != nil {
			return err
		}
		if n != a.config.Node {
			return fmt.Errorf("page at %d is on node %d instead of %d", off, n, a.config.Node)
		}
	}
	return nil
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
