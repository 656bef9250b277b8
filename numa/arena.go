package numa

import (
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// AnyNode lets the kernel choose the node of an arena's memory.
const AnyNode = -1

// ErrNoMemory is wrapped by errors of [NewArena] for lack of memory.
var ErrNoMemory = errors.New("not enough memory")

// ArenaConfig describes an arena.
type ArenaConfig struct {
	Name  string // for people, in errors and in /proc/PID/maps; at most 200 bytes
	Bytes int64
	Node  int // NUMA node to bind to, or [AnyNode]
	// Lazy makes each page when it is first touched. The pages are small, and memory may run out at that moment.
	Lazy bool
	// Private prevents processes that receive the descriptor from writing to the arena or taking its pages away. Kernels before 5.1
	// cannot do that.
	Private bool
}

// Arena is memory that is shared by descriptor, bound to a NUMA node, in the largest pages available: 1 GiB or 2 MiB from a pool,
// transparent huge pages, small ones. It is a sealed memfd. Its size never changes, so a process that maps it cannot be made to
// fault. The file is Len rounded up to whole pages. A peer maps all of it at a multiple of the page size, and of 2 MiB where it may
// have transparent huge pages, because other addresses would get small pages. An inaccessible page follows the mapping.
type Arena struct {
	name    string
	node    int
	private bool
	fd      int
	span    mapping
	len     int
}

// mapping is a reserved range of addresses with the aligned part of it that is in use.
type mapping struct {
	base unsafe.Pointer
	size uintptr
	addr unsafe.Pointer
	used uintptr
}

// busy has a slot for each arena that is being made or unmapped. The kernel mostly serves one at a time, and Go keeps a thread for
// ever for each call that ever waited there, so more at a time cost threads and gain nothing.
var busy = make(chan struct{}, 8)

// NewArena makes an arena. Unless it is lazy, its pages exist on its node when NewArena returns, so memory cannot run out later.
// Errors name the size and the available memory. Errors for lack of memory wrap [ErrNoMemory].
func NewArena(c ArenaConfig) (*Arena, error) {
	busy <- struct{}{}
	defer func() { <-busy }()
	a, err := newArena(c)
	if err != nil {
		return nil, fmt.Errorf("arena %q of %s: %w", c.Name, FormatBytes(c.Bytes), err)
	}
	return a, nil
}

func newArena(c ArenaConfig) (*Arena, error) {
	switch {
	case c.Bytes <= 0:
		return nil, fmt.Errorf("size %d: use at least 1 byte", c.Bytes)
	case len(c.Name) > 200:
		return nil, fmt.Errorf("name of %d bytes: use at most 200", len(c.Name))
	}
	tr := tree{"/"}
	// The total is 0 if it cannot be read, for example because no descriptor is left. Later calls report the reason.
	if total := tr.kib("proc/meminfo", "MemTotal"); total > 0 && c.Bytes > total {
		return nil, fmt.Errorf("%w: the machine has %s", ErrNoMemory, FormatBytes(total))
	}
	if nodes := tr.memoryNodes(); c.Node != AnyNode && !nodes.Has(c.Node) {
		return nil, fmt.Errorf("node %d: the nodes with memory are %s, and %d is any", c.Node, nodes, AnyNode)
	}
	a := &Arena{name: c.Name, node: c.Node, private: c.Private, fd: -1, len: int(c.Bytes)}
	for _, pool := range pools {
		if !c.Lazy && c.Bytes >= pool.size && a.fromPool(tr, pool) == nil {
			return a, nil
		}
	}
	if err := a.fromShmem(tr, c); err != nil {
		return nil, errors.Join(err, a.undo())
	}
	return a, nil
}

// Addr returns the address of the arena's first byte, or nil after Close.
func (a *Arena) Addr() unsafe.Pointer { return a.span.addr }

// Len returns the arena's size in bytes, as configured.
func (a *Arena) Len() int { return a.len }

// Bytes returns the arena as a slice. It must not be used after Close.
func (a *Arena) Bytes() []byte { return unsafe.Slice((*byte)(a.span.addr), a.len) }

// FD returns the memfd, which the arena owns. Offset 0 of the file is the first byte.
func (a *Arena) FD() int { return a.fd }

// Name returns the arena's name.
func (a *Arena) Name() string { return a.name }

// Node returns the node to which the arena is bound, or [AnyNode].
func (a *Arena) Node() int { return a.node }

// NodeOf returns the node that holds the byte at an offset, according to the kernel. In a lazy arena the call makes the page.
func (a *Arena) NodeOf(offset int) (int, error) {
	if offset < 0 || offset >= a.len {
		panic(fmt.Sprintf("arena %q: offset %d outside [0, %d)", a.name, offset, a.len))
	}
	return NodeOf(uintptr(unsafe.Add(a.span.addr, offset)))
}

// Close unmaps the arena and closes its descriptor. Peers that mapped it keep the memory until they unmap it.
func (a *Arena) Close() error {
	busy <- struct{}{}
	err := a.undo()
	<-busy
	a.len = 0
	if err != nil {
		return fmt.Errorf("close arena %q: %w", a.name, err)
	}
	return nil
}

// open makes the sealed memfd of a size and maps it at a multiple of align.
func (a *Arena) open(size int64, align uintptr, flags int) error {
	fd, err := memfd("rackweave-"+a.name, flags)
	if err != nil {
		return err
	}
	a.fd = fd
	if err := unix.Ftruncate(fd, size); err != nil {
		return os.NewSyscallError("ftruncate", err)
	}
	if err := a.span.mapFile(fd, uintptr(size), align); err != nil {
		return err
	}
	return os.NewSyscallError("fcntl F_ADD_SEALS", seal(fd, a.private))
}

// seal fixes the file's size, because a peer refuses memory that could shrink under it. A private file can be written only through
// its existing mapping.
func seal(fd int, private bool) error {
	const size = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL
	if private {
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, size|unix.F_SEAL_FUTURE_WRITE); err != unix.EINVAL {
			return err
		}
	}
	_, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, size)
	return err
}

