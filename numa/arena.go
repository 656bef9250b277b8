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
	config ArenaConfig
	bound  bool // to the node, on a machine with several
	fd     int
	// base is a reserved range of addresses. The arena's pages are the aligned part of it that is in use, and begin with its bytes.
	base         unsafe.Pointer
	reserved     uintptr
	pages, bytes []byte
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
	nodes := tr.memoryNodes()
	if c.Node != AnyNode && !nodes.Has(c.Node) {
		return nil, fmt.Errorf("node %d: the nodes with memory are %s, and %d is any", c.Node, nodes, AnyNode)
	}
	a := &Arena{config: c, bound: c.Node != AnyNode && len(nodes) > 1, fd: -1}
	for _, pool := range pools {
		if c.Lazy || c.Bytes < pool.size {
			continue
		}
		if a.fromPool(pool) == nil {
			return a, nil
		}
		_ = a.undo()
	}
	if err := a.fromShmem(tr); err != nil {
		return nil, errors.Join(err, a.undo())
	}
	return a, nil
}

// Addr returns the address of the arena's first byte, or nil after Close.
func (a *Arena) Addr() unsafe.Pointer { return unsafe.Pointer(unsafe.SliceData(a.bytes)) }

// Len returns the arena's size in bytes, as configured, or 0 after Close.
func (a *Arena) Len() int { return len(a.bytes) }

// Bytes returns the arena as a slice. It must not be used after Close.
func (a *Arena) Bytes() []byte { return a.bytes }

// FD returns the memfd, which the arena owns. Offset 0 of the file is the first byte.
func (a *Arena) FD() int { return a.fd }

// Close unmaps the arena and closes its descriptor. Peers that mapped it keep the memory until they unmap it.
func (a *Arena) Close() error {
	busy <- struct{}{}
	err := a.undo()
	<-busy
	if err != nil {
		return fmt.Errorf("close arena %q: %w", a.config.Name, err)
	}
	return nil
}

// open makes the sealed memfd, maps it at a multiple of the page size, and binds it to its node before anything touches it.
func (a *Arena) open(page int64, flags int) error {
	fd, err := memfd("rackweave-"+a.config.Name, flags)
	if err != nil {
		return err
	}
	a.fd = fd
	size := roundUp(a.config.Bytes, page)
	if err := unix.Ftruncate(fd, size); err != nil {
		return os.NewSyscallError("ftruncate", err)
	}
	if err := a.mapFile(uintptr(size), uintptr(page)); err != nil {
		return os.NewSyscallError("mmap", err)
	}
	if err := seal(fd, a.config.Private); err != nil {
		return os.NewSyscallError("fcntl F_ADD_SEALS", err)
	}
	return a.bind(0)
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

// mapFile maps the whole file. The reserved range is larger by align and one page, both without memory behind them.
func (a *Arena) mapFile(size, align uintptr) error {
	reserve := size + align + uintptr(os.Getpagesize())
	base, err := unix.MmapPtr(-1, 0, nil, reserve, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		return err
	}
	a.base, a.reserved = base, reserve
	// A mapping that fails on top of another leaves a hole, which another thread's memory may fill before the hole is unmapped. So
	// mapFile first maps at another address. Errors occur there, and the huge pages that it reserves stay with the file.
	trial, err := unix.MmapPtr(a.fd, 0, nil, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return err
	}
	defer unix.MunmapPtr(trial, size)
	at := unsafe.Add(base, (align-uintptr(base)%align)%align)
	if _, err = unix.MmapPtr(a.fd, 0, at, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_FIXED); err != nil {
		return err
	}
	a.pages = unsafe.Slice((*byte)(at), size)
	a.bytes = a.pages[:a.config.Bytes:a.config.Bytes]
	return nil
}

// undo releases the arena's resources, or those of an arena that could not be made.
func (a *Arena) undo() (err error) {
	if a.base != nil {
		err = os.NewSyscallError("munmap", unix.MunmapPtr(a.base, a.reserved))
	}
	if a.fd >= 0 {
		err = errors.Join(err, unix.Close(a.fd))
	}
	a.base, a.pages, a.bytes, a.fd = nil, nil, nil, -1
	return err
}
