package lab

import (
	"slices"
	"strings"
	"testing"
)

// softRoCEComesAndGoes makes and removes the guest's device with rackweave rxe, and asks for the impossible.
func softRoCEComesAndGoes(t *testing.T, g *Guest) {
	rxe := program(t, g) + " rxe "
	says := func(script, want string) {
		t.Helper()
		if got := run(t, g, script); got != want {
			t.Errorf("%s: got %q, want %q", script, got, want)
		}
	}
	refuses(t, g, rxe+"down", "no default route", "ip link")
	says("ip route add default dev nic0; "+rxe+"up", "rxe0 on nic0: was there")
	says(rxe+"down", "rxe0 on nic0: removed")
	refuses(t, g, rxe+"down nic0", "nic0 has none")
	refuses(t, g, rxe+"up eth7", "no network device eth7")
	refuses(t, g, asNobody+" "+nobodysProgram+" rxe up nic0", "operation not permitted", "root")
	refuses(t, g, "busybox rmmod rdma_rxe; "+rxe+"up nic0", "no module rdma_rxe", "linux-image-amd64", "linux-modules-extra-")
	run(t, g, "busybox insmod "+moduleFile(t, "rdma_rxe"))
	says(rxe+"up nic0 --json | tr -d ' \\n'", `[{"name":"rxe0","netdev":"nic0","state":"made"}]`)
	untilItHasAnAddress(t, g)
	run(t, g, "ip route del default")
}

// moduleFile returns the path in a guest of a module of its kernel.
func moduleFile(t *testing.T, name string) string {
	t.Helper()
	k, err := fetchKernel(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(k.modules, func(file string) bool { return strings.HasSuffix(file, name+".ko") })
	if i < 0 {
		t.Fatalf("the kernel has no module %s", name)
	}
	return GuestPath(k.modules[i])
}
