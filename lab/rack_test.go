package lab

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
)

// writeBandwidth runs ib_write_bw with 32 KiB messages from one guest to another and returns its average, in MB/s. It tries
// again when perftest cannot calibrate its clock, which happens under emulation.
func writeBandwidth(t *testing.T, server, client *Guest, flags string) float64 {
	t.Helper()
	flags = "-d rxe0 -s 32768 --port=18600 " + flags
	var out string
	for range 5 {
		s := server.Start("exec ib_write_bw " + flags)
		// The client is refused at once until the server listens.
		var err error
		out, err = client.Run(within(t, patience), fmt.Sprintf(
			"for i in $(seq 500); do ib_write_bw %s %s 2>&1 | tee /tmp/bw; grep -q 'connect to' /tmp/bw || exit 0; sleep 0.2; done; exit 1",
			flags, server.Addr(0)))
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		s.Wait(within(t, patience))
		for line := range strings.Lines(out) {
			if f := strings.Fields(line); len(f) == 5 && f[0] == "32768" {
				if bw, err := strconv.ParseFloat(f[3], 64); err == nil && bw > 0 {
					return bw
				}
			}
		}
		if !strings.Contains(out, "Can't produce a report") {
			break
		}
	}
	t.Fatalf("ib_write_bw reports no bandwidth:\n%s", out)
	return 0
}

func TestPairIsTwoHosts(t *testing.T) {
	rack := bootShape(t, Pair)
	aggregator, worker := rack.Guests[0], rack.Guests[1]

	t.Run("RDMA crosses the wire", func(t *testing.T) {
		bw := writeBandwidth(t, aggregator, worker, "-n 200")
		t.Logf("ib_write_bw, 32 KiB, between guests: %.1f MB/s", bw)
	})
	t.Run("RDMA survives packet loss", func(t *testing.T) {
		run(t, worker, "tc qdisc add dev nic0 root netem loss 1%")
		bw := writeBandwidth(t, aggregator, worker, "-n 100")
		t.Logf("ib_write_bw, 32 KiB, 1%% loss: %.1f MB/s", bw)
		run(t, worker, "tc -s qdisc show dev nic0 | grep -E 'dropped [1-9]' && tc qdisc del dev nic0 root")
	})
	t.Run("an exchange crosses the wire", func(t *testing.T) { twoHostsExchange(t, aggregator, worker) })
	t.Run("an exchange rides out a cable that is pulled for 3 s", func(t *testing.T) { rideOut(t, aggregator, worker) })
	t.Run("a cable that is pulled for good is an error in time", func(t *testing.T) { giveUp(t, aggregator, worker) })
	t.Run("a pulled cable takes the port down until it is back", func(t *testing.T) {
		const state = "/sys/class/infiniband/rxe0/ports/1/state"
		for _, c := range []struct {
			up   bool
			want string
		}{{false, "DOWN"}, {true, "ACTIVE"}} {
			if err := worker.SetLink(0, c.up); err != nil {
				t.Fatal(err)
			}
			run(t, worker, fmt.Sprintf("for i in $(seq 3000); do grep -q %s %s && exit; sleep 0.1; done; cat %s; exit 1", c.want, state,
				state))
		}
		run(t, worker, "busybox ping -c1 -W10 "+aggregator.Addr(0))
	})
	t.Run("a killed guest is gone for those who wait", func(t *testing.T) {
		c := worker.Start("sleep 60")
		worker.Kill()
		if _, err := c.Wait(within(t, patience)); !errors.Is(err, ErrGuestGone) {
			t.Errorf("got %v, want %v", err, ErrGuestGone)
		}
		if out, err := aggregator.Run(within(t, patience), "busybox ping -c1 -W1 "+worker.Addr(0)); err == nil {
			t.Errorf("a dead guest answers: %s", out)
		}
	})
	t.Run("a complaint of a kernel fails the run", func(t *testing.T) {
		if err := aggregator.console.complaint(aggregator.Name()); err != nil {
			t.Error(err)
		}
		rack.Guests = []*Guest{worker} // it would fail this test, too
		complaintFailsTheRun(t, aggregator)
	})
}

func TestTwoNodesHaveANICEach(t *testing.T) {
	g := bootShape(t, TwoNodes).Guests[0]
	for i := range 2 {
		// The virtio device has no numa_node; the PCI device above it has.
		node := run(t, g, fmt.Sprintf("cat /sys/class/net/nic%d/device/../numa_node", i))
		if node != strconv.Itoa(i) {
			t.Errorf("nic%d is on node %s", i, node)
		}
		if parent := run(t, g, fmt.Sprintf("cat /sys/class/infiniband/rxe%d/parent", i)); parent != fmt.Sprintf("nic%d", i) {
			t.Errorf("rxe%d is on %s", i, parent)
		}
		if cpu := run(t, g, fmt.Sprintf("cat /sys/devices/system/node/node%d/cpulist", i)); cpu != strconv.Itoa(i) {
			t.Errorf("node %d has processors %s", i, cpu)
		}
	}
	t.Run("all that a chunk uses is on one", func(t *testing.T) { onDevice(t, g, "TestIBVPlacement", "rxe0,rxe1") })
	t.Run("lanes fail over when one loses its link", func(t *testing.T) { failover(t, g) })
}

func TestTrioIsTwoRacks(t *testing.T) {
	rack := bootShape(t, Trio)
	for _, from := range rack.Guests {
		for _, to := range rack.Guests {
			run(t, from, "busybox ping -c1 -W10 "+to.Addr(0))
		}
	}
	t.Run("two racks reduce among themselves", func(t *testing.T) { racksExchange(t, rack.Guests[:2], rack.Guests[2]) })
	powerFailures(t, rack.Guests[0], rack.Guests[1], rack.Guests[2])
}

func TestMissingToolNamesItsPackage(t *testing.T) {
	packages["no-such-tool"] = "tool-package"
	defer delete(packages, "no-such-tool")
	_, err := command(t.Context(), "", "no-such-tool")
	if !errors.Is(err, ErrMissingTool) || !strings.Contains(err.Error(), "apt-get install tool-package") {
		t.Errorf("got %v, want %v and the package to install", err, ErrMissingTool)
	}
}
