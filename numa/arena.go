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
	// HugeAuto takes the largest pages available: 1 GiB, 2 MiB, transparent huge pages, small.
	HugeAuto HugePolicy = iota
	// HugeTransparent leaves the pools of huge pages to others.
	HugeTransparent
	// HugeOff takes small pages.
	HugeOff
	// HugeRequire is HugeAuto, but fails instead of taking small pages.
	HugeRequire
)

var hugeNames = [...]string{"auto", "transparent", "off", "require"}

func (h HugePolicy) String() string { return hugeNames[h] }

// MarshalText returns the policy's name.
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

// AnyNode lets the kernel choose the node of an arena's memory.
const AnyNode = -1

// ErrNoMemory is what errors of [NewArena] wrap when there is less memory than was asked for.
var ErrNoMemory = errors.New("not enough memory")

// ArenaConfig describes an arena.
type ArenaConfig struct {
	Name  string // for people, in errors and in /proc/PID/maps; at most 200 bytes
	Bytes int64
	Node  int // NUMA node to bind to, or [AnyNode]
	Huge  HugePolicy
	// Lazy makes each page when it is first touched. The pages are small, and memory may run out at that moment.
	Lazy bool
	// Private lets nobody who is given the descriptor write to the arena or take its pages away. Kernels before 5.1 cannot do that.
	Private bool
}

// Arena is memory that is shared by descriptor, bound to a NUMA node, in the largest pages available. It is a sealed memfd: its
// size never changes, so a process that maps it cannot be made to fault. The file is Len rounded up to whole pages. A peer maps
// all of it at a multiple of the page size, 2 MiB for [PagesTHP]; elsewhere it would get small pages. An inaccessible page
// follows the mapping.
type Arena struct {
	// Pages names the pages it has: "1 GiB" or "2 MiB" from a pool, "THP" for at least half of it, or the size of small pages.
	Pages string
	// HugeBytes is how much of it lies in huge pages.
	HugeBytes int64
	// Notes tell why it has no larger pages, and what would change that.
	Notes []string

	name    string
	node    int
	private bool
	fd      int
	span    mapping
	len     int
}

// mapping is a reserved range of addresses and the aligned part of it that is in use.
type mapping struct {
	base unsafe.Pointer
	size uintptr
	addr unsafe.Pointer
	used uintptr
}

// busy has a place for each arena that is being made or unmapped. The kernel does one after the other for the most part, and Go
// keeps a thread for ever for each call that ever waited there, so more at a time cost threads and gain nothing.
var busy = make(chan struct{}, 8)

// NewArena makes an arena. Unless it is lazy, its pages exist on its node when NewArena returns, so memory cannot run out later.
// Errors name the size and what is available. Those for lack of memory wrap [ErrNoMemory].
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
	a := &Arena{name: c.Name, node: c.Node, private: c.Private, fd: -1, len: int(c.Bytes)}
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
		return nil, errors.Join(err, a.undo())
	}
	return a, nil
}

// Addr returns the address of the arena's first byte, or nil after Close.
func (a *Arena) Addr() unsafe.Pointer { return a.span.addr }

// Len returns the arena's size in bytes, as asked for.
func (a *Arena) Len() int { return a.len }

// Bytes returns the arena as a slice. It must not be used after Close.
func (a *Arena) Bytes() []byte { return unsafe.Slice((*byte)(a.span.addr), a.len) }

// FD returns the memfd, which the arena owns. Offset 0 of the file is the first byte.
func (a *Arena) FD() int { return a.fd }

// Name returns the arena's name.
func (a *Arena) Name() string { return a.name }

// Node returns the node that the arena is bound to, or [AnyNode].
func (a *Arena) Node() int { return a.node }

// NodeOf returns the node that holds the byte at an offset, as the kernel tells. In a lazy arena the question makes the page.
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

// seal keeps the file's size: a peer refuses memory that could shrink under it. A private file can be written only through the
// mapping that is there already.
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
	// A mapping that fails on top of another leaves a hole, which another thread's memory may fill before the hole is unmapped.
	// So it is tried elsewhere first: what can fail fails there, and the huge pages that it reserves stay with the file.
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
