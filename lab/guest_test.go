package lab

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestSingleGuest(t *testing.T) {
	cfgs, err := Single.Configs()
	if err != nil {
		t.Fatal(err)
	}
	cfgs[0].MemoryMB, cfgs[0].Deadline = 3072, 25*time.Minute // what ResNet-50 takes
	g := bootAll(t, cfgs...).Guests[0]

	t.Run("has an active soft-RoCE device with an IPv4 GID", func(t *testing.T) {
		out := run(t, g, "ibv_devinfo -v -d rxe0")
		for _, want := range []string{"PORT_ACTIVE", "active_mtu:\t\t4096", "::ffff:10.77.0.1, RoCE v2"} {
			if !strings.Contains(out, want) {
				t.Errorf("ibv_devinfo does not show %q:\n%s", want, out)
			}
		}
	})
	t.Run("moves data", func(t *testing.T) {
		bw := writeBandwidth(t, g, g, "-n 200")
		t.Logf("ib_write_bw, 32 KiB, to itself: %.1f MB/s", bw)
	})
	t.Run("passes the transport contract", func(t *testing.T) { ibvConforms(t, g) })
	t.Run("encrypts tcp in the kernel", func(t *testing.T) { kernelEncrypts(t, g) })
	t.Run("exchanges the same bits over every transport", func(t *testing.T) { sameBitsOverRDMA(t, g) })
	t.Run("exchanges ResNet-50", func(t *testing.T) { resNet50(t, g) })
	t.Run("batches doorbells and never finds a receiver not ready", func(t *testing.T) { steadyState(t, g) })
	t.Run("prints its share of ib_write_bw", func(t *testing.T) { shareOfPerftest(t, g) })
	t.Run("decodes what codecs shorten", func(t *testing.T) { onDevice(t, g, "TestIBVJobsWithCodecs", "rxe0") })
	t.Run("keeps peers out of other memory", func(t *testing.T) { onDevice(t, g, "TestIBVPeerThatWritesElsewhere", "rxe0") })
	t.Run("keeps tenants out of each other's way", func(t *testing.T) { onDevice(t, g, "TestIBVTenants", "rxe0") })
	t.Run("keeps policies' updates to the bit", func(t *testing.T) { onDevice(t, g, "TestIBVPolicies", "rxe0") })
	t.Run("says what cannot be had", func(t *testing.T) { whatCannotBeHad(t, g) })
	t.Run("soft-RoCE comes and goes", func(t *testing.T) { softRoCEComesAndGoes(t, g) })
	t.Run("reports exit status and output", func(t *testing.T) {
		out, err := g.Run(within(t, patience), "echo one; echo two >&2; exit 7")
		var exit *ExitError
		if !errors.As(err, &exit) || exit.Status != 7 || exit.Guest != "aggregator" {
			t.Errorf("got error %v, want exit status 7 in guest aggregator", err)
		}
		if out != "one\ntwo\n" {
			t.Errorf("got output %q", out)
		}
	})
	t.Run("kills what runs too long, with its children", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer cancel()
		if _, err := g.Run(ctx, "sleep 1234 & sleep 1234"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v, want %v", err, context.DeadlineExceeded)
		}
		run(t, g, "sleep 0.2; ! pgrep -f 'sleep 1234'")
	})
	t.Run("shares one directory and cannot write elsewhere", func(t *testing.T) {
		file := filepath.Join(g.Dir(), "from-host")
		if err := os.WriteFile(file, []byte("hello"), 0o600); err != nil {
			t.Fatal(err)
		}
		out := run(t, g, "cat "+SharedDir+"/from-host "+GuestPath(file)+"; echo back >"+SharedDir+"/from-guest; ! touch /root/x /usr/x")
		if !strings.HasPrefix(out, "hellohello") {
			t.Errorf("the guest read %q", out)
		}
		if back, err := os.ReadFile(filepath.Join(g.Dir(), "from-guest")); err != nil || string(back) != "back\n" {
			t.Errorf("the host read %q, %v", back, err)
		}
	})
}

// complaintFailsTheRun makes a guest's kernel complain, and closes the guest.
func complaintFailsTheRun(t *testing.T, g *Guest) {
	run(t, g, "echo '<1>BUG: planted' >/dev/kmsg; sleep 0.5")
	dir := g.Dir()
	if err := g.Close(); !errors.Is(err, ErrKernel) || !strings.Contains(err.Error(), "BUG: planted") {
		t.Errorf("got %v, want %v", err, ErrKernel)
	}
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("the guest left %s behind", dir)
	}
	if _, err := g.Run(t.Context(), "true"); !errors.Is(err, ErrGuestGone) {
		t.Errorf("a closed guest answers %v, want %v", err, ErrGuestGone)
	}
}

func TestDeadlineEndsAGuest(t *testing.T) {
	if testing.Short() {
		t.Skip("boots QEMU guests: left out by -short")
	}
	_, err := Boot(within(t, bootTime), Config{Name: "late", Deadline: 300 * time.Millisecond})
	if !errors.Is(err, ErrGuestGone) || !strings.Contains(err.Error(), "deadline") {
		t.Errorf("got %v, want %v at its deadline", err, ErrGuestGone)
	}
}

func TestConfigIsChecked(t *testing.T) {
	for _, c := range []struct {
		name string
		cfg  Config
		want string
	}{
		{"odd split", Config{CPUs: 3, Nodes: 2}, "3 processors do not split over 2 NUMA nodes"},
		{"node out of range", Config{NICs: []NIC{{Node: 1}}}, "NUMA node 1 of 1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if _, err := Boot(t.Context(), c.cfg); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
	if _, err := Shape("ring").Configs(); err == nil || !strings.Contains(err.Error(), "single") {
		t.Errorf("unknown shape: got %v", err)
	}
}
