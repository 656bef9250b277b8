package verbs_test

import (
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/rackweave/rackweave/cgo/fabric"
	"github.com/rackweave/rackweave/verbs"
	"github.com/rackweave/rackweave/verbs/verbstest"
)

const anonymous = unix.MAP_PRIVATE | unix.MAP_ANONYMOUS

// memfd is memory that a provider can share: sealed so that it cannot shrink under whoever maps it.
func memfd(t testing.TB, bytes int) verbstest.Buffer {
	t.Helper()
	fd, err := unix.MemfdCreate("verbstest", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	if err := unix.Ftruncate(fd, int64(bytes)); err != nil {
		t.Fatal(err)
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW); err != nil {
		t.Fatal(err)
	}
	return mapped(t, fd, bytes, unix.MAP_SHARED)
}

// private is ordinary memory outside Go's heap.
func private(t *testing.T, bytes int) verbstest.Buffer {
	return mapped(t, -1, bytes, anonymous)
}

func mapped(t testing.TB, fd, bytes, flags int) verbstest.Buffer {
	t.Helper()
	b, err := unix.Mmap(fd, 0, bytes, unix.PROT_READ|unix.PROT_WRITE, flags)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Munmap(b) })
	return verbstest.Buffer{Addr: unsafe.Pointer(unsafe.SliceData(b)), Len: bytes, FD: fd}
}

// ends opens two devices of a provider.
func ends(provider, device, options string) func(*testing.T) (a, b *verbs.Device) {
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

func TestSim(t *testing.T) {
	for _, c := range []struct {
		name    string
		order   fabric.SimOrder
		options string
	}{
		{"in random order, by reference, mapped", fabric.SimRandom, ",by_reference=1,maps=1"},
		{"by time, copying at post, mapped", fabric.SimByTime, ",copies_at_post=1,maps=1"},
		{"by time, with links", fabric.SimByTime, ",link=1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var world *fabric.Sim
			var link func(*testing.T, *verbs.Device, bool)
			if strings.Contains(c.options, "link=1") {
				link = func(_ *testing.T, d *verbs.Device, up bool) { fabric.LinkSim(fabric.Device(d.Handle()), up) }
			}
			verbstest.Run(t, verbstest.Provider{
				Name: verbs.ProviderSim,
				Link: link,
				Open: func(t *testing.T) (a, b *verbs.Device) {
					var err error
					if world, err = fabric.NewSim(1); err != nil {
						t.Fatal(err)
					}
					world.SetOrder(c.order)
					t.Cleanup(world.Close)
					return ends(verbs.ProviderSim, "", world.Options()+c.options)(t)
				},
				Memory: private,
				Drive:  func() { world.Step() },
				Now:    func() time.Duration { return world.Now() },
			})
		})
	}
}

func TestSimOnTheWallClock(t *testing.T) {
	verbstest.Run(t, verbstest.Provider{Name: verbs.ProviderSim, Open: ends(verbs.ProviderSim, "", ""), Memory: private})
}

func TestSHM(t *testing.T) {
	verbstest.Run(t, verbstest.Provider{
		Name: verbs.ProviderSHM, Open: ends(verbs.ProviderSHM, "", ""),
		Memory: func(t *testing.T, bytes int) verbstest.Buffer { return memfd(t, bytes) },
	})
}

func TestTCP(t *testing.T) {
	verbstest.Run(t, verbstest.Provider{Name: verbs.ProviderTCP, Open: ends(verbs.ProviderTCP, "", ""), Memory: private})
}

func TestTCPEncrypted(t *testing.T) {
	verbstest.Run(t, verbstest.Provider{Name: verbs.ProviderTCP, Open: ends(verbs.ProviderTCP, "", "encrypt=yes"), Memory: private})
}

func TestIBV(t *testing.T) {
	verbstest.Run(t, verbstest.Provider{
		Name: verbs.ProviderIBV, Open: ends(verbs.ProviderIBV, rdmaDevice(t), ""), Memory: private, Link: softLink(t),
		// Soft-RoCE calls a key it does not find an operation error, and later kernels flush the request.
		LocalKeyErrors: []verbs.Status{verbs.WCLocQPOpErr, verbs.WCFlushErr},
	})
}

// softLink plays with the interface below a soft-RoCE device; the links of hardware are left alone.
func softLink(t *testing.T) func(*testing.T, *verbs.Device, bool) {
	netdev, err := os.ReadFile("/sys/class/infiniband/" + rdmaDevice(t) + "/parent")
	if err != nil {
		return nil
	}
	return func(t *testing.T, _ *verbs.Device, up bool) {
		state := "down"
		if up {
			state = "up"
		}
		if out, err := exec.Command("ip", "link", "set", strings.TrimSpace(string(netdev)), state).CombinedOutput(); err != nil {
			t.Fatalf("take the link %s: %v: %s", state, err, out)
		}
	}
}
