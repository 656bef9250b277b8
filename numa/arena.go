package numa

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// HugePolicy says which pages an arena may have.
type HugePolicy int

const (
	// HugeAuto takes the largest pages to be had: 1 GiB, 2 MiB, transparent huge pages, small.
	HugeAuto HugePolicy = iota
	// HugeTransparent leaves the pools of huge pages to others.
	HugeTransparent
	// HugeOff is small pages.
	HugeOff
	// HugeRequire is HugeAuto, but an error instead of small pages.
	HugeRequire
)

var hugeNames = [...]string{"auto", "transparent", "off", "require"}

func (h HugePolicy) String() string { return hugeNames[h] }

// MarshalText gives the policy's name.
func (h HugePolicy) MarshalText() ([]byte, error) { return []byte(h.String()), nil }

// UnmarshalText reads a policy's name: auto, transparent, off or require.
func (h *HugePolicy) UnmarshalText(text []byte) error {
	for i, name := range hugeNames {
		if string(text) == name {
			*h = HugePolicy(i)
			return nil
		}
	}
	return fmt.Errorf("huge page policy %q: use one of %s", text, strings.Join(hugeNames[:], ", "))
}

// AnyNode leaves it to the kernel where an arena's memory is.
const AnyNode = -1

// ErrNoMemory is wrapped by errors of [NewArena] when what is asked for is more than there is.
var ErrNoMemory = errors.New("not enough memory")

// ArenaConfig describes an arena.
type ArenaConfig struct {
	Name  string // for people, in errors and in /proc/PID/maps; at most 200 bytes
	Bytes int64
	Node  int // NUMA node to bind to, or [AnyNode]
	Huge  HugePolicy
	// Lazy leaves pages to be made when first touched; they are small, and memory may then run out under whoever touches.
	Lazy bool
}

// Arena is memory that is shared by descriptor, bound to a NUMA node, in pages as large as could be had. It is a sealed
// memfd: its size can never change again, so that a process which maps it cannot
// be made to fault. The file is Len rounded up to whole pages: a peer maps all of it, at a multiple of the page size, 2 MiB
// for [PagesTHP], without which it would get small pages. An inaccessible page follows the mapping.
type Arena struct {
	// Pages is what it got: "1 GiB" or "2 MiB" from a pool, "THP" (for at least half of it), or the size of small pages.
	Pages string
	// HugeBytes is how much of it lies in huge pages.
	HugeBytes int64
	// Notes says why it did not get larger pages, and what would change that.
	Notes []string

	name string
	node int
	fd   int
	span mapping
	len  int
}

// mapping is a reserved range of addresses and the aligned part of it that is in use.
type mapping struct {
	base unsafe.Pointer
	size uintptr
	addr unsafe.Pointer
	used uintptr
}

// NewArena makes an arena. Unless it is lazy its pages exist, on its node, when NewArena returns: nothing fails later for
// want of memory. Errors name the size and what there is; those for lack of memory wrap [ErrNoMemory].
func NewArena(c ArenaConfig) (*Arena, error) {
	a, err := newArena(c)
	if err != nil {
		return nil, fmt.Errorf("arena %q of %s: %w", c.Name, FormatBytes(c.Bytes), err)
	}
	return a, nil
}

