package numa

import (
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

func mustArena(t testing.TB, c ArenaConfig) *Arena {
	t.Helper()
	a, err := NewArena(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	})
	return a
}

func TestArenaIsSharedSealedMemory(t *testing.T) {
	for _, c := range []ArenaConfig{
		{Name: "one byte", Bytes: 1, Node: AnyNode},
		{Name: "odd", Bytes: 3<<20 + 12345, Node: AnyNode},
		{Name: "bound", Bytes: 8 << 20, Node: 0},
		{Name: "lazy", Bytes: 64 << 20, Node: 0, Lazy: true},
	} {
		t.Run(c.Name, func(t *testing.T) {
			a := mustArena(t, c)
			b := a.Bytes()
			if len(b) != int(c.Bytes) || a.Len() != int(c.Bytes) || a.Addr() != unsafe.Pointer(&b[0]) {
				t.Fatalf("slice of %d bytes at %p, Len %d, Addr %p", len(b), b, a.Len(), a.Addr())
			}
			if i := slices.IndexFunc(b, func(x byte) bool { return x != 0 }); i >= 0 {
				t.Errorf("byte %d is %d before anyone wrote", i, b[i])
			}
			b[0], b[len(b)-1] = 0xa5, 0xa5
			peer := mapPeer(t, a.FD())
			if peer[0] != 0xa5 || peer[len(b)-1] != 0xa5 {
				t.Error("a second mapping of the descriptor shows other bytes")
			}
			for _, size := range []int64{0, 1 << 30} {
				if err := unix.Ftruncate(a.FD(), size); err != unix.EPERM {
					t.Errorf("resizing the sealed file to %d: %v, want EPERM", size, err)
				}
			}
			seals, err := unix.FcntlInt(uintptr(a.FD()), unix.F_GET_SEALS, 0)
			if want := unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL; err != nil || seals&want != want {
				t.Errorf("seals %#x, %v", seals, err)
			}
			if node, err := NodeOf(uintptr(unsafe.Pointer(&b[len(b)-1]))); err != nil || c.Node != AnyNode && node != c.Node {
				t.Errorf("last byte is on node %d, %v", node, err)
			}
		})
	}
}

// mapPeer maps a whole memfd as another process would.
func mapPeer(t *testing.T, fd int) []byte {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		t.Fatal(err)
	}
	b, err := unix.Mmap(fd, 0, int(st.Size), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Munmap(b) })
	return b
}

func TestArenaPagesAreThereUnlessLazy(t *testing.T) {
	const size = 16 << 20
	eager := mustArena(t, ArenaConfig{Name: "eager", Bytes: size, Node: AnyNode})
	lazy := mustArena(t, ArenaConfig{Name: "lazy", Bytes: size, Node: AnyNode, Lazy: true})
	for _, c := range []struct {
		a    *Arena
		want int64
	}{{eager, size}, {lazy, 0}} {
		var st unix.Stat_t
		if err := unix.Fstat(c.a.FD(), &st); err != nil {
			t.Fatal(err)
		}
		if got := st.Blocks * 512; got != c.want {
			t.Errorf("%s: %d bytes of memory behind it, want %d", c.a.config.Name, got, c.want)
		}
	}
}

// MADV_COLLAPSE (kernel 6.1) gives huge pages under any sysfs setting, so on such a kernel less is a defect, or the machine's
// memory is too fragmented, in which case a second attempt fails too.
func TestArenaGetsTheLargestPagesThereAre(t *testing.T) {
	tr, err := openTree("")
	if err != nil {
		t.Fatal(err)
	}
	for _, node := range tr.memoryNodes() {
		for _, size := range []int64{2 << 20, 16<<20 - 4096, 1 << 30} {
			if size == 1<<30 && tr.freeHugePages(size, node) == 0 {
				continue // too much to ask of ordinary memory for a test
			}
			largestPages(t, tr, node, size)
		}
	}
}

// freeHugePages returns the number of free huge pages of a size in a node's pool, or in all pools if node is -1.
func (t tree) freeHugePages(size int64, node int) int64 {
	at := "sys/kernel/mm"
	if node >= 0 && t.exists("sys/devices/system/node") {
		at = fmt.Sprintf("sys/devices/system/node/node%d", node)
	}
	free, _ := t.number(fmt.Sprintf("%s/hugepages/hugepages-%dkB/free_hugepages", at, size>>10))
	return free
}

