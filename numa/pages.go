package numa

import (
	"errors"
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
func (a *Arena) fromPool(tr tree, p pool) (err error) {
	defer func() {
		if err != nil {
			err = errors.Join(err, a.undo())
		}
	}()
	if err := a.open(roundUp(int64(a.len), p.size), uintptr(p.size), p.flags); err != nil {
		return err
	}
	if err := a.place(tr); err != nil {
		return err
	}
	if err := a.span.advise(unix.MADV_POPULATE_WRITE); err != nil {
		return err
	}
	return a.verify(tr, p.size)
}

func onNode(node int) string {
	if node == AnyNode {
		return ""
	}
	return fmt.Sprintf(" on node %d", node)
}

// undo releases the resources of an arena that could not be made.
func (a *Arena) undo() error {
	err := a.span.unmap()
	if a.fd >= 0 {
		err = errors.Join(err, unix.Close(a.fd))
	}
	a.fd = -1
	return err
}

// fromShmem takes ordinary memory, in transparent huge pages where they are wanted and possible.
func (a *Arena) fromShmem(tr tree, c ArenaConfig) error {
	page := int64(os.Getpagesize())
	huge, _ := tr.number("sys/kernel/mm/transparent_hugepage/hpage_pmd_size")
	want := !c.Lazy && huge > 0 && c.Bytes >= huge
	if want {
		page = huge
	}
	size := roundUp(c.Bytes, page)
	if free, bound := tr.available(c.Node); size > free {
		return fmt.Errorf("%w: %s available%s (%s)", ErrNoMemory, FormatBytes(free), onNode(c.Node), bound)
	}
	if err := a.open(size, uintptr(page), 0); err != nil {
		return err
	}
	if err := a.place(tr); err != nil || c.Lazy {
		return err
	}
	if want {
		a.collapse(huge)
	}
	if err := a.span.populate(); err != nil {
		return fmt.Errorf("%w: making its pages: %w", ErrNoMemory, err)
	}
	return a.verify(tr, page)
}

// collapse asks for transparent huge pages. Touching one byte of each and collapsing (madvise(2), MADV_COLLAPSE, kernel 6.1) makes
// a huge page on the node of the byte, whatever the setting in /sys/kernel/mm/transparent_hugepage, without the small ones first.
// Older kernels obey shmem_enabled. A failure leaves small pages, which serve too.
func (a *Arena) collapse(huge int64) {
	_ = a.span.advise(unix.MADV_HUGEPAGE)
	if a.populateEvery(huge) != nil {
		return // populate hits the error again and reports it
	}
	err := a.span.advise(unix.MADV_COLLAPSE)
	for try := 0; err == unix.EAGAIN && try < 3; try++ {
		err = a.span.advise(unix.MADV_COLLAPSE)
	}
}

// populateEvery makes the small page at every multiple of step. It does not touch the page, so a failure is an error and never a
// signal.
func (a *Arena) populateEvery(step int64) error {
	for off := int64(0); off < int64(a.span.used); off += step {
		page := mapping{addr: unsafe.Add(a.span.addr, off), used: uintptr(os.Getpagesize())}
		if err := page.populate(); err != nil {
			return err
		}
	}
	return nil
}

// populate makes a mapping's missing pages. Where the kernel (before 5.14) cannot populate, it touches them.
func (m *mapping) populate() error {
	err := m.advise(unix.MADV_POPULATE_WRITE)
	if err != unix.EINVAL {
		return err
	}
	b := unsafe.Slice((*byte)(m.addr), m.used)
	for off := 0; off < len(b); off += os.Getpagesize() {
		b[off] = 0
	}
	return nil
}

// place binds the arena to its node, before anything touches it. On a machine with one node it does nothing.
func (a *Arena) place(tr tree) error {
	if a.node == AnyNode || len(tr.memoryNodes()) == 1 {
		return nil
	}
	return bind(a.span.addr, a.span.used, a.node, false)
}

// verify checks that the memory is on the node, at every huge page or every 2 MiB of small ones, and moves pages that a collapse
// put elsewhere.
func (a *Arena) verify(tr tree, page int64) error {
	if a.node == AnyNode || len(tr.memoryNodes()) == 1 {
		return nil
	}
	if err := a.strayPage(page); !errors.Is(err, errStray) {
		return err
	}
	if err := bind(a.span.addr, a.span.used, a.node, true); err != nil {
		return err
	}
	return a.strayPage(page)
}

var errStray = errors.New("page on another node")

// strayPage returns an error if a page is not on the arena's node.
func (a *Arena) strayPage(page int64) error {
	for off := 0; off < a.len; off += int(max(page, 2<<20)) {
		n, err := a.NodeOf(off)
		if err != nil {
			return err
		}
		if n != a.node {
			return fmt.Errorf("%w: the one at %d is on node %d instead of %d", errStray, off, n, a.node)
		}
	}
	return nil
}
