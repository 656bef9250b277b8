package verbstest

import (
	"syscall"
	"testing"
	"unsafe"

	"github.com/rackweave/rackweave/verbs"
)

// Ends returns what opens two devices of a provider.
func Ends(provider, device, options string) func(*testing.T) (a, b *verbs.Device) {
	return func(t *testing.T) (a, b *verbs.Device) {
		t.Helper()
		a, err := verbs.Open(provider, device, options)
		if err != nil {
			t.Fatal(err)
		}
		b, err = verbs.Open(provider, device, options)
		if err != nil {
			t.Fatal(err)
		}
		return a, b
	}
}

// Private returns ordinary memory outside Go's heap, freed when the test ends.
func Private(t testing.TB, bytes int) Buffer {
	t.Helper()
	return Mapped(t, -1, bytes, syscall.MAP_PRIVATE|syscall.MAP_ANONYMOUS)
}

// Mapped maps memory with the flags of mmap(2), until the test ends.
func Mapped(t testing.TB, fd, bytes, flags int) Buffer {
	t.Helper()
	b, err := syscall.Mmap(fd, 0, bytes, syscall.PROT_READ|syscall.PROT_WRITE, flags)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { syscall.Munmap(b) })
	return Buffer{Addr: unsafe.Pointer(unsafe.SliceData(b)), Len: bytes, FD: fd}
}
