package numa

import (
	"os"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// What the kernel's ioctl PAGEMAP_SCAN takes and gives (Documentation/admin-guide/mm/pagemap.rst, include/uapi/linux/fs.h).
const (
	pagemapScan = 0xc060_6610 // _IOWR('f', 16, struct pm_scan_arg)
	pageIsHuge  = 1 << 6
)

type pageRegion struct {
	start, end uint64
	_          uint64 // categories
}

type scanArg struct {
	size, flags                     uint64
	start, end, walkEnd             uint64
	vec                             *pageRegion
	vecLen, maxPages                uint64
	inverted, mask, anyOf, returned uint64
}

// hugeMapped returns how much of a range of this process's shared memory huge pages map.
func hugeMapped(addr, size uintptr) int64 {
	if n, err := hugeByScan(addr, size); err == nil {
		return n
	}
	return hugeByMaps(addr, size)
}

// hugeByScan is hugeMapped for kernels since 6.7. It walks that range alone.
func hugeByScan(addr, size uintptr) (int64, error) {
	f, err := os.Open("/proc/self/pagemap")
	if err != nil {
		return 0, err
	}
	defer f.Close()
	var regions [16]pageRegion
	arg := scanArg{start: uint64(addr), end: uint64(addr + size), vec: &regions[0],
		vecLen: uint64(len(regions)), mask: pageIsHuge, returned: pageIsHuge}
	arg.size = uint64(unsafe.Sizeof(arg))
	var sum int64
	for arg.start < arg.end {
		n, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), pagemapScan, uintptr(unsafe.Pointer(&arg)))
		if errno != 0 {
			return 0, errno
		}
		for _, r := range regions[:n] {
			sum += int64(r.end - r.start)
		}
		arg.start = arg.walkEnd
	}
	return sum, nil
}

// hugeByMaps is hugeMapped of shared memory for kernels before 6.7 (smaps in proc(5)). It walks all memory of the process.
func hugeByMaps(addr, size uintptr) int64 {
	text, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		return 0
	}
	var sum int64
	inside := false
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, "ShmemPmdMapped:"); ok {
			if kib, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64); inside && err == nil {
				sum += kib << 10
			}
			continue
		}
		// A mapping's first line starts with its range: "7f1c00000000-7f1c10000000 rw-s …"; the others with a capital.
		if lo, rest, ok := strings.Cut(line, "-"); ok {
			hi, _, _ := strings.Cut(rest, " ")
			first, err := strconv.ParseUint(lo, 16, 64)
			last, err2 := strconv.ParseUint(hi, 16, 64)
			if err == nil && err2 == nil {
				inside = uintptr(first) >= addr && uintptr(last) <= addr+size
			}
		}
	}
	return sum
}