func newArena(c ArenaConfig) (*Arena, error) {
	tr, err := openTree("")
	if err != nil {
		return nil, err
	}
	switch {
	case c.Bytes <= 0:
		return nil, fmt.Errorf("size %d: use at least 1 byte", c.Bytes)
	case len(c.Name) > 200:
		return nil, fmt.Errorf("name of %d bytes: use at most 200", len(c.Name))
	case c.Huge < HugeAuto || c.Huge > HugeRequire:
		return nil, fmt.Errorf("huge page policy %d: use %s", int(c.Huge), strings.Join(hugeNames[:], ", "))
	case c.Lazy && c.Huge == HugeRequire:
		return nil, errors.New("a lazy arena has small pages: huge pages cannot be required of it")
	}
	// 0: it could not be read, as where no descriptor is left, and what comes next says why.
	if total := tr.kib("proc/meminfo", "MemTotal"); total > 0 && c.Bytes > total {
		return nil, fmt.Errorf("%w: the machine has %s", ErrNoMemory, FormatBytes(total))
	}
	if nodes := tr.memoryNodes(); c.Node != AnyNode && !nodes.Has(c.Node) {
		return nil, fmt.Errorf("node %d: the nodes with memory are %s, and %d is any", c.Node, nodes, AnyNode)
	}
	a := &Arena{name: c.Name, node: c.Node, fd: -1, len: int(c.Bytes)}
	if !c.Lazy && c.Huge != HugeOff && c.Huge != HugeTransparent {
		for _, pool := range pools {
			if c.Bytes < pool.size {
				continue
			}
			err := a.fromPool(tr, pool)
			if err == nil {
				return a, nil
			}
			a.Notes = append(a.Notes, fmt.Sprintf("no %s pages: %v", pool.name, err))
		}
	}
	if err := a.fromShmem(tr, c); err != nil {
		a.Close()
		return nil, err
	}
	return a, nil
}

// Addr is the arena's first byte; nil once closed.
func (a *Arena) Addr() unsafe.Pointer { return a.span.addr }

// Len is the arena's size: what was asked for.
func (a *Arena) Len() int { return a.len }

// Bytes is the arena as a slice. It must not be used after Close.
func (a *Arena) Bytes() []byte { return unsafe.Slice((*byte)(a.span.addr), a.len) }

// FD is the memfd; the arena owns it. Offset 0 of the file is the first byte.
func (a *Arena) FD() int { return a.fd }

// Name is the arena's name.
func (a *Arena) Name() string { return a.name }

// Node is the node the arena is bound to, or [AnyNode].
func (a *Arena) Node() int { return a.node }

// NodeOf is the node that holds the byte at an offset, as the kernel tells. On a lazy arena asking makes the page.
func (a *Arena) NodeOf(offset int) (int, error) {
	if offset < 0 || offset >= a.len {
		panic(fmt.Sprintf("arena %q: offset %d outside [0, %d)", a.name, offset, a.len))
	}
	return NodeOf(uintptr(unsafe.Add(a.span.addr, offset)))
}

// Close unmaps the arena and closes its descriptor. Peers that mapped it keep the memory until they unmap it.
func (a *Arena) Close() error {
	err := a.span.unmap()
	if a.fd >= 0 {
		err = errors.Join(err, unix.Close(a.fd))
	}
	a.fd, a.len = -1, 0
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
	// A peer refuses memory that could shrink under it.
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL); err != nil {
		return os.NewSyscallError("fcntl F_ADD_SEALS", err)
	}
	return a.span.mapFile(fd, uintptr(size), align)
}

// memfd makes a memfd that can be sealed and, where the kernel knows that (6.3), not be executed.
func memfd(name string, flags int) (int, error) {
	flags |= unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING
	fd, err := unix.MemfdCreate(name, flags|unix.MFD_NOEXEC_SEAL)
	if err == unix.EINVAL {
		fd, err = unix.MemfdCreate(name, flags)
	}
	return fd, os.NewSyscallError("memfd_create", err)
}

// mapFile maps a whole file. The range reserved is larger by align and one page, both without memory behind them.
func (m *mapping) mapFile(fd int, size, align uintptr) error {
	reserve := size + align + uintptr(os.Getpagesize())
	base, err := unix.MmapPtr(-1, 0, nil, reserve, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		return os.NewSyscallError("mmap", err)
	}
	m.base, m.size = base, reserve
	// A mapping that fails on top of another leaves a hole there, which some other thread's memory may fill before it is let go
	// of. So it is tried elsewhere first: what can fail fails there, and the huge pages it reserves stay with the file.
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

// advise is madvise(2) on the mapping.
func (m *mapping) advise(advice int) error {
	_, _, errno := unix.Syscall(unix.SYS_MADVISE, uintptr(m.addr), m.used, uintptr(advice))
	if errno != 0 {
		return errno
	}
	return nil
}
