package verbs_test

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rackweave/rackweave/verbs"
	"github.com/rackweave/rackweave/verbs/verbstest"
)

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
	return verbstest.Mapped(t, fd, bytes, unix.MAP_SHARED)
}

func TestSHM(t *testing.T) {
	verbstest.Run(t, verbstest.Provider{
		Name: verbs.ProviderSHM, Open: verbstest.Ends(verbs.ProviderSHM, "", ""), Memory: memfd,
	})
}

func TestTCP(t *testing.T) {
	verbstest.Run(t, verbstest.Provider{
		Name: verbs.ProviderTCP, Open: verbstest.Ends(verbs.ProviderTCP, "", ""), Memory: verbstest.Private,
	})
}

func TestTCPEncrypted(t *testing.T) {
	d, err := verbs.Open(verbs.ProviderTCP, "", "encrypt=yes")
	if errors.Is(err, syscall.EPROTONOSUPPORT) {
		t.Skip(err)
	} else if err != nil {
		t.Fatal(err)
	}
	d.Close()
	verbstest.Run(t, verbstest.Provider{
		Name: verbs.ProviderTCP, Open: verbstest.Ends(verbs.ProviderTCP, "", "encrypt=yes"), Memory: verbstest.Private,
	})
}

func TestIBV(t *testing.T) {
	verbstest.Run(t, verbstest.Provider{
		Name: verbs.ProviderIBV, Open: verbstest.Ends(verbs.ProviderIBV, rdmaDevice(t), ""), Memory: verbstest.Private, Link: softLink(t),
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
