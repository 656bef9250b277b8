package client_test

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/rackweave/rackweave/client"
	"github.com/rackweave/rackweave/service"
	"github.com/rackweave/rackweave/verbs"
)

const hugePage = 2 << 20

// inSmallPages returns memory that begins at a huge page's border and has none, in a mapping of its own.
func inSmallPages(t *testing.T, n int) []byte {
	t.Helper()
	mem, err := unix.Mmap(-1, 0, n+2*hugePage, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Munmap(mem) })
	if err := unix.Madvise(mem, unix.MADV_NOHUGEPAGE); err != nil {
		t.Skipf("madvise(MADV_NOHUGEPAGE): %v: the kernel has no transparent huge pages", err)
	}
	for i := 0; i < len(mem); i += os.Getpagesize() {
		mem[i] = 0
	}
	if err := unix.Madvise(mem, unix.MADV_HUGEPAGE); err != nil {
		t.Fatal(err)
	}
	at := hugePage + int(-uintptr(unsafe.Pointer(&mem[0]))&(hugePage-1))
	for _, around := range [][]byte{mem[:at], mem[at+n:]} { // else the kernel counts a neighbour's huge pages, too
		if err := unix.Mprotect(around, unix.PROT_NONE); err != nil {
			t.Fatal(err)
		}
	}
	return mem[at:][:n]
}

// hugePagesUnder counts the huge pages of the mapping that an address lies in, after proc_pid_smaps(5).
func hugePagesUnder(t *testing.T, mem []byte) int {
	t.Helper()
	text, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		t.Fatal(err)
	}
	at, inside := uintptr(unsafe.Pointer(&mem[0])), false
	for line := range strings.Lines(string(text)) {
		var from, to uintptr
		var kb int
		if n, _ := fmt.Sscanf(line, "%x-%x ", &from, &to); n == 2 {
			inside = from <= at && at < to
		} else if n, _ := fmt.Sscanf(line, "AnonHugePages: %d kB", &kb); inside && n == 1 {
			return kb << 10 / hugePage
		}
	}
	t.Fatalf("no mapping holds %#x", at)
	return 0
}

// Tensors side by side in one block, some smaller than a huge page: the block is in huge pages after two exchanges, and what it
// holds is as it was.
func TestMemoryThatIsUsedAgainComesIntoHugePages(t *testing.T) {
	const size = 4 * hugePage
	probe := inSmallPages(t, hugePage)
	if err := unix.Madvise(probe, unix.MADV_COLLAPSE); err != nil {
		t.Skipf("madvise(MADV_COLLAPSE): %v", err)
	}
	s := serve(t, service.Options{Providers: []string{verbs.ProviderSHM}})
	w := joinAll(t, s, client.Config{Job: "pages", Workers: 1, Provider: verbs.ProviderSHM})[0]
	var tensors []client.Tensor
	for i, elems := range []uint64{100_000, 300_000, 1_000_000, size/4 - 1_400_000} {
		tensors = append(tensors, client.Tensor{Name: fmt.Sprintf("t%d", i), Shape: []uint64{elems}})
	}
	if err := w.Register(bounded(t), tensors); err != nil {
		t.Fatal(err)
	}
	var src, dst []byte
	exchange := func() (huge map[string]int) {
		at := 0
		for i, tensor := range tensors {
			n := int(tensor.Shape[0]) * 4
			h, err := w.PushPull(i, src[at:at+n], dst[at:at+n], 0)
			if err == nil {
				err = h.Wait(bounded(t))
			}
			if err != nil {
				t.Fatal(err)
			}
			at += n
		}
		return map[string]int{"gradients": hugePagesUnder(t, src), "results": hugePagesUnder(t, dst)}
	}
	small := false
	for attempt := 0; !small && attempt < 5; attempt++ { // the kernel's khugepaged may come first
		src, dst = inSmallPages(t, size), inSmallPages(t, size)
		for i, x := range client.Floats(src) {
			client.Floats(src)[i] = x + float32(i)
		}
		huge := exchange()
		small = huge["gradients"]+huge["results"] == 0
	}
	if !small {
		t.Error("memory that came for the first time is in huge pages")
	}
	for name, got := range exchange() {
		if want := size / hugePage; got != want {
			t.Errorf("after two exchanges the %s have %d huge pages, want %d", name, got, want)
		}
	}
	for i, x := range client.Floats(dst) {
		if x != float32(i) {
			t.Fatalf("element %d is %v, want %v", i, x, float32(i))
		}
	}
}