// memfd makes a memfd that can be sealed and, on kernels since 6.3, cannot be executed.
func memfd(name string, flags int) (int, error) {
	flags |= unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING
	fd, err := unix.MemfdCreate(name, flags|unix.MFD_NOEXEC_SEAL)
	if err == unix.EINVAL {
		fd, err = unix.MemfdCreate(name, flags)
	}
	return fd, os.NewSyscallError("memfd_create", err)
}

// mapFile maps a whole file. The reserved range is larger by align and one page, both without memory behind them.
func (m *mapping) mapFile(fd int, size, align uintptr) error {
	reserve := size + align + uintptr(os.Getpagesize())
	base, err := unix.MmapPtr(-1, 0, nil, reserve, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		return os.NewSyscallError("mmap", err)
	}
	m.base, m.size = base, reserve
	// A mapping that fails on top of another leaves a hole, which another thread's memory may fill before the hole is unmapped. So
	// mapFile first maps at another address. Errors occur there, and the huge pages that it reserves stay with the file.
	trial, err := unix.MmapPtr(fd, 0, nil, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return os.NewSyscallError("mmap", err)
	}
	defer unix.MunmapPtr(trial, size)
	at := unsafe.Add(base, (align-uintptr(base)%align)%align)
	if _, err = unix.MmapPtr(fd, 0, at, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_FIXED); err != nil {
		return os.NewSyscallError("mmap", err)
	}
	m.addr, m.used = at, size
	return nil
}

func (m *mapping) unmap() error {
	if m.base == nil {
		return nil
	}
	err := unix.MunmapPtr(m.base, m.size)
	*m = mapping{}
	return os.NewSyscallError("munmap", err)
}

// advise calls madvise(2) on the mapping.
func (m *mapping) advise(advice int) error {
	_, _, errno := unix.Syscall(unix.SYS_MADVISE, uintptr(m.addr), m.used, uintptr(advice))
	if errno != 0 {
		return errno
	}
	return nil
}