func largestPages(t *testing.T, tr tree, node int, size int64) {
	want := int64(0) // transparent huge pages
	for _, p := range slices.Backward(pools) {
		if size >= p.size && tr.freeHugePages(p.size, node) >= roundUp(size, p.size)/p.size {
			want = p.size
		}
	}
	a := mustArena(t, ArenaConfig{Name: "large", Bytes: size, Node: node})
	page, transparent := pagesOf(t, a)
	switch {
	case want > 0 && page != want:
		t.Errorf("%d bytes on node %d: pages of %d bytes, want %d", size, node, page, want)
	case want == 0 && transparent < size/2 && atLeast(t, "6.1"):
		if err := unix.Madvise(a.pages, unix.MADV_COLLAPSE); err == nil {
			t.Errorf("%d bytes on node %d: only %d in transparent huge pages", size, node, transparent)
		} else {
			t.Logf("MADV_COLLAPSE: %v", err)
		}
	}
	for off := 0; off < a.Len(); off += 1 << 20 {
		if n, err := NodeOf(uintptr(unsafe.Pointer(&a.Bytes()[off]))); err != nil || n != node {
			t.Fatalf("byte %d is on node %d, %v; want node %d", off, n, err, node)
		}
	}
	if err := a.Close(); err != nil {
		t.Error(err)
	}
}

// pagesOf returns the size of an arena's pages, and the number of its bytes in transparent huge pages (smaps in proc(5)).
func pagesOf(t *testing.T, a *Arena) (page, transparent int64) {
	t.Helper()
	text, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		t.Fatal(err)
	}
	_, own, _ := strings.Cut(string(text), fmt.Sprintf("\n%x-", uintptr(a.Addr())))
	for _, field := range []struct {
		name string
		to   *int64
	}{{"KernelPageSize:", &page}, {"ShmemPmdMapped:", &transparent}} {
		_, rest, _ := strings.Cut(own, field.name)
		if _, err := fmt.Sscanf(rest, "%d kB", field.to); err != nil {
			t.Fatalf("%s of the arena in smaps: %v", field.name, err)
		}
		*field.to <<= 10
	}
	return page, transparent
}

func atLeast(t *testing.T, version string) bool {
	t.Helper()
	top, err := Discover("")
	if err != nil {
		t.Fatal(err)
	}
	return compareNatural(top.Kernel, version) >= 0
}

func TestArenaRefusesWhatCannotBe(t *testing.T) {
	tr, err := openTree("")
	if err != nil {
		t.Fatal(err)
	}
	free, _ := tr.available(AnyNode)
	for _, c := range []struct {
		what   string
		config ArenaConfig
		want   string
		noMem  bool
	}{
		{"no bytes", ArenaConfig{Name: "slots", Node: AnyNode}, `arena "slots" of 0 B: size 0: use at least 1 byte`, false},
		{"negative size", ArenaConfig{Bytes: -5, Node: AnyNode}, "size -5", false},
		{"beyond the machine", ArenaConfig{Name: "slots", Bytes: math.MaxInt64, Node: AnyNode}, "the machine has", true},
		{"beyond what is free", ArenaConfig{Bytes: free + 1<<30, Node: AnyNode}, "", true},
		{"no such node", ArenaConfig{Bytes: 1, Node: 4711}, "node 4711: the nodes with memory are 0", false},
		{"negative node", ArenaConfig{Bytes: 1, Node: -2}, "node -2", false},
		{"long name", ArenaConfig{Name: strings.Repeat("x", 201), Bytes: 1}, "name of 201 bytes", false},
	} {
		t.Run(c.what, func(t *testing.T) {
			a, err := NewArena(c.config)
			if err == nil {
				a.Close()
				t.Fatal("no error")
			}
			if !strings.Contains(err.Error(), c.want) || errors.Is(err, ErrNoMemory) != c.noMem {
				t.Errorf("error %q (not enough memory: %v), want %q", err, errors.Is(err, ErrNoMemory), c.want)
			}
		})
	}
}

