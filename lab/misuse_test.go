package lab

import (
	"fmt"
	"strings"
	"testing"
)

// refuses runs a script that must fail soon, with an error that has all of wants.
func refuses(t *testing.T, g *Guest, script string, wants ...string) {
	t.Helper()
	out, err := g.Run(within(t, patience), script)
	if err == nil {
		t.Errorf("%s succeeded:\n%s", script, out)
	}
	for _, want := range wants {
		if !strings.Contains(out, want) {
			t.Errorf("%s: want %q in %s", script, want, out)
		}
	}
}

// unprivileged runs a command as a user who can open only the shared directory.
const (
	asNobody       = "setpriv --reuid 65534 --clear-groups"
	nobodysProgram = SharedDir + "/rackweave"
)

// whatCannotBeHad asks for what the guest's device does not have. Each time one thing is missing.
func whatCannotBeHad(t *testing.T, g *Guest) {
	rackweave := program(t, g) + " "
	with := func(options string) string {
		return rackweave + "serve --listen 127.0.0.1:0 --providers ibv --provider-options ibv:" + options
	}
	refuses(t, g, with("port=2"), "rxe0 has ports 1 to 1, not 2")
	refuses(t, g, with("gid=200"), "no usable GID at index 200", "it has:", "10.77.0.1")
	refuses(t, g, with("colour=red"), "colour")
	refuses(t, g, rackweave+"serve --listen 127.0.0.1:0 --providers ibv --nics rxe7", "rxe7", "rxe0")
	refuses(t, g, "ip link set nic0 down; "+with("port=1")+"; e=$?; ip link set nic0 up; exit $e", "port 1 of rxe0 is down",
		"bring its link up")
	refuses(t, g, "chmod 666 /dev/infiniband/uverbs*; exec "+asNobody+" sh -c 'ulimit -l 512; exec "+nobodysProgram+
		" bench --provider ibv --bytes 4MB --workers 1 --iters 1 --no-roofline'",
		"register memory on rxe0", "KiB more must be locked", "may lock 512 KiB", "ulimit -l unlimited", "LimitMEMLOCK=infinity")
	library := run(t, g, "readlink -f $(ldconfig -p | grep -o '/.*libibverbs.so.1$' | head -1)")
	refuses(t, g, fmt.Sprintf("exec unshare -m sh -c 'mount --bind /dev/null %s; exec %s'", library, with("port=1")),
		"libibverbs cannot be loaded", "apt-get install libibverbs1 ibverbs-providers")
	refuses(t, g, "rdma link delete rxe0; "+with("port=1")+"; e=$?; "+rackweave+"rxe up nic0; exit $e", "no RDMA device",
		"rackweave rxe up")
	untilItHasAnAddress(t, g)
}

// untilItHasAnAddress waits until a new device has its IPv4 GID.
func untilItHasAnAddress(t *testing.T, g *Guest) {
	t.Helper()
	run(t, g, "for i in $(seq 200); do grep -q ffff: /sys/class/infiniband/rxe0/ports/1/gids/* && exit; sleep 0.05; done; exit 1")
}