func TestArenaLeavesNothingBehind(t *testing.T) {
	open := openFiles(t)
	maps := arenaMappings(t)
	for range 3 {
		for _, c := range []ArenaConfig{
			{Name: "leak", Bytes: 5 << 20, Node: AnyNode},
			{Name: "leak", Bytes: 5 << 20, Node: 0, Lazy: true},
			{Name: "leak", Bytes: math.MaxInt64, Node: AnyNode},
		} {
			a, err := NewArena(c)
			if err != nil {
				continue
			}
			for range 2 {
				if err := a.Close(); err != nil {
					t.Error(err)
				}
			}
			if a.Addr() != nil || a.Len() != 0 || len(a.Bytes()) != 0 || a.FD() != -1 {
				t.Errorf("closed arena still has %d bytes at %p, descriptor %d", a.Len(), a.Addr(), a.FD())
			}
		}
	}
	for _, f := range openFiles(t) {
		if !slices.Contains(open, f) {
			t.Errorf("descriptor %s is open, which it was not before", f)
		}
	}
	if now := arenaMappings(t); now != maps {
		t.Errorf("%d mappings of arenas before, %d now", maps, now)
	}
}

// openFiles lists what this process's descriptors are open on, without the runtime's own pollers, which come when first
// needed.
func openFiles(t *testing.T) []string {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	var open []string
	for _, e := range entries {
		target, err := os.Readlink("/proc/self/fd/" + e.Name())
		if err == nil && !strings.HasPrefix(target, "anon_inode:") {
			open = append(open, e.Name()+" "+target)
		}
	}
	return open
}

func arenaMappings(t *testing.T) int {
	t.Helper()
	text, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Count(string(text), "rackweave-leak")
}

func TestAnArenaThatGetsNoHugePagesLeavesOthersMemoryAlone(t *testing.T) {
	// Where the pools are empty, every arena of this size first tries to map huge pages, and fails. Memory that other threads
	// map at that moment must survive it: touching what is gone ends the process.
	done := make(chan struct{})
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			var kept [][]byte
			for ended := false; !ended; {
				select {
				case <-done:
					ended = true
				default:
				}
				b, err := unix.Mmap(-1, 0, 64<<10, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
				if err != nil {
					t.Error(err)
					return
				}
				kept = append(kept, b)
				if !ended && len(kept) < 200 {
					continue
				}
				for _, b := range kept {
					b[0] = 1
					unix.Munmap(b)
				}
				kept = kept[:0]
			}
		})
	}
	for range 100 {
		mustArena(t, ArenaConfig{Name: "test", Bytes: 2 << 20, Node: AnyNode}).Close()
	}
	close(done)
	wg.Wait()
}

func TestAnArenaWithoutADescriptorToSpareSaysSo(t *testing.T) {
	var old unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &old); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 0, Max: old.Max}); err != nil {
		t.Fatal(err)
	}
	a, err := NewArena(ArenaConfig{Name: "slots", Bytes: 1 << 20, Node: AnyNode})
	if restore := unix.Setrlimit(unix.RLIMIT_NOFILE, &old); restore != nil {
		t.Fatal(restore)
	}
	if err == nil {
		a.Close()
	}
	if !errors.Is(err, unix.EMFILE) {
		t.Errorf("error %v, want %v", err, unix.EMFILE)
	}
}

func TestNobodyWritesToAPrivateArenaByItsDescriptor(t *testing.T) {
	a, err := NewArena(ArenaConfig{Name: "private", Bytes: 1 << 20, Node: AnyNode, Private: true})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	a.Bytes()[0] = 1
	if _, err := unix.Mmap(a.FD(), 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != unix.EPERM {
		t.Errorf("a writable mapping: %v", err)
	}
	if err := unix.Fallocate(a.FD(), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, 4096); err != unix.EPERM {
		t.Errorf("punching a hole: %v", err)
	}
	again, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", a.FD()), unix.O_RDWR, 0)
	if err == nil {
		defer unix.Close(again)
		if _, err := unix.Pwrite(again, []byte{2}, 0); err != unix.EPERM {
			t.Errorf("writing to the file, opened anew: %v", err)
		}
	}
	view, err := unix.Mmap(a.FD(), 0, 4096, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(view)
	if a.Bytes()[0] = 3; view[0] != 3 {
		t.Error("what the owner writes is not seen")
	}
}
